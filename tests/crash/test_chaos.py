"""Faults that the configuration asks for, in every role: the run ends as one without them."""

from __future__ import annotations

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
