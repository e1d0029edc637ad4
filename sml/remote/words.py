"""The seam of the remote pool to the C core: memory by address, headers, cells and single words.

Owns what a region's bytes look like from far away: the identity page that a reader fetches once,
where an id's search begins, what a cell says, and when a private copy is the atom that was looked
for. Everything that came from another machine is copied before it gets here, and believed only
where a checksum says so. Knows no transport.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsec.errors import (
    LocalError,
    PoolCorrupt,
    PoolForeign,
    PoolTooNew,
    PoolTooOld,
    PoolTruncated,
    PoolUnfinished,
)
from dsec.sml._pool import ffi, lib
from dsec.sml.pool import Entry, Label, Marks

HEAD_BYTES: Final = lib.ASA_HEAD
GRAIN: Final = lib.ASA_GRAIN
CELL: Final = lib.ASA_CELL
PAGE: Final = lib.ASA_PAGE
EMPTY: Final = 0
TOMB: Final = 1
_MARKS: Final = 3 << 62
_UNUSABLE = {
    lib.ASA_BAD_MAGIC: PoolForeign,
    lib.ASA_BAD_UNFINISHED: PoolUnfinished,
    lib.ASA_BAD_OLD: PoolTooOld,
    lib.ASA_BAD_NEW: PoolTooNew,
    lib.ASA_BAD_IDENT: PoolCorrupt,
    lib.ASA_BAD_SIZE: PoolTruncated,
    lib.ASA_BAD_GEOMETRY: PoolCorrupt,
}
_HEAD = struct.Struct("<QQIIIIIIQ")
assert _HEAD.size == HEAD_BYTES


def memory_of(address: int, nbytes: int) -> memoryview:
    """Memory of this process by its address. The caller keeps it in place."""
    return memoryview(ffi.buffer(ffi.cast("uint8_t *", address), nbytes))


def address_of(memory: object) -> int:
    """The address of a writable buffer's first byte."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer("uint8_t[]", memory)))


def store_word(address: int, word: int) -> None:
    """Store eight bytes at once, behind all that was written before. `address` is aligned."""
    lib.asa_word_store(ffi.cast("void *", address), word)


def load_word(address: int) -> int:
    """Load a word that a peer may have stored, and be sure to see what it wrote before."""
    return int(lib.asa_word_load(ffi.cast("void *", address)))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where things lie in a pool's segment.

    Attributes:
        size: of the segment, bytes.
        ncells: of its index, which begins behind the first page.
        data: offset of the data area.
        grains: of the data area.
        space: the name space of its UUIDs.
        epoch: of its writer, when this was read.
    """

    size: int
    ncells: int
    data: int
    grains: int
    space: tuple[int, int]
    epoch: int


def geometry(page: bytes, size: int) -> Geometry:
    """What a segment's first page says.

    Args:
        page: a private copy of the first PAGE bytes.
        size: of the region.

    Raises:
        PoolError: it is no pool that this version can read; the subclass says why.
    """
    if len(page) < PAGE:
        raise LocalError(f"a pool's first page has {PAGE} bytes, not {len(page)}")
    view, copy = ffi.new("asa_view *"), ffi.new("uint8_t[]", page)
    if lib.asa_view_open(view, copy, size) != lib.ASA_OK:
        fault = view.fault
        kind = _UNUSABLE[fault.what]
        raise kind(
            f"another host's pool can't be read: {kind.__doc__} found {fault.found:#x}, "
            f"not {fault.wanted:#x}"
        )
    return Geometry(
        size, view.ncells, view.data, view.grains, (view.space[0], view.space[1]), view.epoch
    )


class Cell(NamedTuple):
    """A cell of the index, as it was read.

    Attributes:
        number: which.
        word: its value.
    """

    number: int
    word: int

    @property
    def tag(self) -> int:
        """Sixteen bits of its id's hash."""
        return self.word >> 32 & 0xFFFF

    @property
    def generation(self) -> int:
        """Fourteen bits of its atom's generation."""
        return self.word >> 48 & 0x3FFF

    @property
    def marks(self) -> Marks:
        """Of its atom."""
        return Marks(self.word >> 62)

    @property
    def offset(self) -> int:
        """Where in the segment its atom's header begins."""
        return (self.word & 0xFFFF_FFFF) * GRAIN

    def leads_as(self, word: int) -> bool:
        """Whether a later value leads to the same atom: marks may differ."""
        return (self.word ^ word) & ~_MARKS == 0


class Head(NamedTuple):
    """The header in front of a body, as it was read: proven by nothing yet."""

    id: int
    sum: int
    nbytes: int
    generation: int
    agent: int
    episode: int
    rollout: int
    created_s: int
    seq: int

    @property
    def label(self) -> Label:
        """Whose atom it is."""
        return Label(self.id, self.agent, self.episode, self.rollout, self.seq, self.created_s)

    def entry(self, marks: Marks) -> Entry:
        """As a list shows it."""
        room = int(lib.asa_room(self.nbytes))
        return Entry(self.label, self.nbytes, room, self.generation, marks)


def head_of(copy: bytes | memoryview) -> Head:
    """The header at the beginning of a copy."""
    return Head(*_HEAD.unpack_from(copy))


def home(atom_id: int, ncells: int) -> tuple[int, int]:
    """The cell at which an id's search begins, and the tag of its cell."""
    tag = ffi.new("uint32_t *")
    return int(lib.asa_where(atom_id, ncells, tag)), int(tag[0])


def proven(generation: int, atom_id: int, copy: bytes | bytearray | memoryview) -> bool:
    """Whether a private copy of header and body is this atom, whole.

    Args:
        generation: what the header must have, as far as the 14 bits of a cell tell.
    """
    word = (generation & 0x3FFF) << 48
    data = ffi.from_buffer("uint8_t[]", copy)
    return bool(lib.asa_prove(word, atom_id, data, len(data)) == lib.ASA_OK)


def seal(label: Label, generation: int, body: bytes | bytearray | memoryview) -> bytes:
    """The header that proves a body on its way to another host.

    Raises:
        LocalError: a number of the label has no place in it.
    """
    head, data = ffi.new("asa_head *"), ffi.from_buffer("uint8_t[]", body)
    try:
        head.id, head.seq = label.id, label.seq
        head.agent, head.episode = label.agent, label.episode
        head.rollout, head.created_s = label.rollout, label.created_s
        head.nbytes, head.generation = len(data), generation & 0xFFFF_FFFF
    except OverflowError:
        raise LocalError(f"a number is out of range in {label}") from None
    lib.asa_seal(head, data)
    return bytes(ffi.buffer(head, HEAD_BYTES))
