"""The machine under a simulated supervisor: what `dsec.ipc.system.System` asks, answered here.

Owns the supervisor's descriptors, all processes by number, and the telling of everything that
happens to whoever watches. What is refused (no descriptor, no memory, no fork) is decided by
`refuse`, which the faults set. A number is never used twice, so a stale one is always noticed.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dsec.errors import MachineError, PeerError
from dsec.ipc.frames import RUNNER_MARK, SegmentRef
from dsec.ipc.proc import Stat
from dsec.ipc.segment import HEADER_BYTES, CrashRecord
from dsec.ipc.system import System
from tests.simulation.loop import VirtualLoop
from tests.simulation.process import SUPERVISOR, Process
from tests.simulation.things import End, File, Held, Journal, Memory, Pid, Socket, Thing, Word

FIRST_FD = 5_000_000  # beyond any that this process could have
TRACE_MAX = 20_000


class Logs:
    """The files of output: nothing is in them but what a fault says."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def open(self, stem: str, fds: list[int]) -> int:
        for _ in range(2):
            if self._machine.refused("logs"):
                raise OSError(errno.ENOSPC, "No space left on device")
            fds.append(self._machine.number(File()))
        return 0

    def tail(self, stem: str, begin: int) -> str:
        return self._machine.stderr.get(stem, "")

    def rotate(self) -> None:
        return


