"""What a policy or reward that takes over says of itself. Whole takeovers are in
test_actors_take_over.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from dsec.ipc.frames import Kept
from dsec.runners.heir_actor import Answered, Heritage


def test_of_answers_that_come_out_differently_the_first_is_told() -> None:
    sent: list[Kept] = []
    session = cast(Any, SimpleNamespace(channel=SimpleNamespace(send=sent.append)))
    answered = Answered(cast(Any, SimpleNamespace(tail=0)), Heritage(seq=9))
    assert not sent
    for n in (7, 8, 9):
        answered.differed(session, f"action {n}")
    (kept,) = sent
    assert kept.protection is not None
    assert kept.protection.differs == "action 7 came out differently when it was repeated"
