"""The hash chain of one agent: a value of 128 bits for everything that it has done so far.

Two runs whose chains are equal at transition n did the same up to there: actions, rewards, the
environments' own rewards, ends and observations, terminal ones included, bit for bit. Owns the
seam to the C core (chain.c says what a link is made of). It knows where values lie, but no space,
no journal and no run: dsec.runners.chained brings them together.

The value *at seq n* is that of the transitions before n. The first observation of an episode counts
with the step that leaves it. All environments of a vector are in one chain: they live in one
process, are stepped at once, and an atom holds them together; which of them differs, `verify`
finds by looking. A step that was lost with its environment (G4) is in the chain as lost, with
neither its action nor its reward, for the recording leaves it out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import xxhash

from dsec.errors import JournalError, MachineError
from dsec.sml._pool import ffi, lib

VERSION: Final = 1
"""Of what a link is made of. Chains of different versions can't be compared."""
LINK_BYTES: Final = lib.ASA_LINK
MARK_EVERY: Final = lib.ASA_MARK_EVERY
NONE: Final = bytes(LINK_BYTES)
START: Final = xxhash.xxh3_128_digest(f"dsec chain {VERSION}".encode())
"""The value at seq 0."""

_MARK: Final = struct.Struct("<Q16s16s")
_ROLES: Final = ("env", "policy", "reward")

Readable = bytes | bytearray | memoryview


class Mark(NamedTuple):
    """A chain as it stands before transition `seq`; enough to go on from there.

    Attributes:
        value: the chain's value.
        first: the hash of the first observations that transition `seq` leaves; NONE if no episode
            begins there.
    """

    seq: int
    value: bytes
    first: bytes = NONE

    def pack(self) -> bytes:
        """As 40 bytes."""
        return _MARK.pack(*self)


MARK_BYTES: Final = _MARK.size
BEGIN: Final = Mark(0, START)


def unpack(data: Readable) -> list[Mark]:
    """Marks that were packed one after the other."""
    return [Mark._make(fields) for fields in _MARK.iter_unpack(data)]


class Place(NamedTuple):
    """Where an array of fixed size lies: in a record, and in the slot of a terminal observation."""

    offset: int
    final_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Where everything lies in an agent's records.

    Attributes:
        num_envs: environments in each record.
        flags_off: their flags, in an env record.
        obs_bytes, action_bytes: an env record and an action without their tails.
        final_stride: bytes of a terminal observation's slot.
        obs, action: the arrays; `obs_variable` and `action_variable` count what has no fixed size.
    """

    num_envs: int
    flags_off: int
    obs_bytes: int
    action_bytes: int
    final_stride: int
    obs: tuple[Place, ...]
    action: tuple[Place, ...]
    obs_variable: int = 0
    action_variable: int = 0


class Chain:
    """One agent's chain, and what it has grown to.

    Args:
        shape: of its records.
        at: where it stands.
    """

    __slots__ = ("_keep", "_made", "_marks", "_room", "c")

    def __init__(self, shape: Shape, at: Mark = BEGIN) -> None:
        c = self.c = ffi.gc(ffi.new("asa_chain *"), lib.asa_chain_free)
        obs, action = (
            ffi.new("asa_leaf[]", [tuple(place) for place in places])
            for places in (shape.obs, shape.action)
        )
        places = ffi.new("uint64_t[]", shape.num_envs)
        self._keep = obs, action, places
        c.shape.num_envs, c.shape.flags_off = shape.num_envs, shape.flags_off
        c.shape.obs_bytes, c.shape.action_bytes = shape.obs_bytes, shape.action_bytes
        c.shape.final_stride = shape.final_stride
        c.shape.obs, c.shape.obs_leaves = obs, len(shape.obs)
        c.shape.action, c.shape.action_leaves = action, len(shape.action)
        c.shape.obs_variable, c.shape.action_variable = shape.obs_variable, shape.action_variable
        c.places = places
        c.at.seq = at.seq
        ffi.memmove(c.at.value, at.value, LINK_BYTES)
        ffi.memmove(c.at.first, at.first, LINK_BYTES)
        self._made = ffi.new("uint64_t *")
        self._room = 0
        self._marks: Any = None

    @property
    def seq(self) -> int:
        """The transition that comes next."""
        return int(self.c.at.seq)

    @property
    def value(self) -> bytes:
        """The chain's value there."""
        return bytes(ffi.buffer(self.c.at.value, LINK_BYTES))

    @property
    def at(self) -> Mark:
        """Where it stands."""
        return Mark(self.seq, self.value, bytes(ffi.buffer(self.c.at.first, LINK_BYTES)))

    def take(self, env: Readable, policy: Readable, reward: Readable, count: int) -> memoryview:
        """Take transitions in, as raw records.

        Args:
            env: of the observations that they led to; at seq 0 observation 0 comes before them.
            policy, reward: of their actions and rewards.
            count: how many.

        Returns:
            The marks at boundaries, at multiples of MARK_EVERY and, last, at the end, packed; valid
            until the next call.

        Raises:
            JournalError: these are no such records; the chain is as it was.
        """
        if count >= self._room:
            self._room = max(64, 2 * count)
            self._marks = ffi.new("asa_point[]", self._room + 1)
        raw = [ffi.from_buffer("uint8_t[]", part) for part in (env, policy, reward)]
        e, p, r = raw
        try:
            code = lib.asa_chain_take(
                self.c, e, len(env), p, len(policy), r, len(reward), count, self._marks, self._made
            )
        finally:
            for part in raw:
                ffi.release(part)
        if code:
            self._fail(code)
        return memoryview(ffi.buffer(self._marks, self._made[0] * MARK_BYTES)).toreadonly()

    def _fail(self, code: int) -> None:
        if code == lib.ASA_NO_MEMORY:
            raise MachineError("no memory for one more record", "")
        role = _ROLES[self.c.bad_role]
        raise JournalError(f"record {self.c.bad_seq} of the {role} is none of this agent")


