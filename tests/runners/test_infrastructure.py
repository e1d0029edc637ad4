"""What a recording says where environments were lost: no such step, and an episode cut short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces as gs

from dsec.ipc.frames import Role
from dsec.recording import Recording
from tests.runners.recorders import BOX, Make, Record, make, record, run_dir, write_journal

__all__ = ["make", "record", "run_dir"]

COUNT = 60


def expected(agent_flags: list[list[int]], losses: frozenset[int], n: int) -> list[list[str]]:
    """The `end` of each row, from what was published."""
    words = {0: "", 1: "terminated", 2: "truncated", 3: "terminated"}
    found: list[list[str]] = []
    for seq in range(COUNT):
        if seq in losses:
            if found:
                found[-1] = [word or "infra" for word in found[-1]]
            continue
        found.append([words[flag] for flag in agent_flags[seq + 1]])
    found[-1] = [word or "cut" for word in found[-1]]
    return found


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize(
    "losses", [frozenset({0}), frozenset({20}), frozenset({20, 21, 59}), frozenset({7, 14, 58})]
)
def test_a_lost_step_is_no_row_and_no_finished_episode(
    make: Make, run_dir: Path, n: int, step: int, losses: frozenset[int]
) -> None:
    agent = make("a-000", BOX, gs.Discrete(3), n=n, losses=losses)
    write_journal(run_dir, [agent], [COUNT], step=step)
    with Recording.open(run_dir) as recording:
        found = recording.transitions("a-000")
        episodes = list(recording.episodes("a-000"))
    real = [seq for seq in range(COUNT) if seq not in losses]
    ends = expected(agent.truth.flags, losses, n)
    assert found.seq.tolist() == real
    assert found.end.tolist() == ends
    rewards = np.array([agent.truth.rewards[seq] for seq in real])
    assert found.reward.tobytes() == rewards.tobytes()
    for row, seq in enumerate(real):
        for i in range(n):
            if ends[row][i] == "infra":
                final = found.final_obs[row, i]
                assert final.tobytes() == agent.truth.obs[seq + 1][i].tobytes()
    infra = sum(word == "infra" for row in ends for word in row)
    assert sum(episode.end == "infra" for episode in episodes) == infra
    assert sum(episode.length for episode in episodes) == len(real) * n


@pytest.mark.guarantee("G4")
def test_totals_leave_lost_steps_and_their_episodes_out(make: Make, record: Record) -> None:
    losses = frozenset({20, 41})
    agent = make("a-000", BOX, gs.Discrete(3), n=2, losses=losses)
    process = record()
    process.wire(agent)
    agent.publish(0, 30)
    process.wait_for_progress("a-000", 2 * 29)
    # The successor counts what the journal holds just as its predecessor counted the rings.
    process.kill()
    process = record()
    process.wire(agent)
    agent.publish(30, COUNT)
    process.wait_for_progress("a-000", 2 * (COUNT - 2))
    finished = process.abandon("a-000")
    returns, running = [], [0.0, 0.0]
    for seq in range(COUNT):
        for i in range(2):
            running[i] += agent.truth.rewards[seq][i]
            if agent.truth.flags[seq + 1][i]:
                if seq not in losses:
                    returns.append(running[i])
                running[i] = 0.0
    assert (finished.steps, finished.episodes) == (2 * (COUNT - 2), len(returns))
    assert finished.return_sum == sum(returns)
    assert (finished.lost, finished.seq_last) == (0, agent.published[Role.ENV])
    process.finish()
