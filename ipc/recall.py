"""What a ring still holds of what was published, for who takes over from a dead writer.

A ring is a log: the records before its tail lie there until the writer, a whole ring later, needs
their room. So a successor finds its predecessor's last record, and everything since some earlier
position, without having been a reader. This file looks at rings, own or others', without a cursor
and without writing a byte: it may be used while the predecessor is still being killed.

Nothing here trusts what it reads: a header is read once, and must say its own position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from dsec.errors import CorruptRingError, LocalError
from dsec.ipc._ring import ffi, lib
from dsec.ipc.segment import role_name

if TYPE_CHECKING:
    from dsec.ipc.ring import Outbox, Peer

_HEAD = struct.Struct("<QQIIHHI")
_RECORD = struct.Struct("<QQIIHHI")  # dsec_record: seq offset nbytes epoch kind flags stride
_AHEAD = 16
_MARK = lib.DSEC_RECORD_MARK
_GRAIN = lib.DSEC_GRAIN
_FINE_MAX = 4096  # above it a record's size has only eight steps to a power of two
_WRAP = (1 << 64) - 1


class Held(NamedTuple):
    """One record that lies in a ring.

    Attributes:
        position, end: where it begins and where the next one does, as ring positions.
        offset, nbytes: of its payload, in the ring's `buffer`.
    """

    position: int
    end: int
    seq: int
    kind: int
    flags: int
    epoch: int
    offset: int
    nbytes: int


class Positions(NamedTuple):
    """A segment's positions: where its ring began, its tail, and its cursors on other rings by
    the role that writes them."""

    start: int
    tail: int
    cursors: tuple[int, ...]


def positions(segment: Outbox | Peer) -> Positions:
    """Read them from the header page.

    Raises:
        LocalError: the handle is closed.
    """
    if segment.c.page == ffi.NULL:
        raise LocalError(f"the {role_name(segment.role)} segment was closed")
    start, tail = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    cursors = ffi.new("uint64_t[]", lib.DSEC_ROLES)
    lib.dsec_positions(segment.c.page, start, tail, cursors)
    return Positions(start[0], tail[0], tuple(cursors))


class Tally(NamedTuple):
    """What the dead writer of a ring had counted up to its last record: see `Outbox.note`."""

    episodes: int
    lost: int


def tally(segment: Outbox | Peer, seq: int) -> Tally:
    """What was counted at record `seq`, the last one; nothing where nothing was noted.

    Raises:
        LocalError: the handle is closed.
    """
    if segment.c.page == ffi.NULL:
        raise LocalError(f"the {role_name(segment.role)} segment was closed")
    episodes, lost = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    lib.dsec_tally_read(segment.c.page, seq, episodes, lost)
    return Tally(episodes[0], lost[0])


def distance(position: int, later: int) -> int:
    """Bytes from one position to a later one."""
    return (later - position) & _WRAP


def record_at(ring: Outbox | Peer, position: int, tail: int) -> Held:
    """The record that begins at `position`, below `tail`.

    Raises:
        CorruptRingError: no record begins there, or it isn't there any more.
    """
    held = _look(ring, position, tail)
    if held is None:
        raise _no_record(ring, position)
    return held


def _no_record(ring: Outbox | Peer, position: int) -> CorruptRingError:
    return CorruptRingError(
        f"{role_name(ring.role)} segment: no record begins at position {position}"
    )


def missing(ring: Outbox | Peer, seq: int) -> CorruptRingError:
    """The error for a record that is not where it must be."""
    return CorruptRingError(f"{role_name(ring.role)} segment: record {seq} is not there any more")


def records(ring: Outbox | Peer, position: int, tail: int) -> Iterator[Held]:
    """The records from `position` to `tail`, in order. They are looked at some ahead, so who reads
    a ring that is written to has to see afterwards that it was not written over.

    Raises:
        CorruptRingError: as `record_at`.
    """
    if ring.c.page == ffi.NULL:
        raise LocalError(f"the {role_name(ring.role)} segment was closed")
    out = ffi.new("dsec_record[]", _AHEAD)
    view = memoryview(ffi.buffer(out))
    while position != tail:
        found = lib.dsec_scan(ring.c.data, ring.c.capacity, position, tail, out, _AHEAD)
        if not found:
            raise _no_record(ring, position)
        scanned = _RECORD.iter_unpack(view[: found * _RECORD.size])
        for seq, offset, nbytes, epoch, kind, flags, taken in scanned:
            end = (position + taken) & _WRAP
            yield Held(position, end, seq, kind, flags, epoch, offset, nbytes)
            position = end


def last_record(ring: Outbox | Peer) -> Held | None:
    """The last record published; None if none was.

    It is looked for backwards from the tail, at the distances that records can have: the header
    there must say that very position and end at the tail.

    Raises:
        CorruptRingError: the ring has been written to, and no record ends at its tail.
    """
    start, tail, _ = positions(ring)
    if tail == start:
        return None
    return record_before(ring, tail)


def record_before(ring: Outbox | Peer, position: int) -> Held:
    """The record that ends at this position, which is one that a record ended at.

    Raises:
        CorruptRingError: there is none, or it isn't there any more.
    """
    for distance in _distances(ring.capacity // 2):
        held = _look(ring, (position - distance) & _WRAP, position)
        if held is not None and held.end == position:
            return held
    raise CorruptRingError(f"{role_name(ring.role)} segment: no record ends at {position}")


def _distances(most: int) -> Iterator[int]:
    """The sizes that records have (dsec_stride), ascending."""
    distance = _GRAIN
    while distance <= most:
        yield distance
        grain = _GRAIN if distance < _FINE_MAX else (1 << (distance.bit_length() - 1)) >> 3
        distance += grain


def _look(ring: Outbox | Peer, position: int, tail: int) -> Held | None:
    ahead = (tail - position) & _WRAP
    if position % _GRAIN or not 0 < ahead <= ring.capacity:
        return None
    at = position & (ring.capacity - 1)
    said, seq, nbytes, epoch, kind, flags, mark = _HEAD.unpack_from(ring.buffer, at)
    stride = int(lib.dsec_stride(nbytes))
    if said != position or mark != _MARK or stride > min(ahead, ring.capacity // 2):
        return None
    return Held(
        position, (position + stride) & _WRAP, seq, kind, flags, epoch, at + _HEAD.size, nbytes
    )
