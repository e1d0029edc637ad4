"""Env runners that take over with the state of a dead one: the run goes on as if it lived."""

from __future__ import annotations

import random
import signal

import pytest

from dsec.ipc.frames import FailoverSettings, Role
from dsec.ipc.layout import FLAG_INFRA
from tests.runners.kernel import Agent, AgentPlan, Runner
from tests.runners.reference import compare_with_reference
from tests.runners.succession import Succession, Successions, entry

STATE = FailoverSettings(standby="state")


def check_exact(agent: Agent, succession: Succession, deaths: int) -> None:
    """G2 and G3: every record once, and each as in a run without deaths."""
    answers = succession.takeovers[Role.ENV]
    assert len(answers) == deaths
    lost = [record.infos for record in agent.observed() if record.ends[0] & FLAG_INFRA]
    assert not lost, (lost, answers)
    for records in agent.records.values():
        assert [record.seq for record in records] == list(range(len(records)))
    assert compare_with_reference(agent) > 0


@pytest.mark.guarantee("G2", "G3")
@pytest.mark.parametrize("num_envs", [1, 3])
def test_cartpole_goes_on_bit_for_bit(successions: Successions, num_envs: int) -> None:
    plan = AgentPlan(steps=6000 * num_envs, num_envs=num_envs, failover=STATE)
    succession = successions(plan)
    instants = sorted(random.Random(num_envs).sample(range(10, 4000), 8))
    spares = [succession.spare(Role.ENV)]

    def replace() -> None:
        succession.take_over(Role.ENV, spares.pop())
        spares.append(succession.spare(Role.ENV))

    succession.drive(dict.fromkeys(instants, replace))
    check_exact(succession.agent, succession, 8)
    protection = succession.protection[Role.ENV]
    assert (protection.level, protection.codec) == ("state", "attributes")


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("signo", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_random_instants_of_death(successions: Successions, signo: int) -> None:
    """The runner dies while nobody looks: the takeover begins when it is dead already."""
    plan = AgentPlan(steps=6000, failover=STATE)
    succession = successions(plan)

    def die() -> None:
        spare = succession.spare(Role.ENV)
        old = succession.agent.runners[Role.ENV]
        signal.pidfd_send_signal(old.pidfd, signo)
        assert old.wait() == -signo
        succession.take_over(Role.ENV, spare, fence=Runner.kill)

    instants = sorted(random.Random(int(signo)).sample(range(10, 4000), 6))
    succession.drive(dict.fromkeys(instants, die))
    check_exact(succession.agent, succession, 6)


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("plan_seed", range(4))
@pytest.mark.parametrize("num_envs", [1, 2])
def test_generated_spaces_go_on_bit_for_bit(
    successions: Successions, plan_seed: int, num_envs: int
) -> None:
    plan = AgentPlan(
        env=entry("Generated", plan=plan_seed, variable=plan_seed % 2 == 1),
        steps=3000 * num_envs,
        num_envs=num_envs,
        failover=STATE,
    )
    succession = successions(plan)
    instants = sorted(random.Random(plan_seed).sample(range(1, 1500), 3))
    succession.drive(dict.fromkeys(instants, lambda: succession.take_over(Role.ENV)))
    check_exact(succession.agent, succession, 3)


@pytest.mark.guarantee("G3")
def test_successors_that_die_at_once_leave_the_state_to_the_next(successions: Successions) -> None:
    """A second death before the first successor has kept anything of its own."""
    succession = successions(AgentPlan(steps=4000, failover=STATE))

    def three_times() -> None:
        for _ in range(3):
            succession.take_over(Role.ENV)

    succession.drive(dict.fromkeys((100, 800), three_times))
    check_exact(succession.agent, succession, 6)


@pytest.mark.guarantee("G4")
def test_an_unfaithful_restoration_is_seen_and_said(successions: Successions) -> None:
    """What depends on the process can't be restored: the replay shows it."""
    plan = AgentPlan(env=entry("Moody"), steps=4000, failover=STATE)
    succession = successions(plan)
    succession.drive({500: lambda: succession.take_over(Role.ENV)})
    (answer,) = succession.takeovers[Role.ENV]
    assert not answer.exact and "came out differently" in answer.why
    lost = [record for record in succession.agent.observed() if record.ends[0] & FLAG_INFRA]
    (record,) = lost
    assert "came out differently" in record.infos[0]["dsec"]["infra_failure"]["why"]