class Rows(NamedTuple):
    """Transitions in C order, whose observations and actions are hashed already.

    Attributes:
        seq: uint64, ascending; what is missing was lost.
        obs, action, first: 16 bytes a row.
        reward, env_reward: 8 bytes for each environment.
        flags: one byte for each environment.
    """

    seq: Any
    obs: Any
    action: Any
    first: Any
    reward: Any
    env_reward: Any
    flags: Any


class TableChain:
    """The chain of rows out of a table, which is the same as that of the records; from `at` on."""

    def __init__(self, num_envs: int, at: Mark = BEGIN) -> None:
        self._n = num_envs
        self._at = ffi.new("asa_point *")
        ffi.memmove(self._at, at.pack(), MARK_BYTES)
        self._made = ffi.new("uint64_t *")

    @property
    def at(self) -> Mark:
        """Where it stands."""
        return unpack(bytes(ffi.buffer(self._at)))[0]

    def take(self, rows: Rows, count: int) -> list[Mark]:
        """Take rows in; return the marks at multiples of MARK_EVERY."""
        parts = [ffi.from_buffer("uint8_t[]", part) for part in rows]
        c = ffi.new("asa_rows *")
        c.count, c.num_envs = count, self._n
        c.seq = ffi.cast("uint64_t *", parts[0])
        c.obs, c.action, c.first, c.reward, c.env_reward, c.flags = parts[1:]
        last = int(memoryview(rows.seq)[-1]) + 1 if count else self.at.seq
        marks = self._room(last)
        if lib.asa_chain_rows(self._at, c, marks, self._made):
            raise MachineError("no memory for one more row", "")
        return self._told(marks)

    def skip(self, until: int) -> list[Mark]:
        """Count everything before `until` as lost; return as `take` does."""
        marks = self._room(until)
        lib.asa_chain_skip(self._at, until, marks, self._made)
        return self._told(marks)

    def _room(self, until: int) -> Any:
        self._made[0] = 0
        return ffi.new("asa_point[]", max(0, until - self._at.seq) // MARK_EVERY + 1)

    def _told(self, marks: Any) -> list[Mark]:
        return unpack(bytes(ffi.buffer(marks, self._made[0] * MARK_BYTES)))


def hash_rows(data: Readable, nbytes: int, count: int) -> bytes:
    """The hashes, one after the other, of `count` rows of `nbytes`."""
    out = bytearray(LINK_BYTES * count)
    into = ffi.from_buffer("uint8_t[]", out)
    lib.asa_hash_rows(ffi.from_buffer("uint8_t[]", data), nbytes, count, into)
    return bytes(out)


def shown(values: Sequence[bytes]) -> str:
    """Values one after the other, in hexadecimal digits."""
    return b"".join(values).hex()
