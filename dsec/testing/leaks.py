"""What a piece of work may not leave behind: processes, descriptors, shared memory, tasks, threads.

Owns the snapshot that is compared with a later one. Must know nothing of the rest of dsec: it looks
at /proc and at the interpreter only, so that it also catches what dsec itself has lost track of. It
is here because every promise of guarantee G8 is cheap to break in a place where nobody looks.

How a process is recognised as ours: the work runs with its own value of `DSEC_TEST_MARK` in the
environment. Whatever it starts inherits it through any number of forks, execs, sessions and
re-parentings, and /proc/PID/environ shows it. Direct children are found by their parent as well,
which also shows zombies.

Shared memory has no such sign. Where several processes test side by side (workers of pytest-xdist,
or another checkout), a name that nobody uses may be what another's test will still resume from: it
is a leak only if it is there when the tests that ran beside this one have ended, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "DSEC_TEST_MARK"
BOARD = "DSEC_TEST_BOARD"  # a folder; empty if nobody else tests
GRACE_S = 3.0  # what the operating system may take to tear down what the work has already ended
OTHERS_S = 60.0  # what the tests of other processes may take to end
SHARED = "shared memory"
PROC = Path("/proc")
SHM = Path("/dev/shm")

# Descriptors that a library opens once in a process and keeps on purpose. Each has its reason.
HARMLESS_TARGETS = {
    "/dev/urandom": "OpenSSL and old glibc keep it open for the life of the process",
    "/dev/random": "as /dev/urandom",
    "/dev/null": "pytest and faulthandler keep one for redirections",
}


def process_line(pid: int) -> str:
    """Describe a process in words; works for zombies, too."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"process {pid} (gone meanwhile)"
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
    kind = "zombie" if state == "Z" else f"state {state}"
    return f"process {pid} ({kind}, parent {parent}): {command.strip() or f'[{name}]'}"


def parent_of(pid: int) -> int:
    """The parent's pid, 0 if the process is gone."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def all_pids() -> list[int]:
    """Every process that there is."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def children_of(pid: int) -> set[int]:
    """Direct children, zombies included."""
    return {other for other in all_pids() if parent_of(other) == pid}


def marked(mark: str) -> set[int]:
    """Living processes (other than this one) whose environment carries this mark."""
    needle = f"{MARK}={mark}\0".encode()
    found = set()
    for pid in all_pids():
        if pid == os.getpid():
            continue
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue  # gone, a kernel thread, or somebody else's
        if needle in environment + b"\0":
            found.add(pid)
    return found


def open_descriptors() -> dict[int, str]:
    """Descriptors of this process, and what they lead to, but for the harmless ones."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the descriptor of this very listing
        if target not in HARMLESS_TARGETS:
            found[int(entry.name)] = target
    return found


def memfd_mappings() -> Counter[str]:
    """Mapped memfds of this process by name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Counter(line.split("/memfd:", 1)[1] for line in lines if "/memfd:" in line)


def shm_entries() -> set[str]:
    """Names in /dev/shm that are this user's."""
    try:
        return {entry.name for entry in SHM.iterdir() if entry.stat().st_uid == os.geteuid()}
    except OSError:
        return set()


def used_elsewhere(name: str, ours: set[int]) -> bool:
    """Whether a living process outside this test has that /dev/shm entry mapped or open."""
    path = str(SHM / name)
    for pid in all_pids():
        if pid in ours or pid == os.getpid():
            continue
        try:
            if path in (PROC / str(pid) / "maps").read_text():
                return True
            descriptors = (PROC / str(pid) / "fd").iterdir()
            if any(str(fd.readlink()) == path for fd in descriptors):
                return True
        except OSError:
            continue
    return False


def pending_tasks() -> list[asyncio.Task[Any]]:
    """Tasks that are not done, in any loop.

    Up to 3.13 asyncio keeps registries of all tasks; where they are gone, the heap is searched.
    """
    names = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
    registries = [getattr(asyncio.tasks, name) for name in names if hasattr(asyncio.tasks, name)]
    objects: Iterable[Any] = [task for registry in registries for task in list(registry)]
    if not registries:
        objects = [item for item in gc.get_objects() if isinstance(item, asyncio.Task)]
    return [task for task in objects if not task.done()]


