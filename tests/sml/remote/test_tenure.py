"""Leases: whatever is lost or late on the way, and however the two clocks run (one at most twice as
fast as the other), nobody uses what somebody else has been given.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import StaleLease
from dsec.sml.remote.tenure import Grants, Tenure

STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "deliver", "answer", "lose", "wait"]), st.floats(0.0, 4.0)),
    max_size=60,
)


@given(
    steps=STEPS,
    holder=st.tuples(st.floats(1.0, 1.9), st.floats(0, 1e6)),
    grantor=st.tuples(st.floats(1.0, 1.9), st.floats(0, 1e6)),
)
def test_nobody_holds_what_was_given_to_another(
    steps: list[tuple[str, float]], holder: tuple[float, float], grantor: tuple[float, float]
) -> None:
    lease_s, now = 10.0, 0.0
    tenure, grants = Tenure(lease_s, "it"), Grants(lease_s)
    asked: list[int] = []
    answers: list[int] = []

    def own() -> float:
        return holder[1] + now * holder[0]

    def other() -> float:
        return grantor[1] + now * grantor[0]

    for what, wait in steps:
        now += wait
        if what == "ask":
            asked.append(tenure.ask(own()))
        elif what == "deliver" and asked:
            if "a" not in grants.ended(other()):
                answers.append(asked.pop(0))
                grants.heard("a", other())
        elif what == "answer" and answers:
            tenure.granted(answers.pop())
        elif what == "lose":
            asked[:1] = []
        held = tenure.valid(own())
        free_s = grants.free_s("a")
        assert not (held and (free_s == 0.0 or other() >= free_s))
        assert ("a" in grants.ended(other())) == (free_s > 0 and other() >= free_s)


def test_a_lease_ends_by_itself_and_says_what_it_was_of() -> None:
    tenure = Tenure(10.0, "pool x")
    with pytest.raises(StaleLease, match=r"pool x is never granted"):
        tenure.require(0.0)
    tenure.granted(tenure.ask(100.0))
    tenure.require(104.9)
    with pytest.raises(StaleLease, match=r"pool x is 5\.0 s old; it may be used for 5 s"):
        tenure.require(105.0)
    tenure.granted(99)
    assert not tenure.valid(105.0)


def test_it_is_asked_for_often_enough_to_lose_some() -> None:
    tenure = Tenure(12.0, "it")
    now = 0.0
    asked = 0
    while now < 6.0:
        if tenure.due(now):
            tenure.ask(now)
            asked += 1
        now += 0.1
    assert asked == 6
