"""The restart budget, against a budget that is counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.intensity import BACKOFF_FIRST_S, BACKOFF_MAX_S, request_restart

TIMES = st.lists(st.floats(0, 100, allow_nan=False), max_size=40).map(sorted)
JITTER = st.floats(0, 1, exclude_max=True)


@pytest.mark.guarantee("G7")
@given(TIMES, st.integers(0, 6), st.floats(0.001, 50), JITTER)
def test_a_restart_is_granted_just_when_the_span_has_room(
    times: list[float], restarts_max: int, period_s: float, jitter: float
) -> None:
    stamps: tuple[float, ...] = ()
    granted: list[float] = []
    for now in times:
        grant = request_restart(stamps, now, restarts_max, period_s, jitter)
        in_span = [each for each in granted if now - each < period_s]
        assert grant.allowed == (len(in_span) < restarts_max)
        if grant.allowed:
            granted.append(now)
        stamps = grant.stamps
        assert list(stamps) == [each for each in granted if now - each < period_s]
        assert len(stamps) <= restarts_max, "what is remembered is bounded"


@pytest.mark.guarantee("G7")
@given(st.integers(0, 5000), JITTER)
def test_the_wait_doubles_and_is_bounded(count: int, jitter: float) -> None:
    grant = request_restart((0.0,) * count, 0.0, count + 1, 1.0, jitter)
    assert grant.allowed
    whole = min(BACKOFF_FIRST_S * 2.0 ** min(count - 1, 99), BACKOFF_MAX_S) if count else 0.0
    assert whole / 2 <= grant.delay_s <= whole


def test_the_first_restart_is_immediate_and_a_quiet_period_forgives() -> None:
    first = request_restart((), 5.0, 2, 10.0, 0.0)
    assert (first.allowed, first.delay_s) == (True, 0.0)
    second = request_restart(first.stamps, 6.0, 2, 10.0, 0.0)
    assert (second.allowed, second.delay_s) == (True, BACKOFF_FIRST_S)
    spent = request_restart(second.stamps, 14.9, 2, 10.0, 0.0)
    assert not spent.allowed
    assert request_restart(spent.stamps, 15.0, 2, 10.0, 0.0).allowed


def test_no_budget_grants_nothing() -> None:
    assert not request_restart((), 0.0, 0, 60.0, 0.0).allowed
