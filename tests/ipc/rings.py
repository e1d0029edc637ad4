"""Segments, handles and child processes for the tests of rings.

Owns the plumbing only; what a ring must do stands in the tests. Children are forks of the test
process: they report by exit code, every one of their waits has a limit, and none outlives its test.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from dsec.ipc import segment
from dsec.ipc.frames import Role
from dsec.ipc.ring import Outbox, Peer, Reader

LIMIT_S = 20.0
FULL_ROLES = (Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER)
STARTS = (0, 2**32 - 1024, 2**63 - 1024, 2**64 - 1024)


_TABLE = bytes((i * 7 + (i >> 8)) & 0xFF for i in range(1 << 16))


class Wires:
    """The segments of one agent, and handles on them as any of its processes would open them.

    Closes everything at the end; a handle made in a child is the child's.
    """

    def __init__(
        self, capacity: int = 4096, *, start: int = 0, roles: tuple[Role, ...] = FULL_ROLES
    ) -> None:
        self.segments = {
            role: segment.create(f"test-{role.name}", role, capacity, epoch=1, start=start)
            for role in roles
        }
        self._open: list[Outbox | Peer] = []

    def outbox(self, role: Role, *, epoch: int | None = None, spin: int = 50) -> Outbox:
        made = self.segments[role]
        outbox = Outbox(made.fd, made.size, role, epoch=epoch)
        outbox.spin = spin
        self._open.append(outbox)
        return outbox

    def peer(self, role: Role) -> Peer:
        fd = segment.readonly(self.segments[role].fd)
        try:
            peer = Peer(fd, self.segments[role].size, role)
        finally:
            os.close(fd)
        self._open.append(peer)
        return peer

    def writer(self, role: Role, *readers: Role, epoch: int | None = None) -> Outbox:
        """An outbox that these readers hold back."""
        outbox = self.outbox(role, epoch=epoch)
        for reader in readers:
            outbox.add_reader(self.peer(reader))
        return outbox

    def reader(self, mine: Role | Outbox, of: Role) -> Reader:
        outbox = mine if isinstance(mine, Outbox) else self.outbox(mine)
        return Reader(outbox, self.peer(of))

    def poke(self, role: Role, offset: int, data: bytes) -> None:
        """Write into a segment as its (hostile) owner could."""
        os.pwrite(self.segments[role].fd, data, offset)

    def close(self) -> None:
        for handle in self._open:
            handle.close()
        for each in self.segments.values():
            each.close()

    def __enter__(self) -> Wires:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def put(outbox: Outbox, seq: int, payload: bytes, *, kind: int = 1, flags: int = 0) -> None:
    """Claim, write and commit one record."""
    offset = outbox.claim(len(payload), LIMIT_S)
    outbox.buffer[offset : offset + len(payload)] = payload
    outbox.commit(seq, kind, flags, len(payload))


def payload_of(reader: Reader) -> bytes:
    """The current record's payload."""
    return bytes(reader.peer.buffer[reader.offset : reader.offset + reader.nbytes])


def pattern(seq: int, nbytes: int) -> bytes:
    """Bytes that tell which record they belong to, and where in it."""
    at = (seq * 131) & 0xFF
    return _TABLE[at : at + nbytes]


class Child:
    """A forked child that runs one function."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Reap it; returns its exit code, negative for a signal."""
        deadline = time.monotonic() + limit_s
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise AssertionError(f"child {self.pid} did not end within {limit_s} s")
            else:
                threading.Event().wait(0.002)
        return self.status


@contextmanager
def child(run: Callable[[], object]) -> Iterator[Child]:
    """Fork; the child runs `run` and exits 0, or 1 if it raised. Killed at the end if need be."""
    with warnings.catch_warnings():
        # From 3.12 on Python warns of threads at a fork; numpy's are idle, and no lock is taken.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    forked = Child(pid)
    try:
        yield forked
    finally:
        forked.kill()
        forked.wait()
