"""The memory that compressed observations lie in: one mapping, given out in blocks.

Owns which block is whose and how many bytes are committed, which is what the threshold of a buffer
counts. The mapping is address space only; a block costs memory from its first use, or from the
beginning where it is preallocated. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import heapq
import mmap

import numpy as np
from numpy.typing import NDArray

from dsec.errors import BufferTooLarge

ALIGNMENT = 8
_PAGE = mmap.PAGESIZE
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; not every Python names it
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    """`nbytes`, rounded up."""
    return -(-nbytes // to) * to


class Arena:
    """Places for chunks of bytes, each inside one block.

    A block is given back when the last chunk in it is freed. The first ones are preallocated: they
    are committed at once and kept for good. Others are committed when they are needed and handed
    back to the system when they are empty.

    Args:
        block_bytes: size of a block, and of the largest chunk; a multiple of the page.
        blocks: how many there can be at all.
        preallocated: how many of them are committed from the beginning.

    Attributes:
        bytes: uint8 (blocks * block_bytes,), all of it.
        address: of the first of them.

    Raises:
        BufferTooLarge: the system refuses so much address space.
    """

    def __init__(self, block_bytes: int, blocks: int, preallocated: int) -> None:
        self.block_bytes = block_bytes
        size = block_bytes * blocks
        try:
            self._map = mmap.mmap(-1, size, flags=_FLAGS)
        except (OSError, ValueError, OverflowError) as error:
            raise BufferTooLarge(
                f"the system refuses {size:,} bytes of address space for compressed observations: "
                f"{error}"
            ) from None
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = self.bytes.ctypes.data
        self._live = [0] * blocks  # chunks in each block
        self._kept = preallocated
        self._free = list(range(blocks))  # a heap: those preallocated come first
        self._committed = preallocated
        self._block = -1  # the one that is being filled
        self._at = self._stored = 0
        self._sizes: dict[int, int] = {}
        if preallocated:
            self.bytes[: preallocated * block_bytes : _PAGE] = 0

    @property
    def committed(self) -> int:
        """Bytes that count: of preallocated blocks, used or not, and of the others in use."""
        return self._committed * self.block_bytes

    @property
    def stored(self) -> int:
        """Bytes that chunks lie in."""
        return self._stored

    def has_room(self, nbytes: int) -> bool:
        """Whether so much can be placed."""
        return bool(self._free) or (
            self._block >= 0 and self._at + aligned(nbytes) <= self.block_bytes
        )

    def more(self, nbytes: int) -> int:
        """Bytes by which `committed` would grow if so much were placed now."""
        if self._block >= 0 and self._at + aligned(nbytes) <= self.block_bytes:
            return 0
        return 0 if self._free and self._free[0] < self._kept else self.block_bytes

    def place(self, parts: list[bytes | memoryview], nbytes: int) -> int | None:
        """Copy the parts one behind the other; return where, or None where no block is left."""
        if self._block < 0 or self._at + aligned(nbytes) > self.block_bytes:
            if not self._free:
                return None
            filled, self._block, self._at = self._block, heapq.heappop(self._free), 0
            if self._block >= self._kept:
                self._committed += 1
            if filled >= 0 and not self._live[filled]:
                self._give_back(filled)
        start = at = self._block * self.block_bytes + self._at
        for part in parts:
            self._map[at : at + len(part)] = part
            at += len(part)
        self._at += aligned(nbytes)
        self._live[self._block] += 1
        self._sizes[start] = nbytes
        self._stored += nbytes
        return start

    def free(self, place: int) -> None:
        """Give a chunk back; nothing of it may be read afterwards."""
        self._stored -= self._sizes.pop(place)
        block = place // self.block_bytes
        self._live[block] -= 1
        if not self._live[block]:
            if block == self._block:
                self._at = 0  # nobody has anything in it: fill it anew
            else:
                self._give_back(block)

    def _give_back(self, block: int) -> None:
        heapq.heappush(self._free, block)
        if block >= self._kept:
            self._map.madvise(mmap.MADV_DONTNEED, block * self.block_bytes, self.block_bytes)
            self._committed -= 1
