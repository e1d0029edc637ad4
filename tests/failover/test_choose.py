"""What `auto` chooses: within the budget by its own arithmetic, monotone, sane at the extremes."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.choose import GOAL_MS, NOTICE_MS, Choice, Costs, choose

times = st.floats(0, 1e8, allow_nan=False)
some = st.floats(0.01, 1e8, allow_nan=False)
all_costs = st.builds(
    Costs, step_us=times, snapshot_us=times, restore_us=times, fork_us=times, codec=st.just("ale")
)
budgets = st.floats(0, 1)
intervals = st.integers(1, 10**7)


@given(all_costs, budgets, intervals)
def test_auto_is_never_above_its_budget(costs: Costs, budget: float, most: int) -> None:
    choice = choose(costs, budget=budget, interval_max=most)
    assert choice.cost <= budget
    if choice.level in ("state", "fork"):
        assert 1 <= choice.interval <= most
        each = costs.snapshot_us if choice.level == "state" else costs.fork_us
        assert each > 0
        assert each <= budget * choice.interval * max(costs.step_us, 1e-3) * (1 + 1e-12)
    else:
        assert (choice.level, choice.interval, choice.cost) == ("replay", 0, 0.0)
    assert math.isfinite(choice.recovery_ms) and choice.notes


@given(all_costs, budgets, budgets, intervals)
def test_a_larger_budget_never_makes_recovery_longer(
    costs: Costs, one: float, other: float, most: int
) -> None:
    small, large = sorted((one, other))
    before = choose(costs, budget=small, interval_max=most)
    after = choose(costs, budget=large, interval_max=most)
    if before.level != "replay":
        assert after.level != "replay"
        if before.recovery_ms > GOAL_MS:
            assert after.recovery_ms <= before.recovery_ms


@given(all_costs, some, budgets, intervals)
def test_a_dearer_snapshot_is_never_taken_more_often(
    costs: Costs, more: float, budget: float, most: int
) -> None:
    only = dataclasses.replace(costs, fork_us=0.0, snapshot_us=max(costs.snapshot_us, 0.01))
    dear = dataclasses.replace(only, snapshot_us=only.snapshot_us + more)
    before = choose(only, budget=budget, interval_max=most)
    after = choose(dear, budget=budget, interval_max=most)
    if after.level == "state":
        assert before.level == "state"
        assert before.interval <= after.interval


@given(all_costs, budgets, intervals, st.sampled_from(["state", "fork"]))
def test_a_level_that_is_asked_for_is_given_where_it_exists(
    costs: Costs, budget: float, most: int, level: str
) -> None:
    choice = choose(costs, budget=budget, interval_max=most, standby=level)
    exists = costs.snapshot_us > 0 if level == "state" else costs.fork_us > 0
    if exists:
        assert choice.level == level
        assert choice.cost <= budget or "more than the budget" in choice.notes[-1]
    else:
        assert choice.level != level
        assert any(f"{level} was asked for" in note for note in choice.notes)


def test_levels_without_snapshots() -> None:
    costs = Costs(step_us=10, snapshot_us=30)
    assert choose(costs, budget=0.05, interval_max=500, standby="none").level == "none"
    replay = choose(costs, budget=0.05, interval_max=500, standby="replay", episode_steps=200)
    assert replay == Choice("replay", 0, 0.0, NOTICE_MS + 1.0, replay.notes)
    assert choose(costs, budget=0.0, interval_max=500).level == "replay"
    assert choose(Costs(step_us=10), budget=0.05, interval_max=500).level == "replay"


def test_typical_environments() -> None:
    """CartPole, a step of a millisecond, Pong, LunarLander, and a tool call of a minute."""
    cartpole = choose(Costs(12, 35, 300, 1500, "attributes"), budget=0.05, interval_max=512)
    assert cartpole.level == "state" and cartpole.cost < 0.03 and cartpole.recovery_ms <= GOAL_MS
    slow = choose(Costs(1000, 35, 300, 1500, "attributes"), budget=0.05, interval_max=512)
    assert slow.level == "state" and slow.cost <= 0.01
    pong = choose(Costs(362, 90, 600, 2100, "ale"), budget=0.05, interval_max=512)
    assert pong.level == "state" and pong.recovery_ms < 3
    lander = choose(Costs(63, 0, 0, 1900), budget=0.05, interval_max=2048)
    assert lander.level == "fork" and 600 < lander.interval < 610
    minute = choose(Costs(6e7, 35, 300, 1500), budget=0.05, interval_max=512)
    assert (minute.level, minute.interval) == ("state", 1)


def test_the_notes_say_what_it_costs_and_why_not_the_other() -> None:
    choice = choose(Costs(12, 35, 300, 1500, "attributes"), budget=0.05, interval_max=8192)
    text = "\n".join(choice.notes)
    assert "the codec attributes" in text and "35 µs" in text and "% of the time" in text
    assert "expected recovery" in text and "fork was not chosen" in text


@pytest.mark.parametrize(
    ("costs", "options"),
    [
        (Costs(-1.0), {}),
        (Costs(math.nan), {}),
        (Costs(1.0, math.inf), {}),
        (Costs(1.0), {"budget": 1.5}),
        (Costs(1.0), {"interval_max": 0}),
        (Costs(1.0), {"standby": "hot"}),
    ],
)
def test_nonsense_is_refused(costs: Costs, options: dict[str, object]) -> None:
    given_options = {"budget": 0.05, "interval_max": 100, **options}
    with pytest.raises(ValueError, match=r"not|negative"):
        choose(costs, **given_options)  # type: ignore[arg-type]
