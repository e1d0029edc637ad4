"""What carries bytes between two hosts' pools: the interface of every transport.

Rule 1: a transport moves bytes and knows nothing of atoms, leases, tokens' meaning or who may do
what. Rule 2: everything that two ends have to tell each other before bytes can move is opaque
`bytes` here, and travels over the control plane, which has authenticated both. Rule 3: an operation
is one-sided. The process whose memory is touched takes no part in it that a caller could wait for,
and nothing tells it that it happened.

`tcp` (tcp.py) and `verbs` (dsec.sml.verbs) implement it; tests/sml/remote/test_transport.py is the
suite that both pass. Everything runs in one asyncio loop, and no method may be called from another
thread than the loop's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

WORD_BYTES: Final = 8
SECRET_BYTES: Final = 32
PARAMETERS_BYTES_MAX: Final = 4096
"""Of what a Pending tells the other side: it has to fit a frame of the control plane."""


class Access(enum.IntFlag):
    """What a peer may do to a region."""

    READ = 1
    WRITE = 2
    """`write` and `publish`."""


@dataclass(frozen=True, slots=True)
class Region:
    """A mapping of some process that its peers may touch. A value: it travels as it is.

    Attributes:
        address: of its first byte, as the owner's process maps it. Page-aligned.
        length: in bytes, below 2**63.
        key: without it nothing of the region can be read or written; 32 bits. Whoever has it may
            do what the region was registered for, over a connection with its owner, until the
            region is unregistered. It covers no byte outside the region.
    """

    address: int
    length: int
    key: int


class Connection(Protocol):
    """A way to the memory of one peer. Made by `Pending.connect`.

    Offsets count from the beginning of the region. All operations may be called while others are
    under way, up to as many as a caller likes (an implementation queues what its hardware can't
    take); they complete in any order, but for what `publish` promises.

    Each of them ends in one of these ways, and no later than `limit_s` of its transport:

    - it returns: what it says has happened;
    - PeerGone: the peer's process or machine is gone, the link is down, or `close` was called. A
      write may have happened, in part or whole, or may not have;
    - AccessDenied: the peer's side refused: wrong key, outside the region, or not registered for
      that; nothing was touched;
    - LocalError: a negative offset, a misaligned or too large word, a buffer that is read-only or
      not contiguous. Nothing was sent.

    After PeerGone or AccessDenied the connection is over (as a queue pair is, in its error state):
    every operation raises PeerGone from then on, those that were under way too. Whoever wants to go
    on makes a new one over the control plane.

    Cancelling the task that waits for an operation does not call it back: it may still happen, and
    it may write into `into` until it completes or the connection is closed. An implementation keeps
    alive what the operation touches until then.
    """

    async def read(self, region: Region, offset: int, into: memoryview) -> None:
        """Fill `into` with the peer's bytes from `offset` on.

        The bytes are fetched in no particular order, and not at one moment: if the owner writes
        meanwhile, they may be of different times. What they are worth is proven by a checksum in
        them. Two reads of which the second is called after the first returned are in this order.

        Args:
            into: writable, contiguous, one byte an item, len(into) ≥ 1. A part of what
                `Transport.buffer` gave is filled in place; anything else may take a copy.
        """

    async def write(self, region: Region, offset: int, data: Buffer) -> None:
        """Store bytes into the peer's memory.

        Returns when the peer's memory has them, or when the peer's network card has taken them in
        for good. Somebody who reads there meanwhile may see any part of them. `data` must not
        change before this returns.
        """

    async def publish(self, region: Region, offset: int, word: int) -> None:
        """Store one 8-byte word, little endian, at once: nobody ever sees a part of it.

        Whoever sees the word (with an acquire load, in the peer's process) sees all that was
        written by `write` calls on this connection that were *called* before this, be they awaited
        or not; so a caller may start write and publish together and await both.

        Args:
            offset: a multiple of 8.
            word: 0 to 2**64 - 1.
        """

    async def close(self) -> None:
        """End it. Operations that are under way raise PeerGone; none of them touches local memory
        any more when this returns. The peer sees its own connection end. Idempotent."""


class Pending(Protocol):
    """This side's half of a connection that is being made."""

    @property
    def parameters(self) -> bytes:
        """What the other side's `connect` needs: at least 1, at most PARAMETERS_BYTES_MAX bytes. In
        verbs: queue pair number, GID, LID, packet sequence number, MTU, reads at once; in TCP: host
        and port. No secret is in them."""

    async def connect(self, theirs: bytes) -> Connection:
        """Make the connection with what the other side's Pending has as `parameters`.

        Both sides call this, in any order and at any time; operations of the one that is first may
        have to wait for the other. Called once.

        Raises:
            PeerError: `theirs` is no such parameters; says what is wrong (VersionMismatch: another
                transport or version).
            PeerGone: nobody is there.
            MachineError: the two can't be connected (different MTUs, a port that is down); says
                which limit, and what to run.
        """

    async def close(self) -> None:
        """Give up what was prepared, if `connect` was not called. Idempotent."""


class Transport(Protocol):
    """One process's access to a network. Several connections, regions and pools share it."""

    @property
    def name(self) -> str:
        """`tcp` or `verbs`: both ends of a connection have the same."""

    @property
    def limit_s(self) -> float:
        """Within this many seconds every operation has ended."""

    async def register(self, address: int, length: int, access: Access) -> Region:
        """Let peers touch a mapping of this process.

        The caller keeps the mapping (shared memory, page-aligned, of any size: 2 GiB and more) in
        place until `unregister` has returned. Local code goes on to read and write it as it likes.

        Raises:
            MachineError: it can't be registered (RLIMIT_MEMLOCK, memory, size of a region); says
                which limit, and what to run.
        """

    async def unregister(self, region: Region) -> None:
        """Take the region away from all peers.

        When this returns no operation of a peer touches the mapping any more, and none begins:
        those under way have ended or been refused. So the memory may be unmapped then. Raises
        LocalError if it is not registered.
        """

    def buffer(self, nbytes: int) -> memoryview:
        """Memory of this process that operations reach without a copy: writable, `nbytes` long,
        zeros. It lives until the transport is closed or `release` is called with it.

        Raises:
            MachineError: as `register`.
        """

    def release(self, buffer: memoryview) -> None:
        """Give back what `buffer` gave, of which no operation is under way. Idempotent."""

    async def prepare(self, secret: bytes) -> Pending:
        """Begin a connection.

        Args:
            secret: SECRET_BYTES that both ends have and nobody else has; the control plane derives
                them, and they never travel. Where access is by knowledge of unguessable numbers
                (verbs) they are not used; where anybody can connect (tcp) each end proves by them
                that it is the one that the control plane has spoken with.

        Raises:
            MachineError: no more connections are possible here; says which limit.
        """

    async def close(self) -> None:
        """End all connections, take all regions away, give all buffers back: children before
        parents. Idempotent."""
