"""Which of many small regions of this process's memory have changed, in one call.

For who keeps copies of objects and wants to know cheaply which ones are still right. This file
compares bytes; what they mean, and that they stay where they are, is known to who hands them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsec.ipc._ring import ffi, lib

_watch = lib.dsec_watch


class Region(NamedTuple):
    """Memory, and the object that owns it: while that is held here, the memory stays."""

    owner: Any
    address: int
    nbytes: int


class Watch:
    """Compares regions with what was in them the last time.

    Args:
        entries: each has its own regions; one without any never changes.
    """

    def __init__(self, entries: Sequence[Sequence[Region]]) -> None:
        flat = [(entry, each) for entry, regions in enumerate(entries) for each in regions]
        self._owners = [each.owner for _, each in flat]
        self._count = len(flat)
        self._regions = ffi.new("dsec_region[]", max(1, len(flat)))
        for i, (entry, each) in enumerate(flat):
            self._regions[i] = {"address": each.address, "nbytes": each.nbytes, "entry": entry}
        self._copies = ffi.new("uint8_t[]", max(1, sum(each.nbytes for _, each in flat)))
        self._found = ffi.new("uint32_t[]", max(1, len(flat)))
        self.changed()

    @property
    def parts(self) -> tuple[Any, int, Any, Any]:
        """For who looks in C: the regions, how many, their copies, room for what has changed."""
        return self._regions, self._count, self._copies, self._found

    def changed(self) -> list[int]:
        """The entries that have changed since the last call, ascending; the first one is made when
        this is constructed."""
        found = _watch(self._regions, self._count, self._copies, self._found)
        return list(ffi.unpack(self._found, found)) if found else []
