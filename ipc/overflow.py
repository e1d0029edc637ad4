"""Records larger than their ring: the end of the payload lies beside the ring, not in it.

A segment of an env or policy has, behind the ring's data, an overflow area: address space without
memory. A record that would crowd the ring keeps its fixed part there, with FLAG_OVERFLOW and 16
bytes that say where in the area the rest lies; the rest is written into the area and becomes the
writer's again when every cursor has passed the record. So a record of any size has the rules of
all: published by one store, held until the slowest reader gives it back, whole although its
writer is killed, and the segment is still one, sealed, of a fixed size, with a single writer.

The area is read and written with pread and pwrite, never mapped: what a peer wrote is copied once
before it is looked at, and memory that can't be had is an error and no SIGBUS. This file knows
nothing of what the bytes mean.
"""

from __future__ import annotations

import errno
import operator
import os
import struct
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final

from dsec.errors import CorruptRingError, LocalError, MachineError, RecordTooLarge
from dsec.ipc import memory, segment
from dsec.ipc._ring import lib
from dsec.ipc.faults import fail

if TYPE_CHECKING:
    from dsec.ipc.ring import Outbox, Peer

DESCRIPTOR: Final = struct.Struct("<QQ")  # offset in the area, bytes
INLINE_MAX: Final = 4096
"""What may always lie in the ring, however small that is: less is not worth a system call."""
IN_FLIGHT_BYTES: Final = 32 << 20
"""How much of the area may wait for readers at a time, where that are more than two records."""
IN_FLIGHT_RECORDS: Final = 64
_PAGE: Final = 4096
_RESERVE_BYTES: Final = 64 << 20

_writable: weakref.WeakSet[Area] = weakref.WeakSet()


def _forget_in_child() -> None:
    """What user code forks has no part in its runner's segment."""
    for area in list(_writable):
        area.close()


os.register_at_fork(after_in_child=_forget_in_child)


class Area:
    """The overflow area of one segment, by a descriptor of its own.

    Args:
        fd: of the segment; may be closed afterwards.
        size: of header page and ring; the area is what follows.

    Attributes:
        nbytes: of the area; 0 where the segment has none.
    """

    __slots__ = ("__weakref__", "_fd", "_start", "nbytes")

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        self._fd, self._start = -1, size
        self.nbytes = os.fstat(fd).st_size - size
        if self.nbytes > 0:
            try:
                self._fd = segment.duplicate(fd)
            except OSError as error:
                raise MachineError(
                    f"can't keep a segment's descriptor: {error.strerror}",
                    "Raise the limit of open files: `ulimit -n` or LimitNOFILE=.",
                ) from None
            if writable:
                _writable.add(self)

    def read(self, at: int, nbytes: int) -> bytes:
        """Return a copy of bytes in the area.

        Raises:
            CorruptRingError: they are not all there.
            LocalError: closed.
        """
        if at + nbytes > self.nbytes:
            raise CorruptRingError(f"an overflow of {nbytes:,} bytes at {at:,} is in no area")
        if self._fd < 0:
            raise LocalError("this overflow area was closed")
        if nbytes and self._written_to(at) < at + nbytes:
            # Else who claims a gigabyte that it never wrote would make its readers take one.
            raise CorruptRingError(f"an overflow of {nbytes:,} bytes at {at:,} was never written")
        parts: list[bytes] = []
        while nbytes:
            part = os.pread(self._fd, nbytes, self._start + at)
            if not part:
                raise CorruptRingError(f"an overflow ends {nbytes:,} bytes too early")
            parts.append(part)
            at, nbytes = at + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _written_to(self, at: int) -> int:
        """Where, from `at` on, the memory that somebody wrote ends."""
        try:
            return os.lseek(self._fd, self._start + at, os.SEEK_HOLE) - self._start
        except OSError:  # beyond all of it
            return at

    def write(self, at: int, data: bytes) -> None:
        """Put bytes into the area.

        Raises:
            MachineError: there is no memory for them.
            LocalError: closed.
        """
        if self._fd < 0:
            raise LocalError("this overflow area was closed")
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(self._fd, view, self._start + at)
                view, at = view[done:], at + done
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise _no_memory(len(data)) from None

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _no_memory(nbytes: int) -> MachineError:
    return MachineError(
        f"a record of {nbytes:,} bytes has no room in memory",
        "Run fewer agents, return smaller observations and infos, or give the machine or its "
        "cgroup more memory.",
    )


def tail(peer: Peer | Outbox, flags: int, offset: int, nbytes: int, fixed: int) -> memoryview:
    """What follows the fixed part of a record in `peer`'s ring, wherever it lies.

    Args:
        flags, offset, nbytes: of the record, as its reader has them.
        fixed: bytes of the fixed part; the caller has checked that the record has them.

    Raises:
        CorruptRingError: the record says that it has an overflow, and that isn't there.
    """
    inline = peer.buffer[offset + fixed : offset + nbytes]
    if not flags & lib.DSEC_FLAG_OVERFLOW:
        return inline
    return memoryview(fetch(peer, inline))


