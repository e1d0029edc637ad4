"""Processes as the system knows them: their state, their children, and who adopts orphans.

Owns the asking and nothing that follows from the answer. A process may be gone, or another one, by
the time that the answer is read: who acts on it holds a pidfd, or is its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37
SLICE_NS = 100_000  # the shortest that there is
NICE = -10
_SCHED_FLAG_RESET_ON_FORK = 1
_PF_EXITING = 4
_libc = ctypes.CDLL(None, use_errno=True)
GONE = (ProcessLookupError, PermissionError)


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError where the system refuses."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def set_subreaper(on: bool) -> bool:
    """Make this process adopt its orphaned descendants, or no longer; return what was before."""
    was = ctypes.c_int(0)
    _libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, int(on))
    return bool(was.value)


def be_prompt() -> bool:
    """Be scheduled soon after waking up, however many processes compute.

    The fair scheduler lets a task that asks for short slices run earlier, and less at a time
    (Linux 6.12). Who may (root) also asks for more than the same share as each of a thousand
    runners, unless whoever started us asked for less (`nice`): that holds, for children, too.
    Children have the usual slices and share again. Return whether the system took the request; an
    older one ignores the slices.
    """
    number = {"x86_64": 314, "aarch64": 274}.get(os.uname().machine)
    if number is None:
        return False
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for nice in (min(own, NICE), own) if own <= 0 else (own,):
        # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period.
        attributes = struct.pack(
            "=IIQiIQQQ", 48, os.SCHED_OTHER, _SCHED_FLAG_RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0
        )
        if _libc.syscall(number, 0, ctypes.c_char_p(attributes), 0) == 0:
            return True
    return False


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    """Signal a process that nobody watches; nothing happens if it is gone or not ours."""
    with contextlib.suppress(*GONE):
        os.kill(pid, signum)


class Exit(NamedTuple):
    """How a child ended: by `signal` (0 if none) or with `code` (-1 if a signal ended it)."""

    signal: int
    code: int
    rss_peak_bytes: int = 0


class Stat(NamedTuple):
    """What /proc says of a process, or of a thread: `state` T is stopped, Z dead and not reaped, X
    gone. `exiting`: it is within exit() for good, and executes no instruction of its program any
    more (PF_EXITING; the tearing down of its memory, which takes milliseconds, comes after that).
    """

    state: str
    group: int
    cpu_ticks: int
    exiting: bool = True
    parent: int = 0


def read_stat(pid: int) -> Stat:
    """Look at a process, or at a thread by its number."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (a Path is slow)
            text = file.read()
    except OSError:
        return Stat("X", 0, 0)
    field = text[text.rindex(b")") + 2 :].split()
    exiting = bool(int(field[6]) & _PF_EXITING)
    ticks = int(field[11]) + int(field[12])
    return Stat(field[0].decode(), int(field[2]), ticks, exiting, int(field[1]))


def threads_of(pid: int) -> list[int]:
    """The threads of a process; none if it is gone."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208
    return []


def descendants_of(*pids: int, depth: int = 1 << 20) -> list[int]:
    """The living and the dead below these processes, parents first; depth 1 is the children."""
    found: list[int] = []
    level = list(pids)
    while level and depth:
        below: list[int] = []
        for pid in level:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    below += map(int, (task / "children").read_text().split())
        found, level, depth = found + below, below, depth - 1
    return found


def environment_of(pid: int) -> list[bytes]:
    """The environment that a process was executed with, as NAME=value; empty if it is not ours."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
