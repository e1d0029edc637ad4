"""The server's side of one session: what a peer that has the token may ask for, and what it holds.

Requests are served one after the other. What a session holds (a pool to read, a seat to write, its
slots) it holds under a lease: any frame renews it, and a session that is silent for the lease's
time is over. Its data connection is closed before anything that it could touch is given away, so
that no READ or WRITE of it can come later.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dsec.errors import AtomExists, AtomTooLarge, DsecError, FencedOut, FrameError, LocalError
from dsec.sml._pool import lib
from dsec.sml.pool import Label, Marks
from dsec.sml.remote import wire
from dsec.sml.remote.landing import Landing
from dsec.sml.remote.stream import Stream
from dsec.sml.remote.transport import Connection, Transport
from dsec.sml.remote.wire import AnyMessage

if TYPE_CHECKING:
    from dsec.sml.remote.node import Hosted, Node


class Session:
    """One peer's.

    Args:
        node: whose pools these are.
        secret: of its data connection.

    Attributes:
        peer: its address, to be printed.
    """

    def __init__(self, node: Node, stream: Stream, secret: bytes) -> None:
        self.peer = stream.peer
        self._node = node
        self._stream = stream
        self._secret = secret
        self._link: Connection | None = None
        self._reads: set[str] = set()
        self._seats: dict[str, tuple[Hosted, Landing]] = {}

    async def run(self) -> None:
        """Serve until it ends. Raises nothing that the peer could cause."""
        try:
            while True:
                envelope = await self._stream.receive(self._node.lease_s)
                try:
                    answer = await self._serve(envelope.message)
                except FrameError:
                    raise
                except DsecError as error:
                    answer = wire.refusal(error)
                await self._stream.send(answer, envelope.call)
        except DsecError as error:
            self._node.event("session over", peer=self.peer, why=str(error))

    async def closing(self, pool: str) -> None:
        """Ask the peer to read a pool no more."""
        with contextlib.suppress(DsecError):
            await self._stream.send(wire.Closing(pool))

    async def end(self) -> None:
        """Let go of everything. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()  # from here on it touches nothing any more
        for name in tuple(self._reads):
            await self._detach(name)
        for name in tuple(self._seats):
            await self._rise(name)
        await self._stream.close()

    # ------------------------------------------------------------ requests

    async def _serve(self, message: AnyMessage) -> AnyMessage:
        match message:
            case wire.Renew():
                return wire.Renewed(message.number)
            case wire.Take():
                return self._take(message)
            case wire.Slot():
                return await self._slot(message)
            case wire.GiveBack():
                await self._seated(message.pool)[1].give_back(message.slot)
            case wire.Free():
                self._seated(message.pool)[0].pool.free(message.atom_id)
            case wire.Mark():
                marks = Marks(message.marks & 3)
                self._seated(message.pool)[0].pool.mark(message.atom_id, marks)
            case wire.LeaseIds():
                return wire.Done(value=self._seated(message.pool)[0].pool.lease())
            case wire.Join():
                return await self._join(message)
            case wire.Attach():
                region = await self._node.attach(message.pool, self)
                self._reads.add(message.pool)
                return wire.Attached(region.address, region.length, region.key)
            case wire.Detach():
                await self._detach(message.pool)
            case wire.Seat():
                hosted = self._node.seat(message, self)
                self._seats[message.pool] = hosted, Landing(self._node.transport)
                return wire.Seated(hosted.pool.epoch)
            case wire.Rise():
                await self._rise(message.pool)
            case wire.Ask():
                return wire.Told(await self._node.asked(self.peer, message.what))
            case _:
                raise FrameError(f"{type(message).__name__} is nothing to be asked for")
        return wire.Done()

    async def _join(self, message: wire.Join) -> AnyMessage:
        transport: Transport = self._node.transport
        if message.transport != transport.name:
            raise LocalError(
                f"this host's pool is reached by {transport.name}, not by {message.transport}: "
                "pool.backend must be the same on both"
            )
        if self._link is not None:
            raise LocalError("a session has one data connection")
        pending = await transport.prepare(self._secret)
        try:
            self._link = await pending.connect(message.parameters)
        except BaseException:
            await pending.close()
            raise
        return wire.Joined(pending.parameters, self._node.lease_s)

    async def _slot(self, message: wire.Slot) -> AnyMessage:
        hosted, landing = self._seated(message.pool)
        most = hosted.pool.usage().data_bytes
        if lib.asa_room(message.nbytes) > most:
            raise AtomTooLarge(
                f"an atom of {message.nbytes:,} bytes takes more than the whole of pool "
                f"{message.pool}: {most:,} bytes (pool.size_mb)"
            )
        slot = await landing.lease(lib.ASA_HEAD + message.nbytes)
        region, words = slot.region, landing.words
        return wire.Leased(
            slot.number, slot.generation, region.address, region.length, region.key,
            words.address, words.length, words.key, slot.word_offset,
        )  # fmt: skip

    def _take(self, message: wire.Take) -> AnyMessage:
        hosted, landing = self._seated(message.pool)
        label, body = landing.take(message.slot)
        try:
            hosted.put(label, body)
        finally:
            slot = landing.renew(message.slot)
        return wire.Done(generation=slot.generation)

    # ------------------------------------------------------------ inside

    def _seated(self, pool: str) -> tuple[Hosted, Landing]:
        found = self._seats.get(pool)
        if found is None or found[0].writer is not self:
            raise FencedOut(f"this session does not write pool {pool}, or not any more")
        return found

    async def _detach(self, pool: str) -> None:
        self._reads.discard(pool)
        await self._node.detached(pool, self)

    async def _rise(self, pool: str) -> None:
        found = self._seats.pop(pool, None)
        if found is None:
            return
        hosted, landing = found
        whole, halves = landing.left()
        for label, body in whole:
            self._late(hosted, label, body)
        for number in halves:
            self._node.event("half a write", kind="AtomTorn", peer=self.peer, slot=number)
        await landing.close()
        await self._node.risen(hosted, self)

    def _late(self, hosted: Hosted, label: Label, body: bytes) -> None:
        """An atom that was published when its writer went, and not taken: it counts."""
        if hosted.writer is self:
            with contextlib.suppress(AtomExists, DsecError):
                hosted.put(label, body)
                self._node.event("taken late", peer=self.peer, atom=label.id)
