"""Ids of atoms: integers that are global and monotonic, and the UUIDs that say the same.

Owns two ways to give them. Where a run is deterministic, an id follows from the step and the
agent's rank, so that it never depends on who came first. Elsewhere ids are leased from a pool in
blocks: (epoch of the writer, block, offset), in this order, so that nobody has to ask for each.
All ids are below 2**62, which is what a UUID has room for; a UUID is its pool's name space and an
id, so that nothing has to be looked up, and nothing stored, to get from one to the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from dsec.errors import LocalError

ID_MAX = (1 << 62) - 1
EPOCH_BITS, BLOCK_BITS, OFFSET_BITS = 14, 28, 20
BLOCK_IDS = 1 << OFFSET_BITS

Space = tuple[int, int]
"""Two 64-bit numbers, of which a UUID keeps 60 bits."""


def deterministic(step: int, agents: int, rank: int) -> int:
    """The id of an atom at a boundary: step x agents + rank.

    Raises:
        LocalError: no such rank, or more steps than there are ids.
    """
    if not 0 <= rank < agents or step < 0:
        raise LocalError(f"no agent has rank {rank} of {agents} at step {step}")
    found = step * agents + rank
    if found > ID_MAX:
        raise LocalError(f"step {step} of {agents} agents is beyond the last id")
    return found


def place(atom_id: int, agents: int) -> tuple[int, int]:
    """The step and the rank that `deterministic` made this id of."""
    return divmod(atom_id, agents)


def leased(epoch: int, block: int, offset: int) -> int:
    """The id of these three. Raises LocalError if one of them has no place in it."""
    for name, value, bits in (
        ("epoch", epoch, EPOCH_BITS),
        ("block", block, BLOCK_BITS),
        ("offset", offset, OFFSET_BITS),
    ):
        if not 0 <= value < 1 << bits:
            raise LocalError(f"{name} {value} of an id is outside its {bits} bits")
    return (epoch << BLOCK_BITS | block) << OFFSET_BITS | offset


class Lease:
    """Gives ids one after the other, block by block.

    Args:
        epoch: of the pool's writer.
        lease: `Pool.lease`, or what asks the pool's process for a block.
    """

    def __init__(self, epoch: int, lease: Callable[[], int]) -> None:
        self._epoch = epoch
        self._lease = lease
        self._next = 0
        self._end = 0

    def take(self) -> int:
        """An id that nobody else has, and that is greater than all that this gave before."""
        if self._next == self._end:
            self._next = leased(self._epoch, self._lease(), 0)
            self._end = self._next + BLOCK_IDS
        found, self._next = self._next, self._next + 1
        return found


def to_uuid(space: Space, atom_id: int) -> uuid.UUID:
    """The UUID (version 8, RFC 9562) of an atom: 60 bits of its name space, 62 of its id."""
    if not 0 <= atom_id <= ID_MAX:
        raise LocalError(f"an atom's id is from 0 to 2**62 - 1, not {atom_id}")
    high = (space[0] & ~0xF000) | 0x8000
    return uuid.UUID(int=high << 64 | 0b10 << 62 | atom_id)


def from_uuid(space: Space, wanted: uuid.UUID) -> int | None:
    """The id of a UUID; None if it isn't of this name space."""
    atom_id = wanted.int & ID_MAX
    return atom_id if to_uuid(space, atom_id) == wanted else None


def shown(atom_id: int) -> str:
    """`ASA-000001`: how an id is written for people."""
    return f"ASA-{atom_id:06d}"
