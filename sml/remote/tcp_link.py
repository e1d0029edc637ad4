"""A TCP transport's connection: the side that asks. tcp.py has the side that is touched.

Owns one stream to the peer's listener, dialled when it is first used, one task that sends what was
asked in order, and one that takes answers in. An operation whose caller gave up is sent and
answered all the same, or all after it would be garbled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from dsec.errors import AccessDenied, LocalError, PeerGone, VersionMismatch
from dsec.sml.remote.transport import WORD_BYTES, Buffer, Region

VERSION: Final = 1
MAGIC: Final = b"DSECTCP"
PARAMETERS = struct.Struct(f"<{len(MAGIC)}sB16sH")
GREETING = struct.Struct("<16s32s32s")
REQUEST = struct.Struct("<B3xIQQQ")
ANSWER = struct.Struct("<B7xQQ")
READ, WRITE, PUBLISH = 1, 2, 3
OK, DENIED = 0, 1
NONCE: Final = 32
_TOGETHER: Final = 1024
_PIECE: Final = 1 << 20


class Owner(Protocol):
    """The transport that a connection belongs to."""

    limit_s: float

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""

    def forget(self, link: TcpLink) -> None:
        """A connection is over."""


@dataclass(slots=True)
class _Operation:
    header: bytes
    data: Buffer
    done: asyncio.Future[None]
    into: memoryview | None


class TcpLink:
    """Both this side's half of a connection, and the connection: see Pending and Connection."""

    def __init__(self, owner: Owner, name: bytes, secret: bytes) -> None:
        self.id = name
        self.accepted: set[socket.socket] = set()
        self._owner = owner
        self._secret = secret
        self._theirs: tuple[str, int, bytes] | None = None
        self._socket: socket.socket | None = None
        self._queue: deque[_Operation] = deque()
        self._more = asyncio.Event()
        self._waiting: dict[int, _Operation] = {}
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._over = ""

    @property
    def parameters(self) -> bytes:
        """See Pending.parameters."""
        host, port = self._owner.address
        return PARAMETERS.pack(MAGIC, VERSION, self.id, port) + host.encode()

    async def connect(self, theirs: bytes) -> TcpLink:
        """See Pending.connect."""
        if len(theirs) <= PARAMETERS.size or not theirs.startswith(MAGIC):
            raise VersionMismatch(f"the peer's parameters are none of tcp: {theirs[:16]!r}")
        _, version, name, port = PARAMETERS.unpack_from(theirs)
        if version != VERSION:
            raise VersionMismatch(f"the peer speaks version {version} of tcp, this host {VERSION}")
        self._theirs = theirs[PARAMETERS.size :].decode("ascii", "replace"), port, name
        return self

    async def read(self, region: Region, offset: int, into: memoryview) -> None:
        """See Connection.read."""
        if into.readonly or not into.contiguous or not into.nbytes:
            raise LocalError("what is read goes into a writable, contiguous buffer, not empty")
        await self._do(READ, region, offset, into.nbytes, b"", into.cast("B"))

    async def write(self, region: Region, offset: int, data: Buffer) -> None:
        """See Connection.write."""
        view = memoryview(data)
        if not view.contiguous or not view.nbytes:
            raise LocalError("what is written comes from a contiguous buffer, not empty")
        await self._do(WRITE, region, offset, view.nbytes, view.cast("B"), None)

    async def publish(self, region: Region, offset: int, word: int) -> None:
        """See Connection.publish."""
        if offset % WORD_BYTES or not 0 <= word < 1 << 64:
            raise LocalError(f"a word of 64 bits at a multiple of 8, not {word} at {offset}")
        data = word.to_bytes(WORD_BYTES, "little")
        await self._do(PUBLISH, region, offset, WORD_BYTES, data, None)

    async def close(self) -> None:
        """See Connection.close."""
        self.fail("closed")
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        self._owner.forget(self)

    def proof(self, purpose: bytes, *nonces: bytes) -> bytes:
        """That this side knows the secret of this connection of its own."""
        return proof(self._secret, purpose, self.id, *nonces)

    def fail(self, why: str) -> None:
        """The connection is over, and with it all that is under way."""
        if self._over:
            return
        self._over = why
        for operation in (*self._waiting.values(), *self._queue):
            _settle(operation.done, PeerGone(f"a peer's memory can't be reached: {why}"))
        self._waiting.clear()
        self._queue.clear()
        for each in (*self.accepted, self._socket):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------ inside

    async def _do(
        self, kind: int, region: Region, offset: int, n: int, data: Buffer, into: memoryview | None
    ) -> None:
        if not 0 <= offset < 1 << 63:
            raise LocalError(f"no region has an offset {offset}")
        if self._theirs is None:
            raise LocalError("connect was not called")
        if self._over:
            raise PeerGone(f"a peer's memory can't be reached: {self._over}")
        loop = asyncio.get_running_loop()
        self._number += 1
        header = REQUEST.pack(kind, region.key, offset, n, self._number)
        operation = _Operation(header, data, loop.create_future(), into)
        self._waiting[self._number] = operation
        self._queue.append(operation)
        self._more.set()
        if not self._tasks:
            self._tasks.append(loop.create_task(self._run(self._theirs)))
        limit = loop.call_later(
            self._owner.limit_s, self.fail, f"no answer for {self._owner.limit_s:g} s"
        )
        try:
            await asyncio.shield(operation.done)
        finally:
            limit.cancel()

    async def _run(self, theirs: tuple[str, int, bytes]) -> None:
        """Dial, then send what is asked for."""
        loop = asyncio.get_running_loop()
        try:
            peer = self._socket = await self._dial(*theirs)
            self._tasks.append(loop.create_task(self._receive(peer)))
            while True:
                self._more.clear()
                while self._queue:
                    await _send(peer, self._queue.popleft())
                await self._more.wait()
        except (OSError, EOFError) as error:
            self.fail(getattr(error, "strerror", None) or "the peer doesn't know this connection")

    async def _dial(self, host: str, port: int, name: bytes) -> socket.socket:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        peer = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(peer, (host, port))
            nonce, own = await exactly(peer, NONCE), secrets.token_bytes(NONCE)
            due = proof(self._secret, b"dial", name, nonce, own)
            await loop.sock_sendall(peer, GREETING.pack(name, own, due))
            shown = await exactly(peer, NONCE)
            if not hmac.compare_digest(shown, proof(self._secret, b"serve", name, nonce, own)):
                raise EOFError
        except BaseException:
            peer.close()
            raise
        return peer

    async def _receive(self, peer: socket.socket) -> None:
        try:
            while True:
                status, number, length = ANSWER.unpack(await exactly(peer, ANSWER.size))
                operation = self._waiting.get(number)
                wanted = operation.into.nbytes if operation and operation.into is not None else 0
                if operation is None or (status == OK and length != wanted):
                    self.fail("the peer answers what was not asked")
                    return
                if status != OK:
                    text = "a peer refused an operation: wrong key, out of bounds, or not allowed"
                    _settle(operation.done, AccessDenied(text))
                    self.fail("an operation was refused")
                    return
                if operation.into is not None:
                    await fill(peer, operation.into)
                del self._waiting[number]
                _settle(operation.done, None)
        except (OSError, EOFError) as error:
            self.fail(getattr(error, "strerror", None) or "the peer is gone")


