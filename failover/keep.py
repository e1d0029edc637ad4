"""What a runner keeps of its state for whoever takes over from it, in a sealed memory file.

Slots, written in turn: a snapshot that its writer didn't finish fails its checksum, and the one
before it is whole. Two are enough for a successor. Where atoms are made of the snapshots there are
more, so that those of all roles at one boundary are still there when somebody looks. So no word in
this file has to be stored atomically, and a reader may look while the writer still writes. Nothing
here knows what the bytes mean: they go back to a codec of the same role, never to another role's
process, and are not read at all unless the checksum fits.

Format (little endian): slots of equal size, each a header of 128 bytes, the lengths of the parts
(8 bytes each), and the parts. The checksum is xxh3-64 over all but itself. It is written in C
(sml/keep.c), for it is written often, and read here.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import xxhash

from dsec.errors import MachineError, SnapshotError
from dsec.ipc import segment
from dsec.sml._pool import ffi, lib

PARTS_MAX: Final = 1 << 16
_HEADER: Final = struct.Struct("<4sIQQQQQQQQII16s24xQ")
_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM_AT: Final = _HEADER.size - 8
_MAGIC: Final = b"DSKP"
_PAGE: Final = 4096
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_TRIES: Final = 3
_ORDINARY: Final = 2
_HISTORY: Final = ((64 << 10, 8), (1 << 20, 4), (1 << 62, 3))
"""Slots where a history is kept, by the bytes of one. Those beyond the first two are for snapshots
at boundaries, which no other overwrites."""
_SLOTS: Final = (_ORDINARY, *(count for _, count in _HISTORY))

assert _HEADER.size == 128


class Snapshot(NamedTuple):
    """A runner's state at a boundary.

    Attributes:
        seq: the last record published before it.
        own: position in the runner's own ring after that record.
        first, second: positions in the rings that the runner reads, where it goes on reading.
        counted: a number of the role's own (the env's finished episodes).
        interval: records from one snapshot to the next, lately.
        codec: how the parts were made; at most 16 bytes.
        parts: the state, one part for each object.
        boundary: it was taken at a marker, where the other roles take theirs.
        faith: how far the codec can be trusted (sml/atom.py), as a number.
        beside: how many of the last parts are for the atom only; a successor doesn't see them.
    """

    seq: int
    own: int
    first: int
    second: int
    counted: int
    interval: int
    codec: str
    parts: Sequence[bytes | memoryview]
    boundary: bool = False
    faith: int = 0
    beside: int = 0


class Head(NamedTuple):
    """Where a snapshot lies in a memory file, unless it has been written over since.

    Attributes:
        generation: counts the snapshots of this file.
        at, room: its slot.
    """

    seq: int
    generation: int
    boundary: bool
    at: int
    room: int


class Keeper:
    """The writing side: one runner's snapshots, the latest few.

    Args:
        history: whether somebody compares them with those of other roles.

    Attributes:
        size: bytes of the memory file; 0 before the first snapshot.
        fd: its descriptor, to be handed to the kernel; -1 before the first snapshot.
    """

    def __init__(self, name: str, *, history: bool = False) -> None:
        self._name = name
        self._history = history
        self._c = ffi.new("asa_kept *", {"slots": _ORDINARY, "ordinary": _ORDINARY})
        self._at = ffi.new("asa_spot *")
        self._codec = ""
        self._memory: tuple[Any, ...] = ()  # what the pointers in it lead to
        self._map: mmap.mmap | None = None
        self.size = 0
        self.fd = -1

    def put(self, snapshot: Snapshot) -> bool:
        """Write a snapshot over the older of the two.

        Returns:
            Whether it went into a new, larger memory file, which the kernel must be given.

        Raises:
            MachineError: there is no memory for it; what was kept stays.
        """
        parts, at = snapshot.parts, self._at
        count = len(parts)
        lengths = struct.pack(f"<{count}Q", *map(len, parts))
        body = b"".join((lengths, *parts))
        at.seq, at.own, at.first, at.second = snapshot[:4]
        at.counted, at.interval = snapshot.counted, snapshot.interval
        at.flags = snapshot.boundary | snapshot.faith << 8 | snapshot.beside << 16
        if snapshot.codec is not self._codec:
            self._codec = snapshot.codec
            self._c.codec = self._codec.encode().ljust(16, b"\0")
        if self._map is not None and not lib.asa_keep(self._c, at, count, body, len(body)):
            return False
        self._grow(_HEADER.size + len(body))
        lib.asa_keep(self._c, at, count, body, len(body))
        return True

    def _grow(self, total: int) -> None:
        slot = -(-(total + total // 2) // _PAGE) * _PAGE
        slots = _ORDINARY
        if self._history:
            slots = next(count for most, count in _HISTORY if slot <= most)
        name = segment.short_name(f"dsec-kept-{self._name}")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, slots * slot)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            made = mmap.mmap(fd, slots * slot)
            made.madvise(mmap.MADV_DONTFORK)  # what user code forks has no part in it
        except OSError as error:
            os.close(fd)
            raise MachineError(
                f"no room to keep a state of {total:,} bytes: {error.strerror}",
                "Give the machine or its cgroup more memory, or set failover.standby to none.",
            ) from None
        self.close()
        self.fd, self._map, self.size = fd, made, slots * slot
        file, scratch = ffi.from_buffer("uint8_t[]", made), ffi.new("uint8_t[]", slot)
        self._memory = file, scratch
        self._c.file, self._c.scratch, self._c.slot, self._c.slots = file, scratch, slot, slots

    def close(self) -> None:
        """Let go of the memory file; again is no error."""
        if self._map is not None:
            ffi.release(self._memory[0])  # or the map could not be closed
            self._memory = ()
            self._map.close()
            self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def newest(fd: int) -> Snapshot | None:
    """The latest whole snapshot in a memory file; None if there is none. Copies.

    Raises:
        SnapshotError: this is no memory file of a keeper.
    """
    for _ in range(_TRIES):  # the writer may be at work yet, and overwrite what is being copied
        for head in sorted(heads(fd), key=lambda head: -head.generation):
            found = read(fd, head)
            if found is not None:
                own = len(found.parts) - found.beside
                return found._replace(parts=found.parts[:own], beside=0)
    return None


def heads(fd: int) -> list[Head]:
    """What a memory file seems to hold, in no order; `read` tells whether it does.

    Raises:
        SnapshotError: this is no memory file of a keeper.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError as error:
        raise SnapshotError(f"what was kept is no memory file: {error.strerror}") from None
    if seals & _SEALS != _SEALS or size < _ORDINARY * _PAGE or size % _PAGE:
        raise SnapshotError(f"what was kept is no memory file of snapshots ({size} bytes)")
    found = []
    for slots in _SLOTS:
        room = size // slots
        for at in range(0, size, room) if not size % (slots * _PAGE) else ():
            head = os.pread(fd, _HEADER.size, at)
            if head[:4] == _MAGIC:
                fields = _HEADER.unpack(head)
                if fields[9] == slots:
                    found.append(Head(fields[4], fields[3], bool(fields[11] & 1), at, room))
    return found


