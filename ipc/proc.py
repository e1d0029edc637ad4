"""What /proc says of processes: their state, their children, what they were started with.

Owns the reading of it and nothing that follows from it. A process may be gone, or another one, by
the time that the answer is read: who acts on it holds a pidfd, or is its parent.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """What /proc says of a process: `state` T is stopped, Z dead and not reaped, X gone."""

    state: str
    group: int
    cpu_ticks: int


def read_stat(pid: int) -> Stat:
    """Look at a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (a Path is slow)
            text = file.read()
    except OSError:
        return Stat("X", 0, 0)
    field = text[text.rindex(b")") + 2 :].split()
    return Stat(field[0].decode(), int(field[2]), int(field[11]) + int(field[12]))


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
