"""Agents that go on from an atom: from there on they are what they would have been."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from dsec.ipc.frames import EnvSettings, FailoverSettings, Role
from dsec.ipc.layout import EnvRecord, Layout
from dsec.ipc.ring import FLAG_BOUNDARY
from tests.runners import actors
from tests.runners.atoms import lived, stored
from tests.runners.kernel import Agent, AgentPlan, Agents, Record
from tests.runners.succession import Succession, Successions, entry

STATE = FailoverSettings(standby="state")
CARTPOLE = AgentPlan(steps=300, failover=STATE)
LEARNER = AgentPlan(
    env=entry("Generated", plan=3),
    policy=f"{actors.HERE}:Averaging",
    reward=f"{actors.HERE}:Smoothing",
    steps=400,
    failover=STATE,
)
VARIABLE = AgentPlan(
    env=entry("Generated", plan=5, variable=True),
    policy=f"{actors.HERE}:Averaging",
    reward=f"{actors.HERE}:Smoothing",
    steps=300,
)
VECTOR = AgentPlan(env=EnvSettings(id="CartPole-v1"), num_envs=3, steps=600)
STACK = AgentPlan(
    env=EnvSettings(
        id="CartPole-v1",
        wrappers=(
            {"entry": "TimeLimit", "kwargs": {"max_episode_steps": 40}},
            {"entry": "NormalizeObservation"},
            {"entry": "FrameStackObservation", "kwargs": {"stack_size": 3}},
        ),
    ),
    steps=300,
)


def driven(agents: Agents, plan: AgentPlan) -> Agent:
    """A whole life without faults."""
    agent = agents(plan).begin()
    Succession(agent, None).drive({})
    return agent


def agree(found: Agent, whole: Agent, seq: int) -> None:
    """What one published is what the other did from there on."""
    for role, records in whole.records.items():
        first = next(i for i, record in enumerate(records) if record.seq == seq)
        wanted = [facts(whole, role, record) for record in records[first:]]
        mine = [facts(found, role, record) for record in found.records[role]]
        if role is Role.ENV:  # whose first record tells again what was observed, and nothing else
            (*again, rest), (*told, more) = mine.pop(0), wanted.pop(0)
            assert again == told
            assert more.startswith(rest)
        assert mine == wanted, role


def facts(agent: Agent, role: Role, record: Record) -> tuple[int, int, int, list[bytes], bytes]:
    """A record without what lies between its parts, which is nobody's."""
    n, payload = agent.plan.num_envs, bytearray(record.payload)
    leaves: list[bytes] = [bytes(payload)]
    fixed = len(payload)
    if role is Role.ENV:
        env = EnvRecord(agent.spaces[0], n)
        views, fixed = env.views(payload), env.fixed_bytes
        leaves = [views.reward.tobytes(), views.flags.tobytes(), *parts(views.obs)]
    elif role is Role.POLICY and payload:
        layout = Layout(agent.spaces[1], n)
        leaves, fixed = parts(layout.views(payload)), layout.nbytes
    return record.seq, record.kind, record.flags, leaves, record.payload[fixed:]


def parts(tree: Any) -> list[bytes]:
    """The bytes of every array in a tree of views."""
    if isinstance(tree, dict):
        return [each for value in tree.values() for each in parts(value)]
    if isinstance(tree, tuple):
        return [each for value in tree for each in parts(value)]
    return [tree.tobytes()] if isinstance(tree, np.ndarray) else []


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("plan", "seq"),
    [(CARTPOLE, 37), (LEARNER, 200), (VARIABLE, 50), (VECTOR, 100), (STACK, 150)],
    ids=["cartpole", "learner", "variable", "vector", "stack"],
)
def test_an_agent_goes_on_from_its_atom_as_if_nothing_had_been(
    agents: Agents, tmp_path: Path, plan: AgentPlan, seq: int
) -> None:
    whole = driven(agents, plan)
    origin = stored(tmp_path, lived(plan, seq))
    found = driven(agents, replace(plan, name="again", origin=origin))
    agree(found, whole, seq)
    at_mark = seq % plan.snapshot_interval == 0
    assert bool(found.records[Role.ENV][0].flags & FLAG_BOUNDARY) is at_mark


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("role", [Role.ENV, Role.POLICY])
def test_one_that_went_on_from_its_atom_is_replaced_as_any_other(
    agents: Agents, successions: Successions, tmp_path: Path, role: Role
) -> None:
    plan = replace(LEARNER, steps=3000)  # more than its rings hold, so that it lives until then
    whole = driven(agents, plan)
    origin = stored(tmp_path, lived(plan, 200))
    line = successions(replace(plan, name="again", origin=origin))
    line.drive({1000: lambda: line.take_over(role)})
    agree(line.agent, whole, 200)
    assert [(answer.exact, answer.why) for answer in line.takeovers[role]] == [(True, "")]


def test_an_atom_that_does_not_fit_is_named_and_nobody_begins_anew(
    agents: Agents, tmp_path: Path
) -> None:
    atom = lived(CARTPOLE, 20)
    origin = stored(tmp_path, atom)
    bare = stored(tmp_path / "bare", structs.replace(atom, env=(), policy=None))
    failures = {
        "sequence number 20, not 21": replace(CARTPOLE, origin=structs.replace(origin, seq=21)),
        "can't read": replace(CARTPOLE, origin=structs.replace(origin, path=str(tmp_path / "x"))),
        "0 environments": replace(CARTPOLE, origin=bare),
        "it has 1 environments": replace(CARTPOLE, num_envs=2, origin=origin),
        "is another one here": replace(
            CARTPOLE, env=EnvSettings(id="MountainCar-v0"), origin=origin
        ),
    }
    for number, (said, plan) in enumerate(failures.items()):
        failed = agents(replace(plan, name=f"unfit-{number}")).wire().env.failure()
        assert said in failed.error.message
        assert f"the environment of unfit-{number} can't go on from" in failed.error.message
        assert failed.error.where == "", "no key of the configuration is to blame"
    agent = agents(replace(CARTPOLE, name="unfit-policy", origin=bare)).wire()
    assert "it holds nothing of the policy" in agent.policy.failure().error.message
