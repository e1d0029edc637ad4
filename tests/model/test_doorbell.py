"""The wake-up protocols of rings and of a vector's doorbell, every interleaving of them.

The programs below are ring.c, reader.c and group.c step by step; which lines each stands for is
said at it. A state in which nobody can move and somebody is not done is a lost wake-up. Each fence
is then left out, and the search has to notice.
"""

from __future__ import annotations

import pytest

from tests.model.explorer import AWAKE, Op, always, constant, explore, label


def writer(records: int, *, fence: bool, eventfd: bool) -> list[Op]:
    """dsec_commit() in ring.c, for each record: the tail (the store at SYNC POINT tail of
    dsec_publish), dsec_fence(), the want (dsec_wake_followers), and for a want that is reached and
    was not answered before (`woken`) dsec_wake, or the eventfd."""
    program: list[Op] = [("set", "woken", constant(AWAKE))]
    for k in range(1, records + 1):
        program += [
            ("store", "tail", constant(k)),
            *([("fence",)] if fence else []),
            ("load", "want", "want"),
            (
                "goto",
                f"asleep{k}",
                lambda r, k=k: AWAKE != r["want"] != r["woken"] and k >= r["want"],
            ),
            ("goto", f"next{k}", always),
            ("at", f"asleep{k}"),
            ("set", "woken", lambda r: r["want"]),
            ("ring",) if eventfd else ("wake", 1),
            ("at", f"next{k}"),
        ]
    return label(program)


def reader(records: int, *, fence: bool, eventfd: bool) -> list[Op]:
    """dsec_sleep_for_tail() in reader.c, or dsec_arm() and an event loop: store the want,
    dsec_fence(), look at the tail once more, sleep on it while it holds what was seen; at the end
    the want is AWAKE again."""
    program: list[Op] = []
    for k in range(1, records + 1):
        program += [
            ("at", f"loop{k}"),
            ("store", "want", constant(k)),
            *([("fence",)] if fence else []),
            ("load", "tail", "tail"),
            ("goto", f"there{k}", lambda r, k=k: r["tail"] >= k),
            ("block",) if eventfd else ("wait", "tail", "tail"),
            ("goto", f"loop{k}", always),
            ("at", f"there{k}"),
            ("store", "want", constant(AWAKE)),
        ]
    return label(program)


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("eventfd", [False, True], ids=["futex", "eventfd"])
def test_no_wake_up_is_lost(eventfd: bool) -> None:
    memory = {"tail": 0, "want": AWAKE, "events": 0}
    programs = [
        writer(3, fence=True, eventfd=eventfd),
        reader(3, fence=True, eventfd=eventfd),
    ]
    assert explore(programs, memory) is None


@pytest.mark.parametrize(
    ("writers", "readers", "eventfd"),
    [(False, True, False), (False, True, True), (True, False, True)],
    ids=["futex, writer's", "eventfd, writer's", "eventfd, reader's"],
)
def test_a_missing_fence_is_found(writers: bool, readers: bool, eventfd: bool) -> None:
    """The reader's fence before a futex is not in the list: the operating system has one too."""
    memory = {"tail": 0, "want": AWAKE, "events": 0}
    programs = [
        writer(2, fence=writers, eventfd=eventfd),
        reader(2, fence=readers, eventfd=eventfd),
    ]
    lost = explore(programs, memory)
    assert lost is not None
    assert lost.threads[0].pc == len(programs[0]), "the writer is done and its reader sleeps on"


# ---------------------------------------------------------------- the group's doorbell


def env(i: int, steps: int) -> list[Op]:
    """ring_group() in ring.c after dsec_commit(): wait for the action (somehow), the tail, the
    atomic addition at SYNC POINT group, the want, dsec_wake."""
    program: list[Op] = []
    for k in range(1, steps + 1):
        program += [
            ("until", "action", k),
            ("store", f"tail{i}", constant(k)),
            ("add", "count", "count"),
            ("load", "want", "want"),
            ("goto", f"next{k}", lambda r: r["want"] == AWAKE or r["count"] < r["want"]),
            ("wake", 0),
            ("at", f"next{k}"),
            ("forget",),
        ]
    return label(program)


def caller(steps: int, *, count_first: bool) -> list[Op]:
    """sleep_for_group() in group.c: the count, the sweep over all tails, want = count + missing,
    the fence, the count again, sleep on it while it holds what was seen."""
    program: list[Op] = []
    sweep: list[Op] = [("load", "t1", "tail1"), ("load", "t2", "tail2")]
    for k in range(1, steps + 1):
        count: Op = ("load", "count", "count")
        program += [
            ("store", "action", constant(k)),
            ("at", f"loop{k}"),
            ("forget",),
            *([count, *sweep] if count_first else [*sweep, count]),
            ("set", "missing", lambda r, k=k: (r["t1"] < k) + (r["t2"] < k)),
            ("goto", f"there{k}", lambda r: r["missing"] == 0),
            ("store", "want", lambda r: r["count"] + r["missing"]),
            ("fence",),
            ("load", "again", "count"),
            ("goto", f"loop{k}", lambda r: r["again"] != r["count"]),
            ("wait", "count", "count"),
            ("goto", f"loop{k}", always),
            ("at", f"there{k}"),
            ("forget",),
            ("store", "want", constant(AWAKE)),
        ]
    return label(program)


GROUP = {"action": 0, "count": 0, "want": AWAKE, "tail1": 0, "tail2": 0}


@pytest.mark.guarantee("G2")
@pytest.mark.slow
def test_no_group_wake_up_is_lost() -> None:
    """Two steps, so that an addition that is late from the first is there in the second."""
    assert explore([caller(2, count_first=True), env(1, 2), env(2, 2)], dict(GROUP)) is None


def test_a_count_read_after_the_sweep_is_found() -> None:
    assert explore([caller(2, count_first=False), env(1, 2), env(2, 2)], dict(GROUP)) is not None
