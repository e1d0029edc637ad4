"""What a runner keeps of its state for whoever takes over from it, in a sealed memory file.

Two slots, written in turn: a snapshot that its writer didn't finish fails its checksum, and the one
before it is whole. So no word in this file has to be stored atomically, and a reader may look while
the writer still writes. Nothing here knows what the bytes mean: they go back to a codec of the same
role, never to another role's process, and are not read at all unless the checksum fits.

Format (little endian): slots of equal size, each a header of 128 bytes, the lengths of the parts
(8 bytes each), and the parts. The checksum is xxh3-64 over all but itself.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from dsec.errors import MachineError, SnapshotError
from dsec.ipc import segment

PARTS_MAX: Final = 1 << 16
_HEADER: Final = struct.Struct("<4sIQQQQQQQQII16s24xQ")
_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<Q")
_CHECKSUM_AT: Final = _HEADER.size - _CHECKSUM.size
_MAGIC: Final = b"DSKP"
_PAGE: Final = 4096
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_TRIES: Final = 3

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
    """

    seq: int
    own: int
    first: int
    second: int
    counted: int
    interval: int
    codec: str
    parts: Sequence[bytes | memoryview]


class Keeper:
    """The writing side: one runner's snapshots, the latest two.

    Attributes:
        size: bytes of the memory file; 0 before the first snapshot.
        fd: its descriptor, to be handed to the kernel; -1 before the first snapshot.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._generation = 0
        self._map: mmap.mmap | None = None
        self._slot = 0
        self.size = 0
        self.fd = -1

    def put(self, snapshot: Snapshot) -> bool:
        """Write a snapshot over the older of the two.

        Returns:
            Whether it went into a new, larger memory file, which the kernel must be given.

        Raises:
            MachineError: there is no memory for it; what was kept stays.
        """
        parts = snapshot.parts
        lengths = b"".join([_LENGTH.pack(len(part)) for part in parts])
        total = _HEADER.size + len(lengths) + sum(map(len, parts))
        fresh = total > self._slot
        if fresh:
            self._grow(total)
        assert self._map is not None, "it has been made"
        self._generation += 1
        head = _HEADER.pack(
            _MAGIC, len(parts), total, self._generation, snapshot.seq, snapshot.own, snapshot.first,
            snapshot.second, snapshot.counted, 0, snapshot.interval, 0,
            snapshot.codec.encode(), 0,
        )  # fmt: skip
        body = b"".join((lengths, *parts))
        digest = xxhash.xxh3_64(head[:_CHECKSUM_AT])
        digest.update(body)
        at = self._slot * (self._generation & 1)
        target = self._map
        target[at + _HEADER.size : at + total] = body
        target[at : at + _HEADER.size] = head[:_CHECKSUM_AT] + _CHECKSUM.pack(digest.intdigest())
        return fresh

    def _grow(self, total: int) -> None:
        slot = -(-(total + total // 2) // _PAGE) * _PAGE
        name = segment.short_name(f"dsec-kept-{self._name}")
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, 2 * slot)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            made = mmap.mmap(fd, 2 * slot)
            made.madvise(mmap.MADV_DONTFORK)  # what user code forks has no part in it
        except OSError as error:
            os.close(fd)
            raise MachineError(
                f"no room to keep a state of {total:,} bytes: {error.strerror}",
                "Give the machine or its cgroup more memory, or set failover.standby to none.",
            ) from None
        self.close()
        self.fd, self._map, self._slot, self.size = fd, made, slot, 2 * slot

    def close(self) -> None:
        """Let go of the memory file; again is no error."""
        if self._map is not None:
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
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        size = os.fstat(fd).st_size
    except OSError as error:
        raise SnapshotError(f"what was kept is no memory file: {error.strerror}") from None
    if seals & _SEALS != _SEALS or size < 2 * _PAGE or size % (2 * _PAGE):
        raise SnapshotError(f"what was kept is no memory file of snapshots ({size} bytes)")
    slot = size // 2
    for _ in range(_TRIES):  # the writer may be at work yet, and overwrite what is being copied
        for at in sorted((0, slot), key=lambda at: -_generation(fd, at)):
            found = _read(fd, at, slot)
            if found is not None:
                return found
    return None


def _generation(fd: int, at: int) -> int:
    head = os.pread(fd, _HEADER.size, at)
    return int(_HEADER.unpack(head)[3]) if head[:4] == _MAGIC else -1


def _read(fd: int, at: int, slot: int) -> Snapshot | None:
    head = os.pread(fd, _HEADER.size, at)
    (
        magic, count, total, _, seq, own, first, second, counted, _, interval, _, codec, checksum,
    ) = _HEADER.unpack(head)  # fmt: skip
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
    return Snapshot(seq, own, first, second, counted, interval, name, parts)


def _pread(fd: int, nbytes: int, at: int) -> bytes:
    out = bytearray()
    while len(out) < nbytes:
        got = os.pread(fd, nbytes - len(out), at + len(out))
        if not got:
            break
        out += got
    return bytes(out)