def proof(secret: bytes, purpose: bytes, name: bytes, *nonces: bytes) -> bytes:
    """That whoever sends it knows the secret of the connection `name`."""
    return hmac.digest(secret, b"".join((purpose, name, *nonces)), "sha256")


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        done.exception()  # looked at, should nobody wait for it any more


async def _send(peer: socket.socket, operation: _Operation) -> None:
    loop, data = asyncio.get_running_loop(), operation.data
    if len(data) <= _TOGETHER:
        await loop.sock_sendall(peer, operation.header + bytes(data))
    else:
        await loop.sock_sendall(peer, operation.header)
        await loop.sock_sendall(peer, data)


async def fill(peer: socket.socket, into: memoryview) -> None:
    """Receive until it is full. Raises EOFError."""
    loop = asyncio.get_running_loop()
    done = 0
    while done < len(into):
        count = await loop.sock_recv_into(peer, into[done:])
        if not count:
            raise EOFError
        done += count


async def exactly(peer: socket.socket, nbytes: int) -> bytes:
    """Receive so many bytes. Raises EOFError."""
    found = bytearray(nbytes)
    await fill(peer, memoryview(found))
    return bytes(found)


async def past(peer: socket.socket, nbytes: int) -> None:
    """Receive and forget."""
    waste = memoryview(bytearray(min(nbytes, _PIECE)))
    while nbytes > 0:
        count = await asyncio.get_running_loop().sock_recv_into(peer, waste[:nbytes])
        if not count:
            return
        nbytes -= count
