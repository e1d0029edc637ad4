"""Fence, promote, resume: no record of a seat is ever written by two, whatever is killed when.

Three threads over shared words: the old incarnation, which publishes; the supervisor; and the
successor. What each step stands for in the code:

    old          dsec_publish() in ipc/ring.c: payload and header, then the tail (SYNC POINT tail);
                 its own position is private (`b->tail`), read when it attached
    supervisor   Runner "kill" (SIGKILL by pidfd); then Reaper says that it is reaped, or
                 past_writing, which is `gone` here; then Recovery._resume sends Resume
    successor    Takeover: attaches and replays (reads the tail); after Resume it attaches its own
                 outbox (dsec_outbox_open() in ipc/segment.c reads the tail) and publishes

`seen<k>` follows the tail that makes record k visible, in the old one's program and so in its store
buffer. A record that was seen and is written by the successor, too, is what may not be. The kill
comes at any instruction of the old one, also between payload and tail, and its store buffer may
drain after it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.model.explorer import Op, constant, explore, label

RECORDS = 3
MEMORY = {
    "tail": 0,
    "resume": 0,
    "taken": 0,
    **{f"{name}{k}": 0 for name in ("old", "seen", "new") for k in range(RECORDS + 1)},
}


def old() -> list[Op]:
    """Publish records, one after the other, until it is killed."""
    program: list[Op] = []
    for k in range(RECORDS):
        program += [
            ("store", f"old{k}", constant(1)),
            ("store", "tail", constant(k + 1)),
            ("store", f"seen{k}", constant(1)),
        ]
    return program


def supervisor(old_one: list[Op], *, fence: bool = True, kill: bool = True) -> list[Op]:
    """Kill, wait until it is gone, say Resume to who has taken over."""
    return [
        *([("kill", 0, old_one)] if kill else []),
        ("until", "taken", 1),
        *([("gone", 0, old_one)] if fence else []),
        ("store", "resume", constant(1)),
    ]


def successor(*, look_again: bool = True) -> list[Op]:
    """Take over where the tail was, wait for Resume, publish one record at the tail."""
    program: list[Op] = [
        ("load", "at", "tail"),
        ("store", "taken", constant(1)),
        ("until", "resume", 1),
        *([("load", "at", "tail")] if look_again else []),
    ]
    for k in range(RECORDS + 1):
        program += [
            ("goto", f"not{k}", lambda r, k=k: r["at"] != k),
            ("store", f"new{k}", constant(1)),
            ("store", "tail", constant(k + 1)),
            ("at", f"not{k}"),
            ("set", "at", lambda r, k=k: -1 if r["at"] == k else r["at"]),
        ]
    return label(program)


def programs(*, fence: bool = True, kill: bool = True, look_again: bool = True) -> list[list[Op]]:
    """The three of them."""
    first = old()
    second = supervisor(first, fence=fence, kill=kill)
    return [first, second, successor(look_again=look_again)]


def overwritten(memory: Mapping[str, int]) -> bool:
    """A record that was visible has been written by both."""
    return any(memory[f"seen{k}"] and memory[f"new{k}"] for k in range(RECORDS))


@pytest.mark.guarantee("G2", "G5")
def test_no_record_is_written_twice() -> None:
    assert explore(programs(), dict(MEMORY), overwritten) is None


@pytest.mark.parametrize(
    "left_out",
    [{"fence": False}, {"kill": False, "fence": False}, {"look_again": False}],
    ids=["resumed before the fence", "never killed", "the tail not read again after Resume"],
)
def test_what_is_left_out_is_found(left_out: dict[str, bool]) -> None:
    found = explore(programs(**left_out), dict(MEMORY), overwritten)
    assert found is not None and overwritten(dict(found.memory))


def test_a_store_buffer_outlives_its_thread() -> None:
    """That a thread executes nothing more is not enough: what it had stored must be in memory."""
    first, second, third = programs()
    dead = [("kill", 0, first) if op[0] == "gone" else op for op in second]
    assert explore([first, dead, third], dict(MEMORY), overwritten) is not None
