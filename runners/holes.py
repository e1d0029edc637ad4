"""Fill the holes of a zygote's heap, so that what its runners allocate lies together.

Owns one trick, and why: Python gives a new object the first free place of its size, and after
thousands of imports there are free places all over the heap. A forked runner that allocates some
thousand objects writes to as many pages, each of which is copied for it alone, at some
microseconds and 4 KiB. With the holes filled its objects come from fresh pages, one after the
other. What fills the holes is shared by all runners.
"""

from __future__ import annotations

import sys

_CLASS_BYTES = 16  # from one size class of the small-object allocator to the next
_SMALL_BYTES_MAX = 512
_POOL_BYTES = 1 << 14
_POOL_HEAD_BYTES = 48
_FILLED_BYTES_MAX = 2 << 20  # of one class: an interpreter with another allocator knows no pools

_fillers: list[bytes] = []


def fill() -> int:
    """Take the free places of the small-object allocator; again takes those that came since.

    A class has no holes left when its allocator has opened a new pool, of which it hands out all
    places in order.

    Returns:
        How many places were taken.
    """
    before = len(_fillers)
    head = sys.getsizeof(b"")
    for size in range(-(-head // _CLASS_BYTES) * _CLASS_BYTES, _SMALL_BYTES_MAX + 1, _CLASS_BYTES):
        whole = (_POOL_BYTES - _POOL_HEAD_BYTES) // size
        last = in_order = 0
        for _ in range(_FILLED_BYTES_MAX // size):
            filler = bytes(size - head)
            _fillers.append(filler)
            in_order = in_order + 1 if id(filler) - last == size else 0
            last = id(filler)
            if in_order >= whole - 1:
                break
    return len(_fillers) - before
