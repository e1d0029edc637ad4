"""Asking for short slices: what the system notes of it, and that children don't inherit it; what
somebody else asked for with `nice` holds for all of them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from dsec.ipc import proc


def slice_ns(pid: int) -> int:
    for line in Path(f"/proc/{pid}/sched").read_text().splitlines():
        if line.startswith("se.slice"):
            return int(line.rpartition(":")[2])
    pytest.skip("this system doesn't tell a task's slice")


def in_child(report: int) -> None:
    """In a process of its own, for what is asked can't be taken back: tell both slices."""
    taken = proc.be_prompt()
    grandchild = os.fork()
    if grandchild == 0:
        os.write(report, b"%d\n" % slice_ns(os.getpid()))
        os._exit(0)
    os.waitpid(grandchild, 0)
    os.write(report, b"%d %d" % (slice_ns(os.getpid()), taken))


def test_a_prompt_process_has_short_slices_and_its_children_usual_ones() -> None:
    major, minor = map(int, platform.release().split(".")[:2])
    if (major, minor) < (6, 12):
        pytest.skip("Linux before 6.12 has no slices of a task's own")
    before = slice_ns(os.getpid())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            in_child(writing)
        finally:
            os._exit(0)
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(reading) as stream:
        child, own, taken = map(int, stream.read().split())
    assert (own, taken) == (proc.SLICE_NS, 1)
    assert child == before


def test_who_was_started_with_nice_stays_so_with_his_children() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            asked = os.nice(3)
            proc.be_prompt()
            own = os.getpriority(os.PRIO_PROCESS, 0)
            if (child := os.fork()) == 0:
                inherited = os.getpriority(os.PRIO_PROCESS, 0)
                os.write(writing, b"%d %d %d" % (asked, own, inherited))
                os._exit(0)
            os.waitpid(child, 0)
        finally:
            os._exit(0)
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(reading) as stream:
        asked, own, inherited = map(int, stream.read().split())
    assert 0 < asked == own == inherited
