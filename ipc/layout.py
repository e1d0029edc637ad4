"""The records of an env and a reward runner, and how large rings must be for them.

This file owns the form of a payload; it knows no ring, no futex and no process. Where a space's
values lie is tree.py's, whose `Layout` is offered here, too, with the description of spaces: users
of records need all three.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dsec.errors import LocalError, PeerError
from dsec.ipc import values
from dsec.ipc.frames import Role
from dsec.ipc.leaves import Buffer, Leaf, view
from dsec.ipc.spaces import decode_spaces, encode_spaces
from dsec.ipc.terms import FLAG_ASIDE, FLAG_INFRA
from dsec.ipc.tree import LEAF_ALIGN, Layout, align

__all__ = [
    "FLAG_ASIDE",
    "FLAG_FRESH",
    "FLAG_INFRA",
    "FLAG_TERMINATED",
    "FLAG_TRUNCATED",
    "EnvRecord",
    "EnvViews",
    "Layout",
    "Leaf",
    "RewardRecord",
    "decode_spaces",
    "encode_spaces",
    "record_bytes",
    "ring_bytes",
]

FLAG_TERMINATED = 1
FLAG_TRUNCATED = 2
FLAG_FRESH = 16
"""With FLAG_ASIDE: it was reset, and the observation is the first of an episode."""

RECORD_ALIGN = 64
RECORD_HEADER_BYTES = 32
RECORD_FINE_MAX = 4096
RING_BYTES_MIN = 64 * 1024
RING_BYTES_CAP = 4 * 1024 * 1024
RING_RECORDS_MIN = 8

VARIABLE_ROOM = 1024  # bytes in a ring for a variable value whose space names no maximum

# count of terminal observations, bytes of their variable parts, two words reserved for alignment
_EXTRAS_HEAD = struct.Struct("<4I")


class EnvViews:
    """One env record as arrays: reward float64 (n,), flags uint8 (n,), obs a tree (n, ...)."""

    __slots__ = ("flags", "obs", "reward")

    def __init__(self, reward: NDArray[np.float64], flags: NDArray[np.uint8], obs: Any) -> None:
        self.reward = reward
        self.flags = flags
        self.obs = obs


class EnvRecord:
    """The payload of an env's record: reward, flags and observation of n environments, then its
    tail: what of the observation has no fixed size, and extras, which most records don't have.

    Attributes:
        n: environments.
        layout: the observation's layout, which starts at `obs_off`.
        reward_off, flags_off, obs_off: offsets in bytes from the payload's start.
        fixed_bytes: size without the tail, which follows at this offset.
        final, final_stride: the layout of a terminal observation, and what its slot takes.
    """

    __slots__ = ("final", "final_stride", "fixed_bytes", "flags_off", "layout", "n", "obs_off")
    reward_off = 0

    def __init__(self, obs_space: Space[Any], n: int) -> None:
        self.n = n
        self.layout = Layout(obs_space, n, "observation")
        self.flags_off = 8 * n
        self.obs_off = align(9 * n, LEAF_ALIGN)
        self.fixed_bytes = self.obs_off + self.layout.nbytes
        self.final = Layout(obs_space, 1, "observation")
        self.final_stride = align(self.final.nbytes, LEAF_ALIGN)

    def views(self, buffer: Buffer, offset: int = 0) -> EnvViews:
        """Return the record at `offset` as arrays on that memory, read-only where it is."""
        return EnvViews(
            view(buffer, offset, (self.n,), np.dtype(np.float64)),
            view(buffer, offset + self.flags_off, (self.n,), np.dtype(np.uint8)),
            self.layout.views(buffer, offset + self.obs_off),
        )

    def encode_tail(
        self, obs: Any, finals: Mapping[int, Any], infos: Sequence[Mapping[str, Any]]
    ) -> bytes:
        """Encode what follows the fixed part: variable leaves of `obs` (a tree of views that was
        written), and extras. Raises what `encode_extras` does."""
        return self.layout.pack(obs) + self.encode_extras(finals, infos)

    def open_tail(self, obs: Any, tail: bytes | memoryview) -> bytes | memoryview:
        """Let the variable leaves of `obs` (a tree of views) be those of `tail`; return the extras.

        Raises:
            PeerError: the bytes are no tail of such a record.
        """
        return tail[self.layout.unpack(obs, tail) :]

    def encode_extras(self, finals: Mapping[int, Any], infos: Sequence[Mapping[str, Any]]) -> bytes:
        """Encode what doesn't occur in each step; empty if there is nothing.

        Args:
            finals: the terminal observation of each environment whose episode ended.
            infos: one dict for each environment.

        Raises:
            LayoutError: a terminal observation that doesn't fit the space.
            ValueCodecError: something in an info has no place in the codec; its path is named.
        """
        if len(infos) != self.n:
            raise LocalError(f"{len(infos)} infos for {self.n} environments")
        told = any(infos)
        if not finals:
            if not told:
                return b""
            return _EXTRAS_HEAD.pack(0, 0, 0, 0) + values.encode(list(infos), "infos")
        indices = sorted(finals)
        if indices[0] < 0 or indices[-1] >= self.n:
            raise LocalError(f"terminal observations of {indices} for {self.n} environments")
        out = bytearray(_EXTRAS_HEAD.size + len(indices) * self.final_stride)
        at = _EXTRAS_HEAD.size
        variable = b""
        for i in indices:
            views = self.final.views(out, at)
            self.final.write(views, 0, finals[i])
            variable += self.final.pack(views)
            at += self.final_stride
        _EXTRAS_HEAD.pack_into(out, 0, len(indices), len(variable), 0, 0)
        del views  # which keeps `out` from growing
        out += struct.pack(f"<{len(indices)}I", *indices)
        out += variable
        if told:
            out += values.encode(list(infos), "infos")
        return bytes(out)

    def decode_extras(
        self, data: bytes | memoryview
    ) -> tuple[dict[int, Any], list[dict[str, Any]]]:
        """Return `(finals, infos)` as given to `encode_extras`; all copies.

        Raises:
            PeerError, ValueCodecError: the bytes are no extras of such a record.
        """
        if not data:
            return {}, [{} for _ in range(self.n)]
        if len(data) < _EXTRAS_HEAD.size:
            raise PeerError(f"extras of {len(data)} bytes")
        count, nbytes, *reserved = _EXTRAS_HEAD.unpack_from(data)
        indices_at = _EXTRAS_HEAD.size + count * self.final_stride
        variable_at = indices_at + 4 * count
        infos_at = variable_at + nbytes
        if any(reserved) or count > self.n or infos_at > len(data):
            raise PeerError(f"extras of {len(data)} bytes with {count} terminal observations")
        indices = struct.unpack_from(f"<{count}I", data, indices_at)
        if any(i >= self.n for i in indices) or list(indices) != sorted(set(indices)):
            raise PeerError(f"terminal observations of environments {indices} of {self.n}")
        finals = {}
        for k, i in enumerate(indices):
            views = self.final.views(data, _EXTRAS_HEAD.size + k * self.final_stride)
            variable_at += self.final.unpack(views, data[variable_at:infos_at])
            finals[i] = self.final.read(views, 0)
        if infos_at == len(data):
            return finals, [{} for _ in range(self.n)]
        infos = values.decode(data[infos_at:])
        if type(infos) is not list or len(infos) != self.n:
            raise PeerError(f"infos are no list of {self.n} items")
        if not all(type(info) is dict for info in infos):
            raise PeerError("an info is no dict")
        return finals, infos


class RewardRecord:
    """The payload of a reward's record: float64 (n,)."""

    __slots__ = ("fixed_bytes", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self.fixed_bytes = 8 * n

    def views(self, buffer: Buffer, offset: int = 0) -> NDArray[np.float64]:
        """Return the rewards at `offset`, an array on that memory."""
        return view(buffer, offset, (self.n,), np.dtype(np.float64))


def record_bytes(payload: int) -> int:
    """Return what a record of `payload` bytes takes in a ring: a header of 32 bytes, a multiple
    of 64 in all, and above 4 KiB a multiple of an eighth of the power of two below, so that
    records start at few distinct offsets and cached views of them stay few."""
    total = align(RECORD_HEADER_BYTES + payload, RECORD_ALIGN)
    if total > RECORD_FINE_MAX:
        total = align(total, 1 << (total.bit_length() - 1) >> 3)
    return total


def ring_bytes(
    obs_space: Space[Any], action_space: Space[Any], n: int, slots: int
) -> dict[int, int]:
    """Return the data bytes of each role's outbox, powers of two by role number.

    A ring holds `slots` records, but at least RING_RECORDS_MIN of them and RING_BYTES_MIN bytes,
    and not more than RING_BYTES_CAP unless RING_RECORDS_MIN records need it. The recorder writes
    no records. Extras are not counted: a record with them takes more, and the ring then holds
    fewer. For variable leaves there is room for short ones; what is long goes beside the ring
    (overflow.py).
    """
    actions = Layout(action_space, n, "action")
    record = EnvRecord(obs_space, n)
    payloads = {
        Role.ENV: record.fixed_bytes + n * _variable_room(record.layout),
        Role.POLICY: actions.nbytes + n * _variable_room(actions),
        Role.REWARD: RewardRecord(n).fixed_bytes,
    }
    sizes = {int(role): _ring_size(record_bytes(size), slots) for role, size in payloads.items()}
    sizes[int(Role.RECORDER)] = 0
    return sizes


def _variable_room(layout: Layout) -> int:
    """Bytes that the variable leaves of one environment's value may be expected to take."""
    return sum(
        8 + min(VARIABLE_ROOM, 4 * leaf.space.max_length)
        if isinstance(leaf.space, spaces.Text)
        else 8 + VARIABLE_ROOM
        for leaf in layout.variable
    )


def _ring_size(record: int, slots: int) -> int:
    least = max(RING_BYTES_MIN, RING_RECORDS_MIN * record)
    wanted = max(least, min(slots * record, RING_BYTES_CAP))
    return 1 << (wanted - 1).bit_length()
