"""A sandbox with a reward role and a recorder: what is recorded is what was seen, and no more."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.recording import Recording
from dsec.sandbox import AgentSandbox
from dsec.vector import make_vec


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


@pytest.mark.guarantee("G2", "G3")
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vectors_are_rewarded_and_recorded(mode: str, tmp_path: Path) -> None:
    """In every autoreset mode, through a kill: what is recorded are the transitions, and each has
    the reward that `step` returned."""
    kinds: dict[str, Any] = {"reward": "tests.sandbox.worlds:Counted", "autoreset_mode": mode}
    width = 1 if mode == "NextStep" else 2
    envs = make_vec(
        "tests.sandbox.worlds:Cart",
        4,
        envs_per_process=width,
        record=tmp_path / "run",
        seed=1,
        **kinds,
    )
    rewards: list[list[float]] = [[] for _ in range(4)]
    try:
        envs.reset(seed=1)
        over = np.zeros(4, np.bool_)
        for k in range(40):
            if k == 15:
                os.kill(envs.call("pid")[2], signal.SIGKILL)
            if mode == "Disabled" and over.any():
                envs.reset(options={"reset_mask": over})
            skipped = over if mode == "NextStep" else np.zeros(4, np.bool_)
            _, got, terminated, truncated, _ = envs.step(np.ones(4, np.int64))
            over = terminated | truncated
            assert (got[skipped] == 0.0).all()
            for i in np.flatnonzero(~skipped):
                rewards[i].append(got[i])
        assert [each.exact for each in envs.failovers] == [True]
    finally:
        envs.close()
    with Recording.open(tmp_path / "run") as recording:
        assert envs.recording and len(recording.agents) == 4 // width
        for i, expected in enumerate(rewards):
            name, env = f"vector-00{i // width}", i % width
            rows = recording.transitions(name, env=env)
            assert rows.reward.tolist() == expected
            assert rows.env_reward.tolist() == [1.0] * len(expected)
            ends = [each.end for each in recording.episodes(name) if each.env == env]
            assert ends[:-1] == ["terminated"] * (len(ends) - 1) and len(ends) > 2


@pytest.mark.guarantee("G2")
def test_a_step_in_two_halves_has_the_reward_of_a_whole_one() -> None:
    envs = make_vec("tests.sandbox.worlds:Cart", 2, reward="tests.sandbox.worlds:Counted", seed=1)
    try:
        envs.reset(seed=1)
        for k in range(8):  # too few for an episode to end
            envs.step_async(np.zeros(2, np.int64) + k % 2)
            assert envs.step_wait(timeout=30)[1].tolist() == [2 + (k + 1) / 1000] * 2
    finally:
        envs.close()
