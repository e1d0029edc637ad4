"""Policies and rewards that take over from dead ones: the same actions, weights and rewards."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from dsec.ipc.frames import FailoverSettings, Role
from tests.runners import actors
from tests.runners.kernel import Agent, AgentPlan, Agents
from tests.runners.reference import compare_with_reference
from tests.runners.succession import Succession, Successions, entry

STATE = FailoverSettings(standby="state")


def check_numbers(agent: Agent) -> None:
    for records in agent.records.values():
        assert [record.seq for record in records] == list(range(len(records)))


def killing(succession: Succession, roles: list[Role], deaths: int, most: int) -> Any:
    """Faults at random instants, to each of these roles in turn."""
    instants = sorted(random.Random(deaths).sample(range(5, most), deaths))

    def at(role: Role) -> Callable[[], Any]:
        return lambda: succession.take_over(role)

    return {seq: at(roles[i % len(roles)]) for i, seq in enumerate(instants)}


@pytest.mark.guarantee("G2", "G3")
@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_random_policy_draws_on(successions: Successions, num_envs: int) -> None:
    plan = AgentPlan(steps=6000 * num_envs, num_envs=num_envs, failover=STATE)
    succession = successions(plan)
    succession.drive(killing(succession, [Role.POLICY], 6, 4000))
    check_numbers(succession.agent)
    assert compare_with_reference(succession.agent) > 0
    assert all(answer.exact for answer in succession.takeovers[Role.POLICY])


@pytest.mark.guarantee("G2", "G3")
def test_all_roles_take_over_in_turn(successions: Successions) -> None:
    succession = successions(AgentPlan(steps=8000, failover=STATE))
    roles = [Role.POLICY, Role.REWARD, Role.ENV]
    succession.drive(killing(succession, roles, 9, 6000))
    check_numbers(succession.agent)
    assert compare_with_reference(succession.agent) > 0
    for role in roles:
        assert [answer.exact for answer in succession.takeovers[role]] == [True] * 3


@pytest.mark.guarantee("G2")
def test_a_policy_without_state_begins_anew_and_says_so(successions: Successions) -> None:
    succession = successions(AgentPlan(steps=4000))
    succession.drive(killing(succession, [Role.POLICY, Role.REWARD], 4, 2500))
    check_numbers(succession.agent)
    for answer in succession.takeovers[Role.POLICY]:
        assert not answer.exact and "begins anew" in answer.why
    assert all(answer.exact for answer in succession.takeovers[Role.REWARD])


@pytest.mark.guarantee("G4")
def test_a_policy_that_was_half_restored_begins_anew_all_the_same(
    successions: Successions,
) -> None:
    plan = AgentPlan(policy=f"{actors.HERE}:Clumsy", steps=3000, failover=STATE)
    succession = successions(plan)
    succession.drive(killing(succession, [Role.POLICY], 2, 2000))
    check_numbers(succession.agent)
    for answer in succession.takeovers[Role.POLICY]:
        assert not answer.exact
        assert "not restored: set_state() raised ValueError: dropped it" in answer.why
    answers = [record.payload for record in succession.agent.records[Role.POLICY] if record.payload]
    assert {*answers} == {bytes(8)}, "what it takes from the state is 1"


@pytest.mark.guarantee("G2", "G3")
def test_a_learning_policy_learns_on_as_if_it_lived(
    agents: Agents, successions: Successions
) -> None:
    plan = AgentPlan(
        env=entry("Generated", plan=3),
        policy=f"{actors.HERE}:Averaging",
        reward=f"{actors.HERE}:Smoothing",
        steps=3000,
        failover=STATE,
    )
    undisturbed = agents(plan).begin()
    Succession(undisturbed, None).drive({})
    succession = successions(plan)
    roles = [Role.POLICY, Role.REWARD, Role.ENV]
    succession.drive(killing(succession, roles, 9, 2500))
    for role, records in undisturbed.records.items():
        found = succession.agent.records[role]
        assert [r.seq for r in found] == [r.seq for r in records]
        assert [r.payload for r in found] == [r.payload for r in records], role
    for role in roles:
        assert [answer.exact for answer in succession.takeovers[role]] == [True] * 3
