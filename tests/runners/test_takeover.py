"""Env runners that take over from dead ones of which nothing is kept: G4, and nothing lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from dsec.ipc.channel import Channel
from dsec.ipc.frames import Done, Drain, Go, Role
from dsec.ipc.layout import FLAG_INFRA, FLAG_TRUNCATED
from tests import watchdog
from tests.runners.kernel import AgentPlan, Agents
from tests.runners.reference import compare_with_reference
from tests.runners.succession import FATE, Succession, Successions, entry


def check_numbers(succession: Succession) -> None:
    """G2: every record once, in order, in each ring."""
    for records in succession.agent.records.values():
        assert [record.seq for record in records] == list(range(len(records)))


@pytest.mark.guarantee("G2", "G4")
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_lost_environment_is_said_and_a_fresh_one_goes_on(
    successions: Successions, num_envs: int
) -> None:
    succession = successions(AgentPlan(steps=4000 * num_envs, num_envs=num_envs))
    agent = succession.agent
    succession.drive({seq: lambda: succession.take_over(Role.ENV) for seq in (50, 300)})
    check_numbers(succession)
    observed = agent.observed()
    lost = [record for record in observed if record.ends[0] & FLAG_INFRA]
    assert len(lost) == 2, "each death loses one step"
    for record in lost:
        before = observed[record.seq - 1]
        assert record.ends.tolist() == [FLAG_INFRA | FLAG_TRUNCATED] * num_envs
        assert record.reward.tolist() == [0.0] * num_envs
        for i in range(num_envs):
            assert record.finals[i].tobytes() == before.obs[i].tobytes(), "the last valid one"
            told = record.infos[i]["dsec"]["infra_failure"]
            assert told["cause"] == FATE and told["why"]
        assert np.abs(record.obs).max() <= 0.05, "a reset's observation"
    assert len({record.obs.tobytes() for record in lost}) == 2, "each with a seed of its own"
    for answer in succession.takeovers[Role.ENV]:
        assert not answer.exact and answer.level == "none" and "kept" in answer.why


@pytest.mark.guarantee("G4")
def test_variable_spaces_are_lost_and_found(successions: Successions) -> None:
    plan = AgentPlan(env=entry("Generated", plan=5, variable=True), steps=3000)
    succession = successions(plan)
    succession.drive({seq: lambda: succession.take_over(Role.ENV) for seq in (20, 150)})
    check_numbers(succession)
    lost = [r for r in succession.agent.observed() if r.ends[0] & FLAG_INFRA]
    assert len(lost) == 2
    for record in lost:
        assert "infra_failure" in record.infos[0]["dsec"]


@pytest.mark.guarantee("G5")
def test_nothing_is_published_before_resume(successions: Successions) -> None:
    succession = successions(AgentPlan(steps=3000))
    agent = succession.agent
    fd = agent.segments[Role.ENV].fd
    seen: list[bytes] = []

    def look() -> None:
        # The old one is stopped and the new one waits: nobody may write now.
        seen.append(header(fd))

    def stop_and_replace() -> None:
        old = agent.runners[Role.ENV]
        signal.pidfd_send_signal(old.pidfd, signal.SIGSTOP)
        watchdog.until(lambda: stopped(old.pid), 10, "the old one is stopped")
        before = header(fd)
        succession.take_over(Role.ENV, before_resume=look)
        assert seen == [before]

    succession.drive({100: stop_and_replace})
    check_numbers(succession)


def header(fd: int) -> bytes:
    return os.pread(fd, 4096, 0)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_who_dies_before_the_first_record_has_lost_nothing(agents: Agents, zygote: Channel) -> None:
    agent = agents(AgentPlan(steps=300)).wire().ready()
    succession = Succession(agent, zygote)
    answer = succession.take_over(Role.ENV)
    assert answer.exact and answer.seq == -1
    for role in (Role.POLICY, Role.REWARD):
        agent.runners[role].channel.send(Go(policy_learns=False))
    succession.drive({})
    assert compare_with_reference(agent) > 0


def test_a_step_that_is_poison_is_not_tried_again(successions: Successions) -> None:
    succession = successions(AgentPlan(steps=3000))
    spare = succession.spare(Role.ENV)
    succession.drive({10: lambda: succession.take_over(Role.ENV, spare, truncate=True)})
    (answer,) = succession.takeovers[Role.ENV]
    assert "not to be tried again" in answer.why


def test_a_spare_that_is_not_needed_closes_and_leaves(successions: Successions) -> None:
    succession = successions(AgentPlan(steps=50))
    spare = succession.spare(Role.ENV)
    spare.channel.send(Drain("the run is over"))
    assert spare.expect(Done).role == Role.ENV
    assert spare.wait() == 0
    succession.drive({})
