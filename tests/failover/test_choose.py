"""What `auto` chooses: a table of environments with what they cost, as measured, and the oracle's
two questions put to any costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.choose import TOLERANCE, Costs, choose

BUDGET = 0.035

# name -> costs in microseconds, level, the longest recovery in milliseconds that is all right
TABLE = {
    "CartPole": (Costs(12, 30, 400, fork=1500), "state", 2),
    "Pong": (Costs(400, 90, 500, fork=2100), "state", 2),
    "HalfCheetah": (Costs(120, 40, 400, fork=1700), "state", 2),
    "LunarLander": (Costs(64, begin=200, again=1200, fork=2500, episode=100), "replay", 6),
    "BipedalWalker, which has no other way": (Costs(350, fork=2500), "fork", 45),
    "long episodes of dear steps": (
        Costs(2000, begin=500, again=3000, fork=4000, episode=5000),
        "fork",
        120,
    ),
    "a state of a gigabyte": (Costs(3000, 300_000, 300_000, fork=19_000), "fork", 300),
    "cheap steps, dear to fork, episodes of three steps": (
        Costs(1, begin=200, again=300, fork=3000, episode=3),
        "none",
        0,
    ),
    "nothing at all": (Costs(10), "none", 0),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_table_of_environments(name: str) -> None:
    costs, level, within_ms = TABLE[name]
    choice = choose(costs, BUDGET)
    assert (choice.level, choice.recovery_ms <= within_ms) == (level, True), choice
    assert choice.why.startswith(level) or level == "none"
    assert (choice.interval > 0) == (level != "none")


def test_what_is_refused_is_said_with_its_price() -> None:
    choice = choose(TABLE["cheap steps, dear to fork, episodes of three steps"][0], BUDGET)
    assert "replay would take" in choice.why and "fork would take" in choice.why
    assert "the budget is 3.5%" in choice.why
    choice = choose(TABLE["LunarLander"][0], BUDGET)
    assert "where fork in" in choice.why


micros = st.floats(0.0, 1e7)


@given(
    st.builds(
        Costs,
        step=st.floats(1e-2, 1e7),
        capture=micros,
        restore=micros,
        begin=micros,
        again=micros,
        fork=micros,
        episode=st.floats(0.0, 1e6),
        reach=st.integers(1, 1 << 20),
    ),
    st.floats(1e-6, 1.0),
    st.floats(0.0, 1e4),
)
def test_it_costs_no_more_than_it_may_and_is_the_quickest(
    costs: Costs, budget: float, between_us: float
) -> None:
    choice = choose(costs, budget, between_us)
    assert choice.share <= budget * TOLERANCE
    if choice.level == "fork":
        assert costs.fork
    if choice.level == "replay":
        assert costs.begin and costs.episode
    if choice.level == "state":
        assert costs.capture
        alone = choose(costs._replace(begin=0.0, fork=0.0), budget, between_us)
        assert alone[:4] == choice[:4], "the others change nothing about it"
    dearer = choose(costs, budget / 2, between_us)
    assert dearer.level == "none" or choice.level != "none"
