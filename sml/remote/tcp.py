"""The transport for machines without an RDMA card: the same one-sided operations over TCP.

A process listens once for all its regions. Each connection dials its peer's listener when it is
first used, so that each of the two directions is a stream of its own, in which requests are served
in order. Requests are served by the event loop of the process whose memory they touch, beside
whatever else it does; bytes go between socket and mapping without a copy in between.

A request is a header (kind, key, offset, length, number) and, for a write, its bytes; an answer is
a header (status, number, length) and, for a read, its bytes. Before the first request both ends
prove by the connection's secret that they are who the control plane has spoken with.
"""

from __future__ import annotations

import asyncio
import hmac
import mmap
import secrets
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from dsec.errors import LocalError, MachineError
from dsec.sml.remote.tcp_link import (
    ANSWER,
    DENIED,
    GREETING,
    OK,
    PUBLISH,
    READ,
    REQUEST,
    WRITE,
    TcpLink,
    exactly,
    fill,
    past,
)
from dsec.sml.remote.transport import WORD_BYTES, Access, Region
from dsec.sml.remote.words import memory_of, store_word

LIMIT_S: Final = 5.0


@dataclass(slots=True)
class _Registered:
    region: Region
    access: Access
    memory: memoryview
    busy: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class TcpTransport:
    """See transport.Transport. Make one by `open`.

    Args:
        limit_s: within which every operation ends.
    """

    name = "tcp"

    def __init__(self, listener: socket.socket, limit_s: float) -> None:
        self.limit_s = limit_s
        self._listener = listener
        self._address: tuple[str, int] = listener.getsockname()[:2]
        self._regions: dict[int, _Registered] = {}
        self._links: dict[bytes, TcpLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._spawn(self._accept())

    @classmethod
    async def open(cls, host: str, port: int = 0, *, limit_s: float = LIMIT_S) -> TcpTransport:
        """Listen at an address of this machine, which peers can reach.

        Raises:
            MachineError: nobody can listen there.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            listener = socket.create_server(address[:2], family=family, backlog=128)
        except OSError as error:
            raise MachineError(
                f"can't listen at {host}:{port}: {error.strerror}",
                "Name an address of this machine and a port that is free (pool.listen)",
            ) from None
        listener.setblocking(False)
        return cls(listener, limit_s)

    async def register(self, address: int, length: int, access: Access) -> Region:
        """See Transport.register."""
        if address % mmap.PAGESIZE or length < 1:
            raise LocalError(f"a region begins at a page and is not empty: {address:#x}, {length}")
        while (key := secrets.randbits(32)) in self._regions:
            pass
        region = Region(address, length, key)
        self._regions[key] = _Registered(region, access, memory_of(address, length))
        return region

    async def unregister(self, region: Region) -> None:
        """See Transport.unregister."""
        held = self._regions.get(region.key)
        if held is None or held.region != region:
            raise LocalError(f"no such region is registered: {region}")
        del self._regions[region.key]
        while held.busy:
            held.idle.clear()
            await held.idle.wait()
        held.memory.release()

    def buffer(self, nbytes: int) -> memoryview:
        """See Transport.buffer: any memory will do."""
        return memoryview(bytearray(nbytes))

    def release(self, buffer: memoryview) -> None:
        """See Transport.release."""

    async def prepare(self, secret: bytes) -> TcpLink:
        """See Transport.prepare."""
        link = TcpLink(self, secrets.token_bytes(16), secret)
        self._links[link.id] = link
        return link

    async def close(self) -> None:
        """See Transport.close."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        for link in tuple(self._links.values()):
            await link.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for held in self._regions.values():
            held.memory.release()
        self._regions.clear()

    # ------------------------------------------------------------ the side that is touched

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, and peers reach it."""
        return self._address

    def forget(self, link: TcpLink) -> None:
        """A connection is over."""
        self._links.pop(link.id, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._listener)
            except OSError:
                if self._closed:
                    return
                await asyncio.sleep(0.05)  # no descriptor is left: others end
                continue
            self._spawn(self._serve(peer))

    async def _serve(self, peer: socket.socket) -> None:
        link: TcpLink | None = None
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self.limit_s):
                link = await self._greeted(peer)
            if link is None:
                return
            link.accepted.add(peer)
            while await self._one(peer):
                pass
        except (OSError, TimeoutError, EOFError):
            pass  # it is gone
        finally:
            peer.close()
            if link is not None:
                link.accepted.discard(peer)
                link.fail("the peer has ended it")

    async def _greeted(self, peer: socket.socket) -> TcpLink | None:
        """The connection that a caller proves to belong to; None if it can't."""
        loop = asyncio.get_running_loop()
        nonce = secrets.token_bytes(32)
        await loop.sock_sendall(peer, nonce)
        raw = await exactly(peer, GREETING.size)
        name, theirs, proof = GREETING.unpack(raw)
        link = self._links.get(name)
        if link is None or not hmac.compare_digest(proof, link.proof(b"dial", nonce, theirs)):
            return None
        await loop.sock_sendall(peer, link.proof(b"serve", nonce, theirs))
        return link

    async def _one(self, peer: socket.socket) -> bool:
        """Serve one request; false if it was refused, upon which the connection ends."""
        loop = asyncio.get_running_loop()
        raw = await exactly(peer, REQUEST.size)
        kind, key, offset, length, number = REQUEST.unpack(raw)
        held = self._regions.get(key)
        wanted = Access.READ if kind == READ else Access.WRITE
        if (
            held is None
            or wanted not in held.access
            or kind not in (READ, WRITE, PUBLISH)
            or length < 1
            or offset + length > held.region.length
            or (kind == PUBLISH and (length != WORD_BYTES or offset % WORD_BYTES))
        ):
            await loop.sock_sendall(peer, ANSWER.pack(DENIED, number, 0))
            if kind != READ:  # what it has sent is read, or the answer could be lost with it
                await past(peer, length)
            return False
        held.busy += 1
        try:
            part = held.memory[offset : offset + length]
            if kind == READ:
                await loop.sock_sendall(peer, ANSWER.pack(OK, number, length))
                await loop.sock_sendall(peer, part)
            elif kind == WRITE:
                await fill(peer, part)
                await loop.sock_sendall(peer, ANSWER.pack(OK, number, 0))
            else:
                word = int.from_bytes(await exactly(peer, WORD_BYTES), "little")
                store_word(held.region.address + offset, word)
                await loop.sock_sendall(peer, ANSWER.pack(OK, number, 0))
            part.release()
        finally:
            held.busy -= 1
            held.idle.set()
        return True
