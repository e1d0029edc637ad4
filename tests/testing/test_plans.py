"""Plans of faults: drawn from the seed alone, within budgets, and the same after a file."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.config import Config
from dsec.testing.plans import (
    CLOSE,
    OPEN_MAX,
    PHASES,
    WEIGHTS,
    FaultPlan,
    PlanError,
    config_digest,
    draw_plan,
)

KINDS = tuple(WEIGHTS)


def config(*budgets: int, steps: int | None = 20_000, width: int = 1, **more: int) -> Config:
    """An agent for each budget of restarts."""
    agents = [
        {
            "name": f"a{index}",
            "env": {"id": "CartPole-v1", "num_envs": width},
            "policy": {"entry": "m:P"},
            "failover": {"restarts": {"max": budget}},
        }
        for index, budget in enumerate(budgets)
    ]
    run = {"seed": 3, **({"steps": steps} if steps else {"episodes": 9}), **more}
    return Config.model_validate({"run": run, "agents": agents})


@given(
    seed=st.integers(0, 2**63 - 1),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, unique=True),
    roles=st.lists(st.sampled_from(tuple(PHASES)), min_size=1, unique=True),
    rate=st.floats(1e-4, 1.0),
    budgets=st.lists(st.integers(0, 30), min_size=1, max_size=3).filter(any),
    width=st.integers(1, 3),
)
def test_a_plan_stays_within_its_bounds(
    seed: int, kinds: list[str], roles: list[str], rate: float, budgets: list[int], width: int
) -> None:
    drawn = config(*budgets, width=width)
    plan = draw_plan(drawn, seed=seed, kinds=kinds, rate=rate, roles=roles)
    again = draw_plan(drawn, seed=seed, kinds=kinds, rate=rate, roles=roles)
    assert plan == again, "the seed says all"
    records = 20_000 // len(budgets) // width + 2
    for index, budget in enumerate(budgets):
        mine = [fault for fault in plan.faults if fault.agent == f"a{index}"]
        assert len(mine) <= budget
        steps = [fault.step for fault in mine]
        assert steps == sorted(set(steps)), "never twice at one record"
        assert all(0 <= step < records for step in steps)
        assert all(fault.kind in kinds and fault.role in roles for fault in mine)
        assert all(fault.phase == PHASES[fault.role] for fault in mine)
        close = 0
        for before, after in itertools.pairwise(steps):
            close = close + 1 if after - before <= CLOSE else 0
            assert close < OPEN_MAX, "too many without healing"


def test_an_agents_part_follows_from_its_name_and_not_from_the_others() -> None:
    options = {"seed": 5, "kinds": KINDS, "rate": 0.01}
    alone = draw_plan(config(50, steps=5_000), **options)
    among = draw_plan(config(50, 50, 50, steps=15_000), **options)
    assert alone.faults == tuple(each for each in among.faults if each.agent == "a0")


def test_rate_and_weights_are_what_was_asked_for() -> None:
    plan = draw_plan(
        config(10**6, steps=400_000), seed=1, kinds=("segv", "hang"), rate=0.01, beyond_budget=True
    )
    assert 0.8 < len(plan.faults) / 4000 < 1.2
    counts = Counter(fault.kind for fault in plan.faults)
    assert 3 < counts["segv"] / counts["hang"] < 5


def test_a_file_gives_back_the_plan(tmp_path: Path) -> None:
    plan = draw_plan(config(9, 9), seed=2, kinds=KINDS, rate=0.01)
    plan.save(tmp_path / "plan.json")
    assert FaultPlan.load(tmp_path / "plan.json") == plan
    empty = FaultPlan(1, 2, 3, "x", ())
    empty.save(tmp_path / "empty.json")
    assert FaultPlan.load(tmp_path / "empty.json") == empty


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "is no plan of faults"),
        ('{"seed":1}', "missing required field"),
        ('{"seed":1,"run_seed":1,"steps":1,"config":"","faults":[],"schema":9}', "of version 9"),
        ('{"seed":1,"run_seed":1,"steps":1,"config":"","faults":[],"extra":1}', "unknown field"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=said):
        FaultPlan.load(tmp_path / "plan.json")


def test_what_can_not_be_planned_is_refused() -> None:
    options = {"seed": 5, "kinds": KINDS}
    with pytest.raises(PlanError, match=r"give run\.steps"):
        draw_plan(config(10, steps=None), rate=0.1, **options)
    with pytest.raises(PlanError, match="is 0 for every agent"):
        draw_plan(config(0), rate=0.1, **options)
    with pytest.raises(PlanError, match="more than 10,000 faults"):
        draw_plan(config(10**6, steps=200_000), rate=1.0, **options)


def test_the_digest_is_of_what_is_run_and_not_of_how_long() -> None:
    same = config_digest(config(10, steps=500))
    assert same == config_digest(config(10))
    assert same != config_digest(config(11))
