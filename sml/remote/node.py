"""A host's place in the control plane: listens, lets in who has the token, and owns what they use.

Owns the pools that peers may read or write here, and when their memory may go: a region is taken
away only after every session that could read it has let go of it or has been closed, its data
connection first. What a pool here may be is for `Shelf` to say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsec.errors import DsecError, MachineError, PoolOwned, RemotePoolError
from dsec.sml.pool import Body, Label
from dsec.sml.pool_shm import ShmPool
from dsec.sml.remote import wire
from dsec.sml.remote.session import Session
from dsec.sml.remote.stream import Stream, admit
from dsec.sml.remote.transport import Access, Region, Transport

LEASE_S = 20.0


class Shelf(Protocol):
    """What pools there may be here."""

    def find(self, name: str) -> ShmPool:
        """A pool that is here, to be read by peers. Raises PoolAbsent."""

    def seat(self, wanted: wire.Seat, pool: ShmPool | None) -> ShmPool:
        """A pool that a peer will write: adopted if it is there, else made.

        Args:
            pool: it, where it is open here already, without a writer.

        Raises:
            PoolAbsent: it isn't there, and is not to be made.
            SizesDiffer: it is there, with other measures; or none of these can be here.
            FencedOut: a later epoch has it.
            MachineError: it can't be made.
        """

    def left(self, name: str, pool: ShmPool) -> None:
        """A pool that nobody writes or reads any more: close it, or keep it."""

    def stored(self, name: str, label: Label) -> None:
        """A peer's atom is in a pool."""

    async def asked(self, peer: str, what: dict[str, Any]) -> dict[str, Any]:
        """Anything beyond pools. Raises DsecError."""


@dataclass(slots=True)
class Hosted:
    """A pool here.

    Attributes:
        writer: the session that writes it.
        readers: sessions that read it.
    """

    name: str
    pool: ShmPool
    shelf: Shelf
    region: Region | None = None
    writer: Session | None = None
    readers: set[Session] = field(default_factory=set)
    unread: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, label: Label, body: Body) -> None:
        """Store what a peer has sent."""
        self.pool.put(label, body)
        self.shelf.stored(self.name, label)


class Node:
    """Serves peers. Everything happens in the loop that `start` was called in.

    Args:
        transport: for data; closed by `close`.
        token: that peers must have.
        event: is told what happened, by a word and facts.
    """

    def __init__(
        self,
        transport: Transport,
        token: bytes,
        shelf: Shelf,
        *,
        lease_s: float = LEASE_S,
        event: Callable[..., None] = lambda what, **facts: None,
    ) -> None:
        self.transport = transport
        self.lease_s = lease_s
        self.event = event
        self._token = token
        self._shelf = shelf
        self._hosted: dict[str, Hosted] = {}
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen; returns where. Raises MachineError."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port)
        except OSError as error:
            raise MachineError(
                f"can't listen at {host}:{port}: {error.strerror}",
                "Name an address of this machine and a port that is free",
            ) from None
        found = self._server.sockets[0].getsockname()
        return found[0], found[1]

    async def close(self) -> None:
        """End all sessions, take all memory away, close all pools. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for name in tuple(self._hosted):
            await self.withdraw(name, wait_s=0.0)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.transport.close()

    async def withdraw(self, name: str, wait_s: float | None = None) -> None:
        """Take a pool away from all peers: ask its readers to let go, wait, then close their
        connections, and only then its memory.

        Args:
            wait_s: by default the lease.
        """
        hosted = self._hosted.pop(name, None)
        if hosted is None:
            return
        for session in (*hosted.readers,):
            await session.closing(name)
        limit_s = self.lease_s if wait_s is None else wait_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while hosted.readers:
                    hosted.unread.clear()
                    await hosted.unread.wait()
        for session in {*hosted.readers, *((hosted.writer,) if hosted.writer else ())}:
            await session.end()
        await self._unused(hosted)

    # ------------------------------------------------------------ for sessions

    async def attach(self, name: str, session: Session) -> Region:
        """The region of a pool, which this session reads from now on. Raises PoolAbsent."""
        hosted = self._hosted.get(name)
        if hosted is None:
            hosted = self._hosted[name] = Hosted(name, self._shelf.find(name), self._shelf)
        hosted.readers.add(session)
        if hosted.region is None:
            address, length = hosted.pool.mapping
            hosted.region = await self.transport.register(address, length, Access.READ)
        return hosted.region

    async def detached(self, name: str, session: Session) -> None:
        """It reads it no more."""
        if (hosted := self._hosted.get(name)) is not None:
            hosted.readers.discard(session)
            hosted.unread.set()
            await self._let_go(hosted)

    def seat(self, wanted: wire.Seat, session: Session) -> Hosted:
        """The pool, which this session writes from now on. Raises as Shelf.seat, and PoolOwned."""
        hosted = self._hosted.get(wanted.pool)
        if hosted is not None and hosted.writer is not None and hosted.writer is not session:
            raise PoolOwned(
                f"pool {wanted.pool} is written by {hosted.writer.peer}",
                "There is one writer: end it, or wait until its lease has ended",
            )
        pool = self._shelf.seat(wanted, hosted.pool if hosted is not None else None)
        if hosted is None:
            hosted = self._hosted[wanted.pool] = Hosted(wanted.pool, pool, self._shelf)
        hosted.writer = session
        return hosted

    async def risen(self, hosted: Hosted, session: Session) -> None:
        """It writes it no more."""
        if hosted.writer is session:
            hosted.writer = None
            await self._let_go(hosted)

    async def asked(self, peer: str, what: dict[str, Any]) -> dict[str, Any]:
        """What isn't about pools."""
        return await self._shelf.asked(peer, what)

    # ------------------------------------------------------------ inside

    async def _let_go(self, hosted: Hosted) -> None:
        idle = hosted.writer is None and not hosted.readers
        if idle and self._hosted.pop(hosted.name, None) is not None:
            await self._unused(hosted)

    async def _unused(self, hosted: Hosted) -> None:
        region, hosted.region = hosted.region, None
        if region is not None:
            await self.transport.unregister(region)
        self._shelf.left(hosted.name, hosted.pool)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        stream = Stream(reader, writer, server=True)
        session: Session | None = None
        try:
            keys = await admit(stream, self._token)
            session = Session(self, stream, keys.data)
            self._sessions.add(session)
            self.event("session", peer=session.peer)
            await session.run()
        except RemotePoolError as error:
            kind = type(error).__name__
            self.event("refused", kind=kind, peer=stream.peer, why=str(error))
        except DsecError as error:
            self.event("no session", peer=stream.peer, why=str(error))
        finally:
            self._tasks.discard(task)
            if session is not None:
                self._sessions.discard(session)
                await session.end()
            else:
                await stream.close()
