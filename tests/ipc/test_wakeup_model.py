"""Every interleaving of the wake-up protocols, store buffers included.

A race of a few nanoseconds can't be tested, but it can be enumerated: the protocols of ring.c,
reader.c and group.c are written down as small programs, and a search visits every state that a
machine with total store order (x86: a store may wait while later loads pass it) can reach. A state
in which nobody can move and somebody is not done is a lost wake-up. Each fence is then left out,
and the search has to notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

AWAKE = -1
Values = Mapping[str, int]
Op = tuple[Any, ...]


@dataclass(frozen=True)
class Thread:
    pc: int = 0
    regs: tuple[tuple[str, int], ...] = ()
    buffer: tuple[tuple[str, int], ...] = ()  # stores on their way to memory, oldest first
    asleep: bool = False


@dataclass(frozen=True)
class State:
    threads: tuple[Thread, ...]
    memory: tuple[tuple[str, int], ...]


def explore(programs: list[list[Op]], memory: dict[str, int]) -> State | None:
    """Visit all states; return one in which somebody sleeps for ever, or None."""
    first = State(tuple(Thread() for _ in programs), tuple(sorted(memory.items())))
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        following = successors(state, programs)
        done = all(t.pc == len(p) for t, p in zip(state.threads, programs, strict=True))
        if not following and not done:
            return state
        for each in following:
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return None


def successors(state: State, programs: list[list[Op]]) -> list[State]:
    found = []
    for i, thread in enumerate(state.threads):
        if thread.buffer:
            (name, value), *rest = thread.buffer
            memory = tuple(sorted({**dict(state.memory), name: value}.items()))
            drained = Thread(thread.pc, thread.regs, tuple(rest), thread.asleep)
            found.append(State((*state.threads[:i], drained, *state.threads[i + 1 :]), memory))
        if not thread.asleep and thread.pc < len(programs[i]):
            found += execute(state, i, programs[i])
    return found


def execute(state: State, i: int, program: list[Op]) -> list[State]:
    """One instruction of thread i; none if it has to wait."""
    thread, memory = state.threads[i], dict(state.memory)
    regs, buffer, pc, asleep = dict(thread.regs), thread.buffer, thread.pc + 1, False
    name, *args = program[thread.pc]
    if name in ("fence", "add", "wait", "wake", "ring", "block") and buffer:
        return []  # a barrier, an atomic addition or a system call: earlier stores go first
    if name == "store":
        buffer = (*buffer, (args[0], args[1](regs)))
    elif name == "load":
        own = [value for var, value in buffer if var == args[1]]
        regs[args[0]] = own[-1] if own else memory[args[1]]
    elif name == "add":
        memory[args[1]] += 1
        regs[args[0]] = memory[args[1]]
    elif name == "set":
        regs[args[0]] = args[1](regs)
    elif name == "goto":
        pc = args[0] if args[1](regs) else pc
    elif name == "forget":
        regs.clear()
    elif name == "wait":  # futex: sleep only while memory still holds what was seen
        asleep = memory[args[0]] == regs[args[1]]
    elif name == "until":
        if memory[args[0]] < args[1]:
            return []
    elif name == "block":  # eventfd
        if not memory["events"]:
            return []
        memory["events"] = 0
    elif name == "ring":
        memory["events"] = 1
    threads = list(state.threads)
    if name == "wake":
        other = threads[args[0]]
        threads[args[0]] = Thread(other.pc, other.regs, other.buffer)
    threads[i] = Thread(pc, tuple(sorted(regs.items())), buffer, asleep)
    return [State(tuple(threads), tuple(sorted(memory.items())))]


def label(program: list[Op]) -> list[Op]:
    """Turn ("at", name) lines and the names in gotos into instruction numbers."""
    places: dict[str, int] = {}
    plain: list[Op] = []
    for op in program:
        if op[0] == "at":
            places[op[1]] = len(plain)
        else:
            plain.append(op)
    return [("goto", places[op[1]], op[2]) if op[0] == "goto" else op for op in plain]


def always(regs: Values) -> bool:
    return True


def constant(value: int) -> Callable[[Values], int]:
    return lambda regs: value


def writer(records: int, *, fence: bool, eventfd: bool) -> list[Op]:
    """dsec_commit(): tail, fence, look at the want, wake; once for each want."""
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
    """dsec_sleep_for_tail(), or dsec_arm() and an event loop: want, fence, look again, sleep."""
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
    """Wait for the action (somehow), publish, add one, wake the caller at its want."""
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
    """sleep_for_group(): count, sweep, want = count + missing, fence, count again, sleep."""
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
