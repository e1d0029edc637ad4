"""The client's side of a session with another host: asks, reads its memory, pushes atoms into it.

Runs in one asyncio loop. All that is held there is held under one lease, which is renewed in the
background; nothing that was read counts, and nothing is written, when it has run out by the own
clock. When the control connection, the data connection or the lease is lost the session is over:
every call raises, by name, and whoever wants to go on makes another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final, TypeVar

from dsec.errors import AtomAbsent, DsecError, FrameError, LocalError, PeerGone, SizesDiffer
from dsec.sml.pool import Body, Entry, Label, Marks
from dsec.sml.remote import wire
from dsec.sml.remote.reading import Asking, Searcher, Span
from dsec.sml.remote.stream import HANDSHAKE_S, Stream, greet
from dsec.sml.remote.tenure import Tenure
from dsec.sml.remote.transport import Connection, Region, Transport
from dsec.sml.remote.wire import AnyMessage, Refused, raised
from dsec.sml.remote.words import HEAD_BYTES, PAGE, geometry, seal

ANSWER_S: Final = 10.0
ID_MAX: Final = (1 << 62) - 1
T = TypeVar("T")
Answer = TypeVar("Answer")


class Peer:
    """A session. Make one by `connect`."""

    def __init__(self, stream: Stream, link: Connection, transport: Transport, lease_s: float):
        self.name = stream.peer
        self.transport = transport
        self.link = link
        self.tenure = Tenure(lease_s, f"what {self.name} holds for this host")
        self._stream = stream
        self._calls: dict[int, asyncio.Future[AnyMessage]] = {}
        self._call = 0
        self._over: DsecError | None = None
        self.closing: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connect(cls, host: str, port: int, token: bytes, transport: Transport) -> Peer:
        """Begin a session.

        Raises:
            PeerGone: nobody is there.
            WrongToken, VersionMismatch: see there.
            LocalError: it is reached by another transport.
        """
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise PeerGone(f"nobody is at {host}:{port}: {error or 'no answer'}") from None
        stream = Stream(reader, writer, server=False)
        try:
            keys = await greet(stream, token)
            pending = await transport.prepare(keys.data)
            try:
                await stream.send(wire.Join(transport.name, pending.parameters), 1)
                answer = (await stream.receive(HANDSHAKE_S)).message
                joined = _expected(answer, wire.Joined)
                link = await pending.connect(joined.parameters)
            except BaseException:
                await pending.close()
                raise
        except BaseException:
            await stream.close()
            raise
        peer = cls(stream, link, transport, joined.lease_s)
        peer._call = 1
        loop = asyncio.get_running_loop()
        peer._tasks = [loop.create_task(peer._receive()), loop.create_task(peer._renew())]
        await peer._ask_lease()
        return peer

    @property
    def alive(self) -> bool:
        """Whether it may still be used."""
        return self._over is None and self.tenure.valid(time.monotonic())

    def check(self) -> None:
        """Raise what ended it, or StaleLease; else nothing."""
        if self._over is not None:
            raise self._over
        self.tenure.require(time.monotonic())

    async def ask(self, request: wire.Request, kind: type[Answer]) -> Answer:
        """Ask for something. Raises what the peer refuses for, PeerGone, StaleLease."""
        if self._over is not None:
            raise self._over
        self._call += 1
        number = self._call
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            await self._stream.send(request, number)  # type: ignore[arg-type]
            async with asyncio.timeout(ANSWER_S):
                return _expected(await future, kind)
        except TimeoutError:
            raise PeerGone(f"{self.name} has not answered for {ANSWER_S:g} s") from None
        finally:
            self._calls.pop(number, None)

    async def close(self) -> None:
        """End it. Idempotent."""
        self._fail(LocalError(f"the session with {self.name}: used after close"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.link.close()
        await self._stream.close()

    # ------------------------------------------------------------ inside

    def _fail(self, error: DsecError) -> None:
        if self._over is None:
            self._over = error
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)
                future.exception()

    async def _receive(self) -> None:
        try:
            while True:
                envelope = await self._stream.receive(self.tenure.lease_s)
                message = envelope.message
                if isinstance(message, wire.Closing):
                    self.closing.add(message.pool)
                elif (future := self._calls.get(envelope.call)) is not None and not future.done():
                    future.set_result(message)
        except DsecError as error:
            self._fail(error)

    async def _renew(self) -> None:
        with contextlib.suppress(DsecError):
            while True:
                await asyncio.sleep(max(0.0, self.tenure.next_s - time.monotonic()))
                with contextlib.suppress(PeerGone):
                    await self._ask_lease()

    async def _ask_lease(self) -> None:
        number = self.tenure.ask(time.monotonic())
        renewed = await self.ask(wire.Renew(number), wire.Renewed)
        self.tenure.granted(renewed.number)


class RemoteView:
    """A pool of a peer, read by READs only.

    Attributes:
        searcher: counts what it met.
    """

    def __init__(self, peer: Peer, name: str, region: Region, searcher: Searcher) -> None:
        self.name = name
        self.searcher = searcher
        self._peer = peer
        self._region = region

    @classmethod
    async def attach(cls, peer: Peer, name: str) -> RemoteView:
        """Read a pool from now on.

        Raises:
            PoolAbsent: the peer offers none of this name.
            PoolError: it is none that this version can read.
            SizesDiffer: the region is not of the pool's size.
        """
        found = await peer.ask(wire.Attach(name), wire.Attached)
        region = Region(found.address, found.length, found.key)
        page = peer.transport.buffer(PAGE)
        try:
            if region.length < 2 * PAGE:
                raise SizesDiffer(f"pool {name} of {peer.name} has {region.length:,} bytes")
            await peer.link.read(region, 0, page)
            where = geometry(bytes(page), region.length)
        finally:
            peer.transport.release(page)
        return cls(peer, name, region, Searcher(where, name))

    async def get(self, atom_id: int) -> bytes:
        """See PoolReader.get; also StaleLease, PeerGone, AccessDenied."""
        return await self._drive(self.searcher.get(atom_id))

    async def entry(self, atom_id: int) -> Entry:
        """See PoolReader.entry."""
        return await self._drive(self.searcher.entry(atom_id))

    async def entries(self) -> list[Entry]:
        """See PoolReader.entries."""
        return await self._drive(self.searcher.scan())

    async def detach(self) -> None:
        """Read it no more."""
        with contextlib.suppress(DsecError):
            await self._peer.ask(wire.Detach(self.name), wire.Done)

    async def _drive(self, search: Asking[T]) -> T:
        """Fetch what a search wants until it has found what it looks for."""
        try:
            wanted = next(search)
            while True:
                wanted = search.send(await self._fetch(wanted))
        except StopIteration as done:
            self._peer.check()  # else what was read may be of a pool that is gone
            found: T = done.value
            return found

    async def _fetch(self, spans: tuple[Span, ...]) -> list[bytes]:
        self._peer.check()
        peer, link = self._peer, self._peer.link
        buffers = [peer.transport.buffer(span.nbytes) for span in spans]
        try:
            reads = [
                link.read(self._region, span.offset, into)
                for span, into in zip(spans, buffers, strict=True)
            ]
            if len(reads) == 1:
                await reads[0]
            else:
                for done in await asyncio.gather(*reads, return_exceptions=True):
                    if isinstance(done, BaseException):
                        raise done
            return [bytes(each) for each in buffers]
        finally:
            for each in buffers:
                peer.transport.release(each)


class RemoteSeat:
    """The writer of a pool of a peer: pushes atoms into leased slots there.

    Attributes:
        epoch: the pool's.
    """

    def __init__(self, peer: Peer, name: str, epoch: int, clock: Callable[[], float]) -> None:
        self.name = name
        self.epoch = epoch
        self._peer = peer
        self._clock = clock
        self._slot: wire.Leased | None = None
        self._room = 0

    @classmethod
    async def take(cls, peer: Peer, wanted: wire.Seat) -> RemoteSeat:
        """Become the writer. Raises PoolOwned, PoolAbsent, SizesDiffer, FencedOut, MachineError."""
        seated = await peer.ask(wanted, wire.Seated)
        return cls(peer, wanted.pool, seated.epoch, time.monotonic)

    async def put(self, label: Label, body: Body) -> None:
        """Push an atom: WRITE and 8-byte publish together, then have it taken. See Pool.put."""
        data = memoryview(body).cast("B")
        if not len(data):
            raise LocalError("an atom has at least one byte")
        if not 0 <= label.id <= ID_MAX:
            raise LocalError(f"an atom's id is from 0 to 2**62 - 1, not {label.id}")
        seal(label, 0, data)  # refuses a label out of its ranges, before anything is asked for
        slot = await self._leased(len(data))
        peer = self._peer
        staged = peer.transport.buffer(HEAD_BYTES + len(data))
        try:
            staged[:HEAD_BYTES] = seal(label, slot.generation, data)
            staged[HEAD_BYTES:] = data
            room = Region(slot.address, slot.length, slot.key)
            words = Region(slot.words_address, slot.words_length, slot.words_key)
            peer.check()
            written = asyncio.gather(
                peer.link.write(room, 0, staged),
                peer.link.publish(words, slot.word_offset, slot.generation),
                return_exceptions=True,
            )
            for done in await written:
                if isinstance(done, BaseException):
                    raise done
        finally:
            peer.transport.release(staged)
        self._slot = None  # unless the answer says under which generation it is leased now
        try:
            answer = await peer.ask(wire.Take(self.name, slot.slot), wire.Done)
        except PeerGone:
            raise
        except DsecError:
            await self._give_back(slot)
            raise
        self._slot = _again(slot, answer.generation)

    async def free(self, atom_id: int) -> None:
        """See Pool.free."""
        await self._peer.ask(wire.Free(self.name, self._known(atom_id)), wire.Done)

    async def mark(self, atom_id: int, marks: Marks) -> None:
        """See Pool.mark."""
        await self._peer.ask(wire.Mark(self.name, self._known(atom_id), int(marks)), wire.Done)

    async def lease(self) -> int:
        """See Pool.lease."""
        return (await self._peer.ask(wire.LeaseIds(self.name), wire.Done)).value

    async def rise(self) -> None:
        """Write it no more."""
        with contextlib.suppress(DsecError):
            await self._peer.ask(wire.Rise(self.name), wire.Done)

    async def _leased(self, nbytes: int) -> wire.Leased:
        if self._slot is not None and self._slot.length >= HEAD_BYTES + nbytes:
            return self._slot
        if self._slot is not None:
            slot, self._slot = self._slot, None
            await self._give_back(slot)
        self._slot = await self._peer.ask(wire.Slot(self.name, nbytes), wire.Leased)
        return self._slot

    async def _give_back(self, slot: wire.Leased) -> None:
        await self._peer.ask(wire.GiveBack(self.name, slot.slot), wire.Done)

    def _known(self, atom_id: int) -> int:
        if not 0 <= atom_id <= ID_MAX:
            raise AtomAbsent(f"there is no atom {atom_id} of pool {self.name}")
        return atom_id


def _again(slot: wire.Leased, generation: int) -> wire.Leased:
    return wire.Leased(
        slot.slot, generation, slot.address, slot.length, slot.key,
        slot.words_address, slot.words_length, slot.words_key, slot.word_offset,
    )  # fmt: skip


def _expected(message: AnyMessage, kind: type[Answer]) -> Answer:
    if isinstance(message, kind):
        return message
    if isinstance(message, Refused):
        raise raised(message)
    raise FrameError(f"{type(message).__name__} where {kind.__name__} is due")
