"""What a pool of atoms is, whatever holds it: the interface that every backend implements.

Owns the values that pass through it and the two protocols, reader and writer. A backend is proven
by the contract suite in tests/sml/test_pool_contract.py, which knows nothing but this file. A pool
knows nothing of what an atom means: a body is bytes, and its label says whose bytes they are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

Body = bytes | bytearray | memoryview


class Marks(enum.IntFlag):
    """Why an atom may not be freed, as far as the pool itself remembers it."""

    NONE = 0
    PINNED = 1
    """Somebody asked for it by name: a checkpoint to keep."""
    STANDBY = 2
    """A standby would be restored from it."""


@dataclass(frozen=True, slots=True)
class Label:
    """Whose an atom is. The reclaimer attributes every byte by it.

    Attributes:
        id: global and monotonic (ids.py), below 2**62.
        agent: rank of the agent in its run, below 2**32, as are episode, rollout and created_s.
        episode: of that agent.
        rollout: of that agent.
        seq: the boundary at which it was captured: before action `seq`.
        created_s: Unix time.
    """

    id: int
    agent: int = 0
    episode: int = 0
    rollout: int = 0
    seq: int = 0
    created_s: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """An atom as a list shows it.

    Attributes:
        nbytes: of the body.
        room: bytes that it takes in the pool, header and rounding included.
        generation: of the pool when it was put; no two bodies share id and generation.
    """

    label: Label
    nbytes: int
    room: int
    generation: int
    marks: Marks


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a pool is.

    Attributes:
        atoms: live ones.
        atoms_max: as many as the index was made for.
        payload_bytes: of all bodies.
        room_bytes: that live atoms take of the data area, headers and rounding included.
        data_bytes: the data area.
        segment_bytes: all that the pool takes of the machine's memory.
    """

    atoms: int
    atoms_max: int
    payload_bytes: int
    room_bytes: int
    data_bytes: int
    segment_bytes: int


class PoolReader(Protocol):
    """Sees what a writer, here or in another process, has published. One thread at a time."""

    @property
    def space(self) -> tuple[int, int]:
        """The name space of this pool's UUIDs (ids.py)."""

    def get(self, atom_id: int) -> bytes:
        """The body of an atom. One of four things happens: these bytes, exactly as they were put;
        AtomAbsent; AtomCorrupt, and the message says what was found; PoolBusy, the writer reused
        the place under every single try.
        """

    def entry(self, atom_id: int) -> Entry:
        """What a list would show of it. Raises AtomAbsent, AtomCorrupt or PoolBusy."""

    def entries(self) -> Iterator[Entry]:
        """All atoms, in no order. Those put or freed meanwhile may be among them or not; damaged
        ones are left out."""

    def usage(self) -> Usage:
        """How full it is."""

    def close(self) -> None:
        """Let go of it. Idempotent; everything else then raises LocalError."""


class Pool(PoolReader, Protocol):
    """The one writer. What it has published survives its death at any instruction."""

    @property
    def epoch(self) -> int:
        """Counts the writers that this pool has had; no two have the same."""

    def put(self, label: Label, body: Body) -> None:
        """Store an atom and publish it. Nothing has changed if it raises.

        Raises:
            AtomExists: an id names one atom for ever.
            PoolFull: no room, or as many atoms as it was made for.
            AtomTooLarge: it would not fit the empty pool.
            LocalError: an empty body, or a label outside its ranges.
        """

    def free(self, atom_id: int) -> None:
        """Take an atom away, whatever its marks. Raises AtomAbsent."""

    def mark(self, atom_id: int, marks: Marks) -> None:
        """Set its marks to exactly these. Raises AtomAbsent."""

    def lease(self) -> int:
        """The number of a block of ids that nobody else ever gets from this pool."""
