"""Faults that the configuration asks for, in every role: the run ends as one without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.crash import runs

pytestmark = pytest.mark.slow
QUOTA, CHANCE = 1500, 0.004


def run(folder: Path, **chaos: Any) -> runs.Finished:
    folder.mkdir()
    restarts = {"restarts": {"max": 1000}}
    agents = [
        runs.walker("plain", failover=restarts),
        runs.walker(
            "own",
            failover=restarts,
            policy={"entry": "tests.crash.chaotic:Learner"},
            reward={"entry": "tests.crash.chaotic:Halved"},
        ),
    ]
    extra = {"chaos": chaos} if chaos else {}
    config = runs.write_config(folder / "c.yaml", agents, steps=QUOTA * len(agents), **extra)
    return runs.run(config, folder)


@pytest.mark.guarantee("G3", "G12")
def test_policies_and_rewards_have_faults_where_that_is_asked_for(tmp_path: Path) -> None:
    """One that learns with an own reward, and one of which nothing is asked but to pass it on."""
    roles = ["policy", "reward"]
    hit = run(tmp_path / "hit", segv_per_steps=CHANCE, roles=roles)
    calm = run(tmp_path / "calm")
    assert (hit.code, calm.code) == (0, 0), hit.stderr
    failovers = hit.details["failovers_in_order"]
    assert {(each["agent"], each["role"]) for each in failovers} == {
        (agent, role) for agent in ("plain", "own") for role in roles
    }, "the environments were spared"
    assert all(each["exact"] for each in failovers), [each["why"] for each in failovers]
    chains = [
        {name: agent["chain"] for name, agent in each.details["agents_by_name"].items()}
        for each in (hit, calm)
    ]
    assert chains[0] == chains[1]
    assert all(chains[0].values())


PLAN = [
    ("env", "reset", 0, "kill", "before"),
    ("env", "step", 11, "segv", "before"),
    ("env", "step", 30, "exit", "after"),
    ("env", "reset", 60, "exception", "before"),
    ("policy", "act", 25, "kill", "after"),
    ("policy", "learn", 41, "segv", "before"),
    ("policy", "learn", 90, "exception", "after"),
    ("reward", "reward", 33, "abort", "before"),
    ("reward", "reward", 70, "exit", "after"),
]


@pytest.mark.guarantee("G3", "G12")
def test_planned_faults_happen_where_they_were_planned_and_change_nothing(tmp_path: Path) -> None:
    """In each phase of each role, before and after the call; each of them once."""
    agent = runs.walker(
        "own",
        failover={"restarts": {"max": 1000}},
        policy={"entry": "tests.crash.chaotic:Learner"},
        reward={"entry": "tests.crash.chaotic:Halved"},
    )
    faults = [
        {"agent": "own", "role": role, "phase": phase, "step": at, "kind": kind, "instant": instant}
        for role, phase, at, kind, instant in PLAN
    ]
    chains = []
    for name, plan in (("hit", faults), ("calm", [])):
        (folder := tmp_path / name).mkdir()
        config = runs.write_config(folder / "c.yaml", [agent], steps=150, chaos={"faults": plan})
        done = runs.run(config, folder)
        assert done.code == 0, done.stderr
        chains.append(done.details["agents_by_name"]["own"]["chain"])
        if plan:
            failovers = done.details["failovers_in_order"]
            assert all(each["exact"] for each in failovers), failovers
            assert len(failovers) == len(PLAN)
    left = [path for path in (tmp_path / "hit" / "run" / "chaos").rglob("*") if path.is_file()]
    at = {(path.name, json.loads(path.read_text())["seq"]) for path in left}
    exact = {(f"{at}.{phase}.{when}.{kind}", at) for _, phase, at, kind, when in PLAN}
    # An episode has 25 steps: the reset that follows record 60 is the one at its end.
    assert at == exact - {("60.reset.before.exception", 60)} | {("60.reset.before.exception", 74)}
    assert chains[0] == chains[1]
