"""Whose spare is constructed now: in order, and never more than there are places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.turns import STALL_S, Turns


def test_in_order_and_not_more_than_there_are_places() -> None:
    turns: Turns[str] = Turns(2)
    for key in "abcb":
        turns.ask(key)
    assert [turns.next(0.0), turns.next(0.0), turns.next(0.0)] == ["a", "b", None]
    turns.done("b")
    turns.done("b")
    assert [turns.next(0.0), turns.next(0.0)] == ["c", None]


def test_one_that_takes_long_keeps_nobody_waiting() -> None:
    turns: Turns[str] = Turns(1)
    turns.ask("a")
    turns.ask("b")
    assert turns.next(0.0) == "a"
    assert turns.next(STALL_S - 0.01) is None
    assert turns.next(STALL_S) == "b"


def test_who_is_gone_has_no_turn() -> None:
    turns: Turns[str] = Turns(1)
    turns.ask("a")
    turns.done("a")
    assert turns.next(0.0) is None


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("and"), st.integers(0, 6))))
def test_any_history(places: int, history: list[tuple[str, int]]) -> None:
    turns: Turns[int] = Turns(places)
    having: set[int] = set()
    for what, key in history:
        if what == "a":
            turns.ask(key)
        elif what == "d":
            turns.done(key)
            having.discard(key)
        elif (found := turns.next(0.0)) is not None:
            having.add(found)
        assert len(having) <= places
