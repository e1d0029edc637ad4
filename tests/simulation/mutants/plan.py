"""Mutants of the plan of failover and of what it is made of: budgets, fences, standbys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from dsec.failover import plan
from dsec.failover.detect import Deadlines, Lateness
from dsec.failover.plan import Do, Event
from tests.simulation.mutants import instead, mutant, nothing


@mutant
def resume_before_fence() -> Iterator[None]:
    """Who has taken over serves, whether or not the lost one is reaped."""

    def resumed(original: Any, seat: plan.Seat) -> Any:
        served, acts = original(replace(seat, fenced=seat.unreaped))
        return replace(served, fenced=seat.fenced), acts

    with instead(plan, "_resumed", resumed):
        yield


@mutant
def one_restart_too_many() -> Iterator[None]:
    """The budget is off by one."""
    with instead(
        plan,
        "request_restart",
        lambda call, stamps, now, most, *rest: call(stamps, now, most + 1, *rest),
    ):
        yield


@mutant
def one_restart_too_few() -> Iterator[None]:
    """The budget is off by one, the other way."""
    with instead(
        plan,
        "request_restart",
        lambda call, stamps, now, most, *rest: call(stamps, now, max(0, most - 1), *rest),
    ):
        yield


@mutant
def budget_never_refilled() -> Iterator[None]:
    """A stamp counts for ever."""
    with instead(
        plan,
        "request_restart",
        lambda call, stamps, now, most, period_s, jitter: call(stamps, now, most, 1e9, jitter),
    ):
        yield


@mutant
def budget_forgets() -> Iterator[None]:
    """No stamp counts."""
    with instead(plan, "request_restart", lambda call, stamps, *rest: call((), *rest)):
        yield


@mutant
def standby_not_made_again() -> Iterator[None]:
    """After a failover nobody asks for a new spare."""

    def resumed(original: Any, seat: plan.Seat) -> Any:
        served, acts = original(seat)
        return served, tuple(act for act in acts if act.do is not Do.LATER)

    with instead(plan, "_resumed", resumed):
        yield


@mutant
def lost_spare_not_replaced() -> Iterator[None]:
    """A spare that died is forgotten."""

    def beside(
        original: Any, role: Any, most: int, seat: plan.Seat, event: Any, *rest: float
    ) -> Any:
        after, acts = original(role, most, seat, event, *rest)
        return after, () if event is Event.STANDBY_LOST else acts

    with instead(plan, "_beside", beside):
        yield


@mutant
def poison_not_seen() -> Iterator[None]:
    """A step that was fatal twice is tried again."""
    with mock.patch.object(plan.Seat, "poisoned", False):
        yield


@mutant
def given_up_in_silence() -> Iterator[None]:
    """Who is doomed is never given up."""

    def reaped(original: Any, seat: plan.Seat, event: Any) -> Any:
        after, acts = original(seat, event)
        return after, tuple(act for act in acts if act.do is not Do.GIVE_UP)

    with instead(plan, "_reaped", reaped):
        yield


@mutant
def rest_without_end() -> Iterator[None]:
    """A wait before the next try has no end."""

    def decide(original: Any, where: Any, role: Any, event: Any, *rest: float) -> Any:
        return (where, ()) if event is Event.RESTED else original(where, role, event, *rest)

    with instead(plan, "decide", decide):
        yield


@mutant
def fence_counts_for_another() -> Iterator[None]:
    """That one lost incarnation is fenced counts for all of them."""

    def decide(original: Any, where: Any, role: Any, event: Any, *rest: float) -> Any:
        if isinstance(event, plan.Reaped):
            seat = where.seats[role]
            where = replace(where, seats={**where.seats, role: replace(seat, unreaped=1)})
        return original(where, role, event, *rest)

    with instead(plan, "decide", decide):
        yield


@mutant
def deadlines_of_steps_forgotten() -> Iterator[None]:
    """Nobody looks at progress words."""
    with nothing(Deadlines, "follow"):
        yield


@mutant
def lateness_not_counted() -> Iterator[None]:
    """A supervisor that was stopped takes its agents for hung."""
    with nothing(Lateness, "after", 0.0):
        yield