class Machine(System):
    """One machine with one supervisor, under one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.random = random.Random(seed)
        self.loop = VirtualLoop(self.random)
        self.loop.readable = self.readable
        self.processes: dict[int, Process] = {}  # until they are reaped
        self.journals: dict[str, Journal] = defaultdict(Journal)
        self.stderr: dict[str, str] = {}
        self.refuse: dict[str, int] = {}
        self.trace: list[str] | None = [] if trace else None
        self.make_zygote: Callable[[int, list[Thing]], Process] = Process.no_such
        self._fds: dict[int, Thing] = {}
        self._next_fd, self._next_pid = FIRST_FD, SUPERVISOR
        self._ends: list[End] = []
        self._hear: dict[str, list[Callable[..., None]]] = defaultdict(list)
        self.memories: list[Memory] = []

    # ------------------------------------------------------------ telling

    def watched_by(self, watcher: object) -> None:
        """Tell `watcher` of all events for which it has a method `on_<event>`."""
        for name in dir(watcher):
            if name.startswith("on_"):
                self._hear[name[3:]].append(getattr(watcher, name))

    def tell(self, event: str, *facts: Any) -> None:
        """Something happened."""
        if self.trace is not None and len(self.trace) < TRACE_MAX:
            words = " ".join(map(str, facts))
            self.trace.append(f"{self.loop.now - 1000.0:10.6f}  {event:<12} {words}")
        for hear in self._hear[event]:
            hear(*facts)

    def now(self) -> float:
        """CLOCK_MONOTONIC."""
        return self.loop.now

    def refused(self, what: str) -> bool:
        """Whether this call is one that fails."""
        left = self.refuse.get(what, 0)
        if left:
            self.refuse[what] = left - 1
            self.tell("refused", what)
        return bool(left)

    # ------------------------------------------------------------ descriptors

    def number(self, thing: Thing) -> int:
        """A new descriptor of the supervisor."""
        self._next_fd += 1
        self._fds[self._next_fd] = thing.hold()
        if isinstance(thing, End):
            thing.fd = self._next_fd
        return self._next_fd

    def thing(self, fd: int) -> Thing:
        """What a descriptor leads to."""
        if fd not in self._fds:
            raise OSError(errno.EBADF, f"descriptor {fd} is not open")
        return self._fds[fd]

    @property
    def open_fds(self) -> dict[int, Thing]:
        """The supervisor's descriptors."""
        return self._fds

    def close(self, fd: int) -> None:
        thing = self.thing(fd)
        del self._fds[fd]
        thing.drop()

    def pipe(self) -> tuple[int, int]:
        return self.number(File()), self.number(File())

    def pair(self) -> tuple[Any, Any]:
        if self.refused("pair"):
            raise MachineError("2 more descriptors are needed", "")
        ours, theirs = self.ends()
        return Socket(self, self.number(ours)), Socket(self, self.number(theirs))

    def ends(self) -> tuple[End, End]:
        """A new channel."""
        one, two = End(self), End(self)
        one.peer, two.peer = two, one
        return one, two

    def socket_of(self, fd: int) -> Any:
        return Socket(self, self.number(self.thing(fd)))

    def readable(self, fd: int) -> bool:
        thing = self._fds.get(fd)
        if isinstance(thing, End):
            return bool(thing.inbox) or thing.peer is None
        return isinstance(thing, Pid) and thing.process.dead

    def arrived(self, end: End) -> None:
        """An end has something to read, or is alone."""
        if end.reader is not None:
            end.reader.arrived(end)
        else:
            self.loop.look(end.fd)

    # ------------------------------------------------------------ what a child gets

    def environment(self, run: str, *, deterministic: bool = False) -> Mapping[str, str]:
        return {}

    def logs(self, folder: Path, bytes_max: int) -> Any:
        return Logs(self)

    def inherited(self, theirs: Any, lifeline: int, logs: Any, stem: str) -> tuple[list[int], int]:
        fds = [theirs.detach(), self.number(self.thing(lifeline))]
        try:
            return fds, logs.open(stem, fds)
        except OSError:
            self.close_all(fds)
            raise

    def exec_zygote(
        self, fds: Sequence[int], env: Mapping[str, str], keep: Sequence[str] | None = None
    ) -> int:
        if self.refused("exec"):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        zygote = self.make_zygote(SUPERVISOR, [self.thing(fd).hold() for fd in fds])
        return zygote.pid

    # ------------------------------------------------------------ processes

    def new_pid(self) -> int:
        self._next_pid += 1
        return self._next_pid

    def getpid(self) -> int:
        return SUPERVISOR

    def cores(self) -> int:
        return 2

    def set_subreaper(self, on: bool) -> bool:
        return False

    def children(self, pid: int) -> list[Process]:
        """Living and dead."""
        return [each for each in self.processes.values() if each.parent == pid]

    def _child(self, pid: int) -> Process:
        child = self.processes.get(pid)
        if child is None or child.parent != SUPERVISOR:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        return child

    def waitid(self, kind: int, pid: int, options: int) -> Any:
        if kind == os.P_PID:
            child = self._child(pid)
            return SimpleNamespace(si_pid=pid) if child.dead else None
        children = self.children(SUPERVISOR)
        if not children:
            raise ChildProcessError(errno.ECHILD, "No child processes")
        dead = [child.pid for child in children if child.dead]
        return SimpleNamespace(si_pid=dead[0]) if dead else None

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        child = self._child(pid)
        if not child.dead:
            return 0, 0
        return pid, self._reap(child)

    def wait4(self, pid: int, options: int) -> tuple[int, int, Any]:
        child = self._child(pid)
        assert child.dead, "the supervisor never waits in wait4()"
        return pid, self._reap(child), SimpleNamespace(ru_maxrss=1 << 10)

    def _reap(self, child: Process) -> int:
        del self.processes[child.pid]
        self.tell("reaped", child)
        return child.status

    def pidfd_open(self, pid: int) -> int:
        if self.refused("pidfd"):
            raise OSError(errno.EMFILE, "Too many open files")
        if pid not in self.processes:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return self.number(Pid(self.processes[pid]))

    def pidfd_send_signal(self, pidfd: int, signum: int) -> None:
        thing = self.thing(pidfd)
        assert isinstance(thing, Pid)
        if thing.process.pid not in self.processes:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        thing.process.signal(signum)

    def kill(self, pid: int, signum: int = signal.SIGKILL) -> None:
        if pid in self.processes:
            self.processes[pid].signal(signum)

    def killpg(self, group: int, signum: int) -> None:
        members = [each for each in self.processes.values() if each.group == group]
        if not members:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        for each in members:
            each.signal(signum)

    def read_stat(self, pid: int) -> Stat:
        process = self.processes.get(pid // 100 if pid > 100_000 else pid)
        if process is None:
            return Stat("X", 0, 0)
        exiting = process.exiting if pid < 100_000 else process.threads_exiting
        ticks = process.cpu_ticks
        return Stat(process.letter, process.group, ticks, exiting, process.parent)

    def threads_of(self, pid: int) -> list[int]:
        return [pid, pid * 100 + 1] if pid in self.processes else []

    def descendants_of(self, *pids: int, depth: int = 1 << 20) -> list[int]:
        found: list[int] = []
        level = list(pids)
        while level and depth:
            below = [each.pid for pid in level for each in self.children(pid)]
            found, level, depth = found + below, below, depth - 1
        return found

    def environment_of(self, pid: int) -> list[bytes]:
        process = self.processes.get(pid)
        marked = process is not None and process.marks
        return [f"{RUNNER_MARK}={marked}".encode()] if marked else []

    # ------------------------------------------------------------ segments

    def create_segment(
        self, name: str, role: int, data_bytes: int, *, epoch: int, start: int = 0
    ) -> Held:
        if self.refused("memory"):
            raise MachineError(f"segment {name} needs more memory than there is", "")
        memory = Memory(name, role, HEADER_BYTES + data_bytes, name.split(":")[1])
        self.memories.append(memory)
        self.tell("segment", memory, epoch)
        return Held(self, self.number(memory), memory.size, role, epoch)

    def memory(self, fd: int) -> Memory:
        thing = self.thing(fd)
        assert isinstance(thing, Memory)
        return thing

    def adopt_segment(self, fd: int, size: int, role: int, epoch: int) -> Held:
        memory = self.memory(fd)
        if not memory.sealed or memory.size != size:
            raise PeerError(f"a segment of {memory.size} bytes was handed over as one of {size}")
        return Held(self, self.readonly(fd), size, role, epoch)

    def readonly(self, fd: int) -> int:
        if self.refused("reopen"):
            raise MachineError("no descriptor is left", "")
        return self.number(self.thing(fd))

    def hand_out(
        self, segments: Iterable[Any], writer: int, epoch: int, beside: Iterable[Any] = ()
    ) -> tuple[tuple[SegmentRef, ...], list[int]]:
        refs: list[SegmentRef] = []
        fds: list[int] = []
        for each in segments:
            own = each.role == writer
            refs.append(SegmentRef(each.role, each.size, epoch if own else each.epoch, len(fds)))
            fds.append(self.number(self.thing(each.fd)))
        try:
            return tuple(refs), fds + [self.readonly(each.fd) for each in beside]
        except MachineError:
            self.close_all(fds)
            raise

    def progress_word(self, fd: int) -> Any:
        return Word(self.memory(fd))

    def read_crash(self, fd: int) -> CrashRecord | None:
        return self.memory(fd).crash
