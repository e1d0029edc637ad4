"""A pool of another host behind the interface of every pool: what it has is read one-sidedly, what
is put is pushed.

Owns the session, the transport and the thread of each. It believes nothing that it reads but what a
checksum proves (reading.py), and says by name when the other host is gone. Nothing is retried here:
a session that is over stays over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from dsec.errors import LocalError
from dsec.sml._pool import lib
from dsec.sml.pool import Body, Entry, Label, Marks, Usage
from dsec.sml.remote import wire
from dsec.sml.remote.courier import Courier
from dsec.sml.remote.peer import Peer, RemoteSeat, RemoteView
from dsec.sml.remote.transport import Transport


class Place(NamedTuple):
    """Where another host's pools are.

    Attributes:
        host, port: of its control plane.
        token: that both have.
        transport: makes this side's transport, in the loop where it is to live.
    """

    host: str
    port: int
    token: bytes
    transport: Callable[[], Awaitable[Transport]]


class RemoteReader:
    """Reads a pool of another host. See PoolReader.

    Args:
        name: of the pool, there.

    Raises:
        RemotePoolError, PoolAbsent, PoolError, MachineError: it can't be read; says why.
    """

    def __init__(self, place: Place, name: str) -> None:
        self.name = name
        self._place = place
        self._courier: Courier | None = Courier(f"pool {name}")
        self._transport: Transport | None = None
        self._peer: Peer | None = None
        self._seen: RemoteView | None = None
        try:
            self._seen = self._courier.call(self._open(place))
        except BaseException:
            self.close()
            raise

    async def _open(self, place: Place) -> RemoteView:
        self._transport = await place.transport()
        self._peer = await Peer.connect(place.host, place.port, place.token, self._transport)
        await self._seat(self._peer)
        return await RemoteView.attach(self._peer, self.name)

    async def _seat(self, peer: Peer) -> None:
        """A writer takes its seat here."""

    @property
    def _open_courier(self) -> Courier:
        if self._courier is None:
            raise LocalError(f"pool {self.name}: used after close")
        return self._courier

    @property
    def _view(self) -> RemoteView:
        assert self._seen is not None, "set when this was made"
        return self._seen

    @property
    def space(self) -> tuple[int, int]:
        """See PoolReader.space."""
        return self._view.searcher.geometry.space

    @property
    def met(self) -> tuple[int, int]:
        """How often a read met an atom in the middle of a write, and another one in its place."""
        return self._view.searcher.torn, self._view.searcher.recycled

    def get(self, atom_id: int) -> bytes:
        """See PoolReader.get; also StaleLease, PeerGone, AccessDenied."""
        return self._open_courier.call(self._view.get(atom_id))

    def entry(self, atom_id: int) -> Entry:
        """See PoolReader.entry."""
        return self._open_courier.call(self._view.entry(atom_id))

    def entries(self) -> Iterator[Entry]:
        """See PoolReader.entries."""
        yield from self._open_courier.call(self._view.entries())

    def usage(self) -> Usage:
        """See PoolReader.usage."""
        entries = list(self.entries())
        where = self._view.searcher.geometry
        return Usage(
            len(entries),
            where.ncells // lib.ASA_CELLS_AN_ATOM,
            sum(each.nbytes for each in entries),
            sum(each.room for each in entries),
            where.grains * lib.ASA_GRAIN,
            where.size,
        )

    def close(self) -> None:
        """See PoolReader.close."""
        courier, self._courier = self._courier, None
        if courier is not None:
            courier.call(self._leave())
            courier.close()

    async def _leave(self) -> None:
        if self._peer is not None:
            await self._goodbye(self._peer)
            await self._peer.close()
        if self._transport is not None:
            await self._transport.close()

    async def _goodbye(self, peer: Peer) -> None:
        if self._seen is not None:
            await self._seen.detach()


class RemotePool(RemoteReader):
    """The one writer of a pool of another host. See Pool.

    Args:
        wanted: the pool: made there, with these measures, or gone on with.

    Raises:
        PoolOwned, PoolAbsent, SizesDiffer, FencedOut: see Shelf.seat. All else as RemoteReader.
    """

    def __init__(self, place: Place, wanted: wire.Seat) -> None:
        self._wanted = wanted
        self._seated: RemoteSeat | None = None
        super().__init__(place, wanted.pool)

    async def _seat(self, peer: Peer) -> None:
        self._seated = await RemoteSeat.take(peer, self._wanted)

    async def _goodbye(self, peer: Peer) -> None:
        await super()._goodbye(peer)
        if self._seated is not None:
            await self._seated.rise()

    @property
    def _writer(self) -> RemoteSeat:
        assert self._seated is not None, "set when this was made"
        return self._seated

    @property
    def epoch(self) -> int:
        """See Pool.epoch."""
        return self._writer.epoch

    def put(self, label: Label, body: Body) -> None:
        """See Pool.put; also StaleLease, PeerGone, AtomTorn, FencedOut."""
        self._open_courier.call(self._writer.put(label, body))

    def free(self, atom_id: int) -> None:
        """See Pool.free."""
        self._open_courier.call(self._writer.free(atom_id))

    def mark(self, atom_id: int, marks: Marks) -> None:
        """See Pool.mark."""
        self._open_courier.call(self._writer.mark(atom_id, marks))

    def lease(self) -> int:
        """See Pool.lease."""
        return self._open_courier.call(self._writer.lease())
