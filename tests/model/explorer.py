"""Every interleaving of a few small programs over shared words, store buffers included.

A race of a few nanoseconds can't be tested, but it can be enumerated: a protocol is written down as
one small program for each thread, and `explore` visits every state that a machine with total store
order (x86: a store may wait while later loads pass it) can reach. What is looked for is a state in
which nobody can move and somebody is not done (a lost wake-up), or one that `bad` recognises.

Instructions, as tuples:
    store var f        var = f(registers), by way of the thread's store buffer
    load reg var       what is in its own buffer counts first
    add var reg        an atomic addition of 1, which is a full fence
    fence              waits until the buffer is empty
    set reg f          compute
    goto label f       if f(registers); `at label` marks a place
    forget             all registers
    wait var reg       futex: sleep while var holds what is in reg
    wake thread        wakes a sleeper
    until var value    blocks until var has at least this value
    block, ring        wait for an eventfd, and ring it
    kill thread        it executes nothing more; what is in its store buffer still gets to memory
    gone thread        blocks until it is killed, or done, and its store buffer is empty
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


def explore(
    programs: list[list[Op]],
    memory: dict[str, int],
    bad: Callable[[Values], bool] = lambda memory: False,
) -> State | None:
    """Visit all states; return one in which somebody sleeps for ever, or whose memory is `bad`;
    None if there is none."""
    first = State(tuple(Thread() for _ in programs), tuple(sorted(memory.items())))
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        following = successors(state, programs)
        done = all(t.pc == len(p) for t, p in zip(state.threads, programs, strict=True))
        if (not following and not done) or bad(dict(state.memory)):
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
    if name in ("fence", "add", "wait", "wake", "ring", "block", "kill") and buffer:
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
    elif name == "gone":
        other = state.threads[args[0]]
        if other.buffer or other.pc < len(args[1]):
            return []
    threads = list(state.threads)
    if name == "kill":
        victim = threads[args[0]]
        threads[args[0]] = Thread(len(args[1]), (), victim.buffer)
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
