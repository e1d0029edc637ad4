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
            CorruptRingError: they are not all in the area.
            LocalError: closed.
        """
        if at + nbytes > self.nbytes:
            raise CorruptRingError(f"an overflow of {nbytes:,} bytes at {at:,} is in no area")
        if self._fd < 0:
            raise LocalError("this overflow area was closed")
        parts: list[bytes] = []
        while nbytes:
            part = os.pread(self._fd, nbytes, self._start + at)
            if not part:
                raise CorruptRingError(f"an overflow ends {nbytes:,} bytes too early")
            parts.append(part)
            at, nbytes = at + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

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


def tail(peer: Peer, flags: int, offset: int, nbytes: int, fixed: int) -> memoryview:
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


def fetch(peer: Peer, payload_end: memoryview) -> bytes:
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

    Places are taken in a circle and from the start wherever that is free, so that few pages are
    ever touched. An outbox that a dead incarnation left is looked through once: what its
    published records refer to is in use until the readers have passed them.
    """

    __slots__ = ("_found", "_outbox", "_used")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # Ring position after the record, start and end in the area; in the order of the ring.
        self._used: deque[tuple[int, int, int]] = deque()
        self._found = False

    def wants(self, fixed: int, rest: int) -> bool:
        """Whether a record of a fixed part and `rest` more bytes should not lie in the ring."""
        capacity = self._outbox.capacity
        takes = int(lib.dsec_stride(fixed + rest))
        return takes > capacity // 2 or (rest > INLINE_MAX and takes > capacity // 8)

    def put(self, data: bytes, timeout_s: float) -> bytes:
        """Write the end of the record that is claimed next; return its descriptor.

        Nothing is in use before `keep`: a second call replaces the first.

        Raises:
            RingTimeout, RingInterrupted: as for `Outbox.claim`, whose rules this follows.
            RecordTooLarge: it is larger than a quarter of the area.
            MachineError: there is no memory for it.
        """
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
        return DESCRIPTOR.pack(at, len(data))

    def keep(self, descriptor: bytes) -> None:
        """The record with this descriptor is committed: its place is in use."""
        at, nbytes = DESCRIPTOR.unpack(descriptor)
        self._used.append((self._outbox.tail, at, at + _paged(nbytes)))

    def _find(self) -> None:
        """Take over what an earlier incarnation published and nobody has given back."""
        from dsec.ipc.join import iter_records

        outbox = self._outbox
        self._passed(outbox.tail, 0.0)  # which looks at all cursors
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

    def _passed(self, position: int, timeout_s: float) -> bool:
        """Whether all readers have given back what lies before that ring position."""
        outbox = self._outbox
        code = lib.dsec_passed(outbox.c, position, timeout_s)
        if code == lib.DSEC_TIMEOUT and not timeout_s:
            return False
        if code:
            fail(code, outbox.c.fault, f"room beside the {segment.role_name(outbox.role)} ring")
        return True

    def _place(self, nbytes: int, timeout_s: float) -> int:
        """Find room for so many bytes, waiting for readers where there is none."""
        wanted, used = _paged(nbytes), self._used
        while True:
            while used and self._passed(used[0][0], 0.0):
                used.popleft()
            in_flight = sum(end - start for _, start, end in used)
            # A reader may hold one record until it has the next: two must always have room.
            if len(used) < 2 or in_flight + wanted <= IN_FLIGHT_BYTES:
                at = self._gap(wanted)
                if at >= 0:
                    return at
            self._passed(used[0][0], timeout_s)

    def _gap(self, wanted: int) -> int:
        """Where so many bytes are free; -1 if nowhere."""
        if not self._used:
            return 0
        first, last = self._used[0][1], self._used[-1][2]
        if last <= first:  # gone around
            return last if last + wanted <= first else -1
        if wanted <= first:
            return 0
        return last if last + wanted <= self._outbox.area.nbytes else -1


def _paged(nbytes: int) -> int:
    return max(_PAGE, (nbytes + _PAGE - 1) & -_PAGE)
