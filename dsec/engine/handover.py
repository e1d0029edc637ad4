"""The socket on which rings are handed over: descriptors can't travel in JSON.

A SOCK_SEQPACKET socket in the kernel's folder, for the same user only. Whoever connects sends the
ticket of one sandbox, as JSON in one datagram, and gets one datagram for each agent: JSON, and the
descriptors beside it (SCM_RIGHTS). Then it is closed. An event with descriptors has a ticket for
them as well. Owns these connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.engine import talk
from dsec.engine.wire import peer_uid
from dsec.errors import ChannelClosed, FrameError, PeerError
from dsec.ipc import datagrams
from dsec.ipc.frames import FRAME_BYTES_MAX

Parcels = list[tuple[talk.AnyMessage, list[int]]]


class Ticket(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is to be said: a ticket, of `sandbox.open` or of an event."""

    ticket: str


class Handover:
    """Listens.

    Args:
        claim: what a ticket is for, with descriptors, its caller's; nothing for a wrong one.
    """

    def __init__(self, path: Path, claim: Callable[[str], Parcels]) -> None:
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._visits: set[_Visit] = set()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._sock.bind(str(path))
        path.chmod(0o600)
        self._sock.listen(64)
        self._loop.add_reader(self._sock.fileno(), self._arrived)

    def _arrived(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return  # it has left again, or we have no descriptor for it
        sock.setblocking(False)
        if peer_uid(sock) != os.geteuid():
            sock.close()
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * FRAME_BYTES_MAX)
        self._visits.add(_Visit(sock, self._claim, self._visits.discard, self._loop))

    def close(self) -> None:
        """Listen no more, and hang up."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for visit in tuple(self._visits):
            visit.close()


class _Visit:
    """One who fetches rings."""

    def __init__(
        self,
        sock: socket.socket,
        claim: Callable[[str], Parcels],
        left: Callable[[_Visit], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sock, self._claim, self._left, self._loop = sock, claim, left, loop
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            ticket, fds = datagrams.receive(self._sock, _ticket)
        except BlockingIOError:
            return
        except (ChannelClosed, PeerError, OSError):
            self.close()
            return
        datagrams.close_fds(fds)
        self._loop.remove_reader(self._sock.fileno())
        for message, rings in self._claim(ticket.ticket):
            self._queue.append((talk.encode_json(message), rings))
        self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            try:
                datagrams.sendmsg(self._sock, data, fds)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in datagrams.SHORT_OF:
                    self._loop.remove_writer(self._sock.fileno())
                    self._loop.call_later(datagrams.RETRY_S, self._again)
                    return
                break
            datagrams.close_fds(fds)
            self._queue.popleft()
        self.close()

    def _again(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def close(self) -> None:
        """Hang up; again is no error."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
        for _, fds in self._queue:
            datagrams.close_fds(fds)
        self._queue.clear()
        self._left(self)


def _ticket(data: bytes) -> Ticket:
    try:
        return msgspec.json.decode(data, type=Ticket)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"no ticket: {error}") from None


def fetch(path: str, ticket: str, count: int, timeout_s: float) -> Parcels:
    """The program's side: `count` messages, their descriptors the caller's.

    Raises:
        PeerError: they are not to be had.
        OSError: nobody listens there, or not in time.
    """
    parcels: Parcels = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            sock.send(msgspec.json.encode(Ticket(ticket)))
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            while len(parcels) < count:
                if not poll.poll(timeout_s * 1000):
                    raise TimeoutError("no descriptors came in time")
                with contextlib.suppress(BlockingIOError):
                    parcels.append(datagrams.receive(sock, talk.decode_json))
    except BaseException:
        for _, fds in parcels:
            datagrams.close_fds(fds)
        raise
    return parcels