@dataclass
class Snapshot:
    """What there is now; `leaks_since` compares a later state with it."""

    mark: str
    children: set[int] = field(default_factory=lambda: children_of(os.getpid()))
    descriptors: dict[int, str] = field(default_factory=open_descriptors)
    mappings: Counter[str] = field(default_factory=memfd_mappings)
    shm: set[str] = field(default_factory=shm_entries)
    tasks: set[int] = field(default_factory=lambda: {id(task) for task in pending_tasks()})
    threads: set[threading.Thread] = field(default_factory=lambda: set(threading.enumerate()))

    def processes(self) -> set[int]:
        """Processes that were not there when this snapshot was taken, ours by parent or mark."""
        return (children_of(os.getpid()) - self.children) | marked(self.mark)

    def leaks(self) -> list[str]:
        """One sentence for each thing that is there now and was not there then."""
        ours = self.processes()
        found = [process_line(pid) for pid in sorted(ours)]
        found += [
            f"descriptor {fd}: {target}"
            for fd, target in sorted(open_descriptors().items())
            if self.descriptors.get(fd) != target
        ]
        found += [
            f"memfd mapping {name} ({count} more than before)"
            for name, count in (memfd_mappings() - self.mappings).items()
        ]
        found += [
            f"{SHARED} {SHM / name}"
            for name in sorted(shm_entries() - self.shm)
            if not used_elsewhere(name, ours)
        ]
        found += [f"asyncio {task!r}" for task in pending_tasks() if id(task) not in self.tasks]
        threads = set(threading.enumerate()) - self.threads
        return found + [f"thread {thread!r}" for thread in threads]


def kill_and_reap(pids: Iterable[int], within_s: float = 5.0) -> None:
    """End leaked processes, so that one bad test does not spoil the next."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # gone in the meantime
        deadline = time.monotonic() + within_s
        while parent_of(pid) == os.getpid() and time.monotonic() < deadline:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    break
            except ChildProcessError:
                break
            threading.Event().wait(0.005)


def board() -> Path | None:
    """The folder where each process that tests writes which test it is at; None: it is alone."""
    folder = os.environ.get(BOARD, str(Path(tempfile.gettempdir()) / f"dsec-tests-{os.geteuid()}"))
    return Path(folder) if folder else None


@contextlib.contextmanager
def at_work(mark: str) -> Iterator[None]:
    """Tell the other processes that a test runs here."""
    if (folder := board()) is None:
        yield
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    mine = folder / str(os.getpid())
    mine.write_text(mark)
    try:
        yield
    finally:
        mine.unlink(missing_ok=True)


def beside() -> set[str]:
    """The tests that other living processes are at."""
    found: set[str] = set()
    if (folder := board()) is None or not folder.exists():
        return found
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if not (PROC / each.name).exists():
                each.unlink()
            elif each.name != str(os.getpid()):
                found.add(each.read_text())
    return found


def until_others_ended(limit_s: float) -> None:
    """Wait until every test that another process is at now has ended."""
    running = beside()
    deadline = time.monotonic() + limit_s
    while running & beside() and time.monotonic() < deadline:
        threading.Event().wait(0.05)


def left_shared(before: set[str]) -> list[str]:
    """Shared memory that was not there before and that nobody uses, nor another process's test."""

    def left() -> list[str]:
        new = sorted(shm_entries() - before)
        return [f"{SHARED} {SHM / name}" for name in new if not used_elsewhere(name, set())]

    if left():
        until_others_ended(OTHERS_S)
    return left()


def settled(find: Callable[[], list[str]]) -> list[str]:
    """What is still found after a collection and a grace for the operating system."""
    if not find():
        return []
    gc.collect()
    deadline = time.monotonic() + GRACE_S
    while (found := find()) and time.monotonic() < deadline:
        threading.Event().wait(0.02)  # nothing can be awaited here: the leak is by definition lost
    return found


def settled_leaks(before: Snapshot) -> list[str]:
    """A sentence for each thing that is there for good and was not there before."""
    found = settled(before.leaks)
    if found and all(each.startswith(SHARED) for each in found):
        until_others_ended(OTHERS_S)
        found = before.leaks()
    return found


@contextlib.contextmanager
def marked_work() -> Iterator[Snapshot]:
    """What is started within carries a mark of its own; gives the snapshot of before."""
    mark, outer = uuid.uuid4().hex, os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield Snapshot(mark)
    finally:
        if outer is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = outer
