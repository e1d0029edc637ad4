"""Env runners that are replaced though they are healthy: by the real command, compared with runs in
which nobody is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.recording import Recording
from tests.crash import runs

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G3")]

QUOTA = 700
LIMIT_MB = 512
LANDER = {"id": "LunarLander-v3"}


def agents(recycled: bool) -> list[dict[str, Any]]:
    """A walk, a lander that no codec holds, and one that leaks; `recycled` or in peace."""
    found = [
        runs.walker("walk", failover={}),
        runs.walker("two", failover={}) | {"env": {"entry": runs.WALK, "num_envs": 2}},
        runs.walker("lander", failover={}) | {"env": LANDER},
        runs.walker("leaky", failover={}) | {"env": {"entry": runs.WALK}},
    ]
    if recycled:
        for agent in found[:3]:
            agent["failover"] = {"recycle_every": 150}
        found[3] |= {
            "env": {"entry": "tests.crash.leaky:Leaky"},
            "limits": {"memory_mb": LIMIT_MB},
        }
    return found


def run(folder: Path, agents: list[dict[str, Any]]) -> runs.Finished:
    folder.mkdir()
    config = runs.write_config(folder / "config.yaml", agents, steps=QUOTA * len(agents))
    return runs.run(config, folder)


def test_a_recycled_runner_goes_on_exactly_and_counts_as_nothing_else(tmp_path: Path) -> None:
    disturbed, quiet = run(tmp_path / "a", agents(True)), run(tmp_path / "b", agents(False))
    assert (disturbed.code, quiet.code) == (0, 0), disturbed.stderr
    told = disturbed.details["agents_by_name"]
    assert disturbed.details["failovers_in_order"] == []
    assert (disturbed.summary["failovers"], disturbed.summary["deaths"]) == (0, 0)
    assert told["walk"]["recycled"] == (QUOTA - 1) // 150
    assert told["two"]["recycled"] == (QUOTA // 2 - 1) // 150
    assert 1 <= told["lander"]["recycled"] <= QUOTA // 150, "at the ends of its episodes"
    assert told["leaky"]["recycled"] >= 1, "it would have died"
    assert disturbed.summary["recycled"] == sum(each["recycled"] for each in told.values())
    assert all(each["lost"] == 0 for each in told.values())
    with Recording.open(disturbed.run_dir) as one, Recording.open(quiet.run_dir) as other:
        for name in told:
            for env in range(2 if name == "two" else 1):
                mine, theirs = one.transitions(name, env=env), other.transitions(name, env=env)
                for field in ("seq", "action", "reward", "terminated", "truncated", "obs"):
                    a, b = getattr(mine, field), getattr(theirs, field)
                    assert np.array_equal(a, b), (name, field)


def test_a_leak_is_the_end_where_nobody_is_replaced(tmp_path: Path) -> None:
    """So the leak is real."""
    found = agents(True)[3:]
    found[0]["failover"] = {"standby": "none", "restarts": {"max": 0}}
    finished = run(tmp_path / "a", found)
    assert finished.code == 1
    [death] = finished.details["deaths_in_order"]
    assert "MemoryError" in death["cause"]