def fetch(peer: Peer | Outbox, payload_end: memoryview) -> bytes:
    """The overflow that the end of a record's payload describes.

    Raises:
        CorruptRingError: there is none in the area.
    """
    if len(payload_end) < DESCRIPTOR.size:
        raise CorruptRingError(f"{segment.role_name(peer.role)} segment: an overflow without place")
    at, nbytes = DESCRIPTOR.unpack(payload_end[len(payload_end) - DESCRIPTOR.size :])
    try:
        return peer.area.read(at, nbytes)
    except CorruptRingError as error:
        raise CorruptRingError(f"{segment.role_name(peer.role)} segment: {error}") from None


class Spill:
    """The writer's side of an overflow area: which parts of it are in use.

    The lowest free place is taken, so that few pages are ever touched. An outbox that a dead
    incarnation left is looked through once: what its published records refer to is in use until
    the readers have passed them.
    """

    __slots__ = ("_found", "_outbox", "_used")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # Ring position after the record, start and end in the area; in the order of the ring.
        self._used: deque[tuple[int, int, int]] = deque()
        self._found = False

    def commit(
        self, seq: int, kind: int, flags: int, fixed: int, rest: bytes, timeout_s: float
    ) -> None:
        """Commit the claimed record, whose first `fixed` bytes are written, with `rest` behind.

        Raises:
            RingTimeout, RingInterrupted: nothing is published; the same call may be made again.
            RecordTooLarge: it is larger than a quarter of the overflow area.
            MachineError: there is no memory for it.
            CorruptRingError, LocalError: as for Outbox.claim and Outbox.commit.
        """
        outbox = self._outbox
        place = -1
        if rest and self._wants(fixed, len(rest)):
            place, nbytes = self._put(rest, timeout_s), len(rest)
            rest = DESCRIPTOR.pack(place, nbytes)
            flags |= lib.DSEC_FLAG_OVERFLOW
        if rest:
            # A claim that follows another starts where that did: what is written stays.
            at = outbox.claim(fixed + len(rest), timeout_s) + fixed
            outbox.buffer[at : at + len(rest)] = rest
        outbox.commit(seq, kind, flags, fixed + len(rest))
        if place >= 0:
            self._used.append((outbox.tail, place, place + _paged(nbytes)))

    def _wants(self, fixed: int, rest: int) -> bool:
        """Whether so much behind a fixed part should not lie in the ring."""
        capacity = self._outbox.capacity
        takes = int(lib.dsec_stride(fixed + rest))
        return takes > capacity // 2 or (rest > INLINE_MAX and takes > capacity // 8)

    def _put(self, data: bytes, timeout_s: float) -> int:
        """Write the end of a record into the area; return where. It is in use once committed."""
        area = self._outbox.area
        most = area.nbytes // 4  # so that, whatever one record takes, a second has room beside it
        if len(data) > most:
            raise RecordTooLarge(
                f"a record with {len(data):,} bytes behind its fixed part on the"
                f" {segment.role_name(self._outbox.role)} ring; at most {most:,} are"
                " possible. Use smaller observations and infos"
            )
        if not self._found:
            self._find()
        at = self._place(len(data), timeout_s)
        available = memory.available_bytes()
        if available is not None and len(data) + _RESERVE_BYTES > available:
            raise _no_memory(len(data))
        area.write(at, data)
        return at

    def _find(self) -> None:
        """Take over what an earlier incarnation published and nobody has given back."""
        from dsec.ipc.join import iter_records

        outbox = self._outbox
        self._passed(outbox.tail)  # which looks at all cursors
        position = int(outbox.c.floor)
        start = position & (outbox.capacity - 1)
        published = outbox.buffer[start : start + (outbox.tail - position)]
        for record in iter_records(published):
            position += int(lib.dsec_stride(len(record.payload)))
            if record.flags & lib.DSEC_FLAG_OVERFLOW:
                end = record.payload[len(record.payload) - DESCRIPTOR.size :]
                at, nbytes = DESCRIPTOR.unpack(end)
                self._used.append((position, at, at + _paged(nbytes)))
        self._found = True

    def _passed(self, position: int) -> bool:
        """Whether all readers have given back what lies before that ring position."""
        code = lib.dsec_passed(self._outbox.c, position, 0.0)
        if code == lib.DSEC_TIMEOUT:
            return False
        self._check(code)
        return True

    def _check(self, code: int) -> None:
        if code:
            role = segment.role_name(self._outbox.role)
            fail(code, self._outbox.c.fault, f"room beside the {role} ring")

    def _place(self, nbytes: int, timeout_s: float) -> int:
        """Find room for so many bytes, waiting for readers where there is none."""
        wanted, used = _paged(nbytes), self._used
        while True:
            # The last is kept: a successor may need the last observation, whoever has read it.
            while len(used) > 1 and self._passed(used[0][0]):
                used.popleft()
            in_flight = sum(end - start for _, start, end in used)
            # A reader may hold one record until it has the next: two must always have room.
            fits = in_flight + wanted <= IN_FLIGHT_BYTES and len(used) < IN_FLIGHT_RECORDS
            if fits or len(used) < 2:
                return self._gap(wanted)
            self._check(lib.dsec_passed(self._outbox.c, used[0][0], timeout_s))

    def _gap(self, wanted: int) -> int:
        """Where so many bytes are free, as low as possible."""
        at = 0
        for _, start, end in sorted(self._used, key=operator.itemgetter(1)):
            if at + wanted <= start:
                break
            at = end
        return at


def _paged(nbytes: int) -> int:
    return max(_PAGE, (nbytes + _PAGE - 1) & -_PAGE)
