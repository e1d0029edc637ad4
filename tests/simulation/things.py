"""What descriptors lead to in the simulated machine: sockets, pidfds, pipes, files, segments.

Owns reference counts and what is in each thing; who holds which by what number is the machine's.
A ring is a list of records that only grows: its tail says how many exist. Every write is told with
its writer, so that who watches sees each record come, and by whom.
"""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dsec.errors import CorruptRingError
from dsec.ipc import segment
from dsec.ipc.frames import Phase, Role

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process

END, INFRA, ASIDE = 1, 2, 4  # flags of records here
SPACES = b"spaces"


class Thing:
    """Something that descriptors, and mappings, lead to."""

    kind = "thing"

    def __init__(self) -> None:
        self.refs = 0

    def hold(self) -> Thing:
        self.refs += 1
        return self

    def drop(self) -> None:
        self.refs -= 1
        assert self.refs >= 0, f"{self.kind} was let go of too often"
        if not self.refs:
            self.gone()

    def gone(self) -> None:
        """Nobody holds it any more."""


class File(Thing):
    """A log file, /dev/null, a pipe's end."""

    kind = "file"


class Pid(Thing):
    """A pidfd."""

    kind = "pidfd"

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process


class End(Thing):
    """One end of a control channel: a SOCK_SEQPACKET socket. The supervisor's ends are read by its
    loop, those of a process call it back. `sock` is the object that a supervisor's end is."""

    kind = "socket"

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.peer: End | None = None
        self.inbox: deque[tuple[bytes, list[Thing]]] = deque()
        self.reader: Process | None = None
        self.fd = -1  # the supervisor's, if it is one of its own
        self.not_before = 0.0

    def put(self, data: bytes, things: list[Thing]) -> bool:
        """Send; False if the other end is gone."""
        peer = self.peer
        if peer is None:
            for thing in things:
                thing.drop()
            return False
        peer.inbox.append((data, things))
        self.machine.arrived(peer)
        return True

    def gone(self) -> None:
        peer, self.peer = self.peer, None
        for _, things in self.inbox:
            for thing in things:
                thing.drop()
        self.inbox.clear()
        if peer is not None:
            peer.peer = None
            self.machine.arrived(peer)


class Socket:
    """The supervisor's end as Python has it, in place of a socket.socket."""

    def __init__(self, machine: Machine, fd: int) -> None:
        self._machine, self._fd = machine, fd

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def detach(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        if self._fd >= 0:
            self._machine.close(self.detach())

    def send(self, data: bytes, flags: int) -> None:
        self._put(data, [])

    def sendmsg(
        self, data: list[bytes], ancillary: list[tuple[int, int, bytes]], flags: int
    ) -> None:
        rights = ancillary[0][2]
        fds = [int.from_bytes(rights[i : i + 4], "little") for i in range(0, len(rights), 4)]
        self._put(data[0], [self._machine.thing(fd).hold() for fd in fds])

    def _put(self, data: bytes, things: list[Thing]) -> None:
        end = self._machine.thing(self._fd)
        assert isinstance(end, End)
        if not end.put(data, things):
            raise BrokenPipeError(32, "Broken pipe")

    def recvmsg(self, size: int, room: int, flags: int) -> tuple[bytes, list[Any], int, None]:
        end = self._machine.thing(self._fd)
        assert isinstance(end, End)
        if not end.inbox:
            if end.peer is not None:
                raise BlockingIOError(11, "nothing there")
            return b"", [], 0, None
        data, things = end.inbox.popleft()
        fds = [self._machine.number(thing) for thing in things]
        for thing in things:
            thing.drop()
        rights = b"".join(fd.to_bytes(4, "little") for fd in fds)
        found = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if fds else []
        return data, found, 0, None


class Record(NamedTuple):
    """One record of a ring. `value` is what the world model computed, `state` what a successor
    that replays to here has (of an env)."""

    seq: int
    epoch: int
    value: int
    flags: int
    writer: int


class Memory(Thing):
    """A segment: a ring, the words of its header page, and cursors of its owner on others'."""

    kind = "segment"

    def __init__(self, name: str, role: int, size: int, agent: str = "") -> None:
        super().__init__()
        self.name, self.role, self.size, self.agent = name, role, size, agent
        self.records: list[Record] = []
        self.torn: Record | None = None  # behind the tail: does not exist
        self.word: tuple[int, float, int] = (0, 0.0, -1)
        self.crash: segment.CrashRecord | None = None
        self.cursors: dict[int, int] = {}
        self.kept: tuple[int, Any] | None = None  # what a snapshot file holds
        self.sealed = True
        self.waiters: list[tuple[Process, Any]] = []
        self.maps = 0

    @property
    def last(self) -> Record | None:
        """The last one that is published."""
        return self.records[-1] if self.records else None


class Held(segment.Segment):
    """A segment as the supervisor holds it; its descriptor is the machine's."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine, fd: int, size: int, role: int, epoch: int) -> None:
        super().__init__(fd, size, role, epoch)
        self.machine = machine

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self.machine.close(fd)


class Word:
    """A progress word that the supervisor maps."""

    def __init__(self, memory: Memory) -> None:
        self._memory: Memory | None = memory
        memory.maps += 1

    def read(self) -> tuple[Phase, int, int]:
        assert self._memory is not None, "a closed word was read"
        phase, since_s, seq = self._memory.word
        if phase not in Phase._value2member_map_:
            raise CorruptRingError(f"a progress word names phase {phase}")
        return Phase(phase), round(since_s * 1e9), seq

    def close(self) -> None:
        if self._memory is not None:
            self._memory.maps -= 1
            self._memory = None


@dataclass
class Journal:
    """What is on disk of one agent: survives every process. `rows` are (seq, observation, action,
    reward, what the action led to, flags)."""

    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    finished: bool = False
    clean: bool = False


ROLES = (Role.ENV, Role.POLICY, Role.REWARD)