def read(fd: int, wanted: Head) -> Snapshot | None:
    """That snapshot, if it is there and whole. Copies."""
    head = os.pread(fd, _HEADER.size, wanted.at)
    (
        magic, count, total, generation, seq, own, first, second, counted, _, interval, flags,
        codec, checksum,
    ) = _HEADER.unpack(head)  # fmt: skip
    if generation != wanted.generation:
        return None
    at, slot = wanted.at, wanted.room
    lengths = _LENGTH.size * count
    if magic != _MAGIC or count > PARTS_MAX or not _HEADER.size + lengths <= total <= slot:
        return None
    body = memoryview(_pread(fd, total - _HEADER.size, at + _HEADER.size))
    digest = xxhash.xxh3_64(head[:_CHECKSUM_AT])
    digest.update(body)
    if digest.intdigest() != checksum:
        return None
    parts, begin = [], lengths
    for i in range(count):
        (length,) = _LENGTH.unpack_from(body, i * _LENGTH.size)
        parts.append(body[begin : begin + length])
        begin += length
    if begin != len(body):
        return None
    name = codec.rstrip(b"\0").decode("ascii", "replace")
    faith, beside = flags >> 8 & 0xFF, min(flags >> 16, count)
    return Snapshot(
        seq, own, first, second, counted, interval, name, parts, bool(flags & 1), faith, beside
    )


def _pread(fd: int, nbytes: int, at: int) -> bytes:
    out = bytearray()
    while len(out) < nbytes:
        got = os.pread(fd, nbytes - len(out), at + len(out))
        if not got:
            break
        out += got
    return bytes(out)
