"""A sandbox with a reward role and a recorder: what is recorded is what was seen, and no more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from dsec.recording import Recording
from dsec.sandbox import AgentSandbox


@pytest.mark.guarantee("G2", "G3")
def test_rewards_and_recording(tmp_path: Path) -> None:
    """Resets in the middle of an episode, calls and a death are no transitions."""
    seen, rewards, starts = [], [], []
    with AgentSandbox(
        "tests.sandbox.worlds:Cart",
        reward="tests.sandbox.worlds:Counted",
        record=tmp_path / "run",
        seed=1,
    ) as sandbox:
        env = sandbox.get_env()
        assert env.gravity == 9.8
        obs, _ = env.reset(seed=1)
        starts.append(0)
        for k in range(60):
            seen.append(obs)
            obs, reward, terminated, _, _ = env.step(k % 2)
            rewards.append(reward)
            if k in (10, 30):
                os.kill(env.call("pid"), signal.SIGKILL)
            if terminated or k == 20:
                obs, _ = env.reset(seed=k)
                starts.append(k + 1)
        assert len(env.failovers) == 2
    assert rewards == [2 + (k + 1) / 1000 for k in range(60)]
    with Recording.open(tmp_path / "run") as recording:
        assert sandbox.recording
        rows = recording.transitions("sandbox-000", env=0)
        assert rows.obs.tobytes() == np.array(seen).tobytes()
        assert rows.reward.tolist() == rewards
        assert rows.env_reward.tolist() == [1.0] * 60
        episodes = list(recording.episodes("sandbox-000"))
        assert [each.length for each in episodes] == np.diff([*starts, 60]).tolist()
        assert episodes[0].end in ("cut", "terminated") and 21 in starts
