"""How an atom is found and proven in another host's memory, by nothing but one-sided READs.

Pure: each search is a generator that yields which spans it wants (all of a tuple may be fetched at
once) and is sent private copies of them. It knows no connection and no clock, and believes nothing:
a READ is fetched in no order, and the writer goes on meanwhile. What makes a copy the atom is its
checksum and generation, both in the data, and a cell that led there; what makes it damage is that
the cell still does.

Steps (docs/REMOTE_POOL.md counts them): cells, then atom, two round trips; where the cell is known
from before, both at once. A body that is longer than what was guessed costs one more.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

from dsec.errors import AtomAbsent, AtomCorrupt, AtomRecycled
from dsec.sml.pool import Entry
from dsec.sml.remote.words import (
    CELL,
    EMPTY,
    HEAD_BYTES,
    PAGE,
    TOMB,
    Cell,
    Geometry,
    Head,
    head_of,
    home,
    proven,
)

CELLS_AT_ONCE: Final = 8
SCAN_CELLS: Final = 1024
SCAN_HEADS: Final = 64
TRIES: Final = 100
GUESS_MIN: Final = 512
GUESS_MAX: Final = 1 << 20
KNOWN_MAX: Final = 1 << 17
ID_MAX: Final = (1 << 62) - 1

T = TypeVar("T")


class Span(NamedTuple):
    """Bytes of the region that are wanted."""

    offset: int
    nbytes: int


Asking = Generator[tuple[Span, ...], list[bytes], T]


class Searcher:
    """Searches of one region.

    Args:
        geometry: of its pool.
        name: of its pool, for messages.

    Attributes:
        recycled: how often the place of an atom held another one when its copy came.
        torn: how often a copy was of an atom in the middle of being written or freed.
    """

    def __init__(self, geometry: Geometry, name: str) -> None:
        self.geometry = geometry
        self.recycled = 0
        self.torn = 0
        self._name = name
        self._guess = 4096
        self._known: dict[int, Cell] = {}

    def get(self, atom_id: int) -> Asking[bytes]:
        """The body of an atom.

        Raises:
            AtomAbsent, AtomCorrupt: as PoolReader.get.
            AtomRecycled: its place was reused under every single try.
        """
        known = self._known.pop(atom_id, None)
        if known is not None:
            span = self._atom_span(known, self._guess)
            word, copy = yield (self._cell_span(known.number), span)
            if known.leads_as(int.from_bytes(word, "little")):
                found = yield from self._whole(known, atom_id, copy)
                if found is not None:
                    return self._keep(atom_id, known, found)
        cell, copy = yield from self._find(atom_id, self._guess)
        for _ in range(TRIES):
            found = yield from self._whole(cell, atom_id, copy)
            if found is not None:
                return self._keep(atom_id, cell, found)
            [word] = yield (self._cell_span(cell.number),)
            if cell.leads_as(int.from_bytes(word, "little")):
                raise AtomCorrupt(
                    f"{self._where(atom_id)}: cell {cell.number} leads to bytes that are not what "
                    "was written"
                )
            self._lost(atom_id, copy)
            cell, copy = yield from self._find(atom_id, self._guess)
        raise AtomRecycled(f"{self._where(atom_id)}: its place was reused under every try")

    def entry(self, atom_id: int) -> Asking[Entry]:
        """What a list would show of an atom. Raises as `get`."""
        cell, copy = yield from self._find(atom_id, 0)
        return head_of(copy).entry(cell.marks)

    def scan(self) -> Asking[list[Entry]]:
        """All atoms; damaged ones, and those that change meanwhile, may be missing."""
        found: list[Entry] = []
        for first in range(0, self.geometry.ncells, SCAN_CELLS):
            count = min(SCAN_CELLS, self.geometry.ncells - first)
            [raw] = yield (Span(PAGE + first * CELL, count * CELL),)
            cells = [
                Cell(first + index, word)
                for index, word in enumerate(_words(raw))
                if self._leads_somewhere(word)
            ]
            for at in range(0, len(cells), SCAN_HEADS):
                some = cells[at : at + SCAN_HEADS]
                heads = yield tuple(self._atom_span(cell, 0) for cell in some)
                again: list[Cell] = []
                for cell, raw_head in zip(some, heads, strict=True):
                    head = head_of(raw_head)
                    if self._fits(cell, head):
                        found.append(head.entry(cell.marks))
                        self._known[head.id] = cell
                    else:
                        again.append(cell)
                for cell in again:  # it was recycled meanwhile: look at what is there now
                    one = yield from self._look(cell.number)
                    found += [] if one is None else [one]
        return found

    # ------------------------------------------------------------ inside

    def _look(self, index: int) -> Asking[Entry | None]:
        for _ in range(TRIES):
            [raw] = yield (self._cell_span(index),)
            cell = Cell(index, int.from_bytes(raw, "little"))
            if not self._leads_somewhere(cell.word):
                return None
            raw_head, after = yield (self._atom_span(cell, 0), self._cell_span(index))
            head = head_of(raw_head)
            if self._fits(cell, head):
                return head.entry(cell.marks)
            if cell.leads_as(int.from_bytes(after, "little")):
                return None  # damaged
        return None

    def _find(self, atom_id: int, guess: int) -> Asking[tuple[Cell, bytes]]:
        """The cell that leads to an id, and a copy that begins with a header of this id."""
        ncells = self.geometry.ncells
        if not 0 <= atom_id <= ID_MAX:
            raise AtomAbsent(f"there is no {self._where(atom_id)}")
        at, tag = home(atom_id, ncells)
        seen = 0
        while seen < ncells:
            count = min(CELLS_AT_ONCE, ncells - at, ncells - seen)
            [raw] = yield (Span(PAGE + at * CELL, count * CELL),)
            for index, word in enumerate(_words(raw), start=at):
                if word == EMPTY:
                    raise AtomAbsent(f"there is no {self._where(atom_id)}")
                cell = Cell(index, word)
                if word != TOMB and cell.tag == tag:
                    found = yield from self._candidate(cell, atom_id, guess)
                    if found is not None:
                        return found
            seen += count
            at = (at + count) % ncells
        raise AtomAbsent(f"there is no {self._where(atom_id)}")

    def _candidate(self, cell: Cell, atom_id: int, guess: int) -> Asking[tuple[Cell, bytes] | None]:
        """The copy that a cell leads to; None if that is no atom of this id."""
        for _ in range(TRIES):
            sound = self._leads_somewhere(cell.word)
            if sound:
                [copy] = yield (self._atom_span(cell, guess),)
                head = head_of(copy)
                if self._fits(cell, head):
                    return (cell, copy) if head.id == atom_id else None
            [raw] = yield (self._cell_span(cell.number),)
            after = int.from_bytes(raw, "little")
            if cell.leads_as(after):
                raise AtomCorrupt(
                    f"{self._where(atom_id)}: cell {cell.number} leads to "
                    + ("another generation, or too many bytes" if sound else "no atom's place")
                )
            if sound:
                self._lost(atom_id, copy)
            if not self._leads_somewhere(after):
                return None
            cell = Cell(cell.number, after)
        raise AtomRecycled(f"{self._where(atom_id)}: its place was reused under every try")

    def _whole(self, cell: Cell, atom_id: int, copy: bytes) -> Asking[bytes | None]:
        """The body, if the copy (with the rest of it, where it was too short) is this atom."""
        head = head_of(copy)
        if head.id != atom_id or not self._fits(cell, head):
            return None
        there = len(copy) - HEAD_BYTES
        if head.nbytes > there:
            start = cell.offset + len(copy)
            [rest] = yield (Span(start, head.nbytes - there),)
            copy += rest
        if not proven(cell.generation, atom_id, copy):
            return None
        return copy[HEAD_BYTES : HEAD_BYTES + head.nbytes]

    def _keep(self, atom_id: int, cell: Cell, body: bytes) -> bytes:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[atom_id] = cell
        self._guess = max(GUESS_MIN, min(len(body), GUESS_MAX))
        return body

    def _lost(self, atom_id: int, copy: bytes) -> None:
        if head_of(copy).id == atom_id:
            self.torn += 1
        else:
            self.recycled += 1

    def _leads_somewhere(self, word: int) -> bool:
        if word in (EMPTY, TOMB):
            return False
        offset = Cell(0, word).offset
        return self.geometry.data <= offset <= self.geometry.size - HEAD_BYTES

    def _fits(self, cell: Cell, head: Head) -> bool:
        room = self.geometry.size - cell.offset - HEAD_BYTES
        return head.nbytes <= room and head.generation & 0x3FFF == cell.generation

    def _cell_span(self, index: int) -> Span:
        return Span(PAGE + index * CELL, CELL)

    def _atom_span(self, cell: Cell, guess: int) -> Span:
        left = self.geometry.size - cell.offset
        return Span(cell.offset, min(left, HEAD_BYTES + guess))

    def _where(self, atom_id: int) -> str:
        return f"atom {atom_id} of pool {self._name}"


def _words(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(raw) // CELL}Q", raw)
