"""Where the values of a space lie in shared memory, record by record.

This file owns byte offsets and the form of the env's and the reward's records; it knows no ring,
no futex and no process. A composite space becomes a tree of numpy arrays (dict for Dict, tuple
for Tuple) with a leading axis of n environments, equal in structure, dtype and shape to what
`gymnasium.vector` batches. Everything is computed once, when the space is known, so that a step
costs a few checks and the copy itself (leaves.py, which also says what may be written).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dsec.errors import LayoutError, LocalError, PeerError
from dsec.ipc import values
from dsec.ipc.frames import Role
from dsec.ipc.leaves import ArrayLeaf, Buffer, DictNode, Leaf, Node, ScalarLeaf, TupleNode, view
from dsec.ipc.spaces import (
    DEPTH_MAX,
    check_size,
    child_path,
    children,
    decode_spaces,
    encode_spaces,
    leaf_form,
)

__all__ = [
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

BATCH_BYTES_MAX = 1 << 30
LEAF_ALIGN = 16
RECORD_ALIGN = 64
RECORD_HEADER_BYTES = 32
RECORD_FINE_MAX = 4096
RING_BYTES_MIN = 64 * 1024
RING_BYTES_CAP = 4 * 1024 * 1024
RING_RECORDS_MIN = 8

# count of terminal observations, three words reserved so that what follows is aligned
_EXTRAS_HEAD = struct.Struct("<4I")


def _align(nbytes: int, to: int) -> int:
    return (nbytes + to - 1) & -to


class Layout:
    """The memory of n values of one space.

    Attributes:
        space: the space of one environment.
        n: values side by side.
        leaves: all arrays, in the order of the space.
        nbytes: size of the whole.
        views: `views(buffer, offset=0) -> tree` of arrays (n, *shape) on that memory; read-only
            where the memory is. LocalError if it is too small.
        write: `write(tree, i, value)` puts the value of environment i. LayoutError names the
            leaf, what was expected and what came.
        write_batch: `write_batch(tree, values)` puts all n, given as a tree of arrays.
        read: `read(tree, i) -> value`, a copy with the types that `gymnasium.vector.utils.iterate`
            gives: an array, or a numpy scalar where the shape is ().
        copy: `copy(tree) -> tree`, fresh and writable.

    Raises:
        LayoutError: a space that has no fixed size, or exceeds a limit; kind and path are named.
    """

    __slots__ = ("copy", "leaves", "n", "nbytes", "read", "space", "views", "write", "write_batch")

    views: Callable[..., Any]
    write: Callable[[Any, int, Any], None]
    write_batch: Callable[[Any, Any], None]
    read: Callable[[Any, int], Any]
    copy: Callable[[Any], Any]

    def __init__(self, space: Space[Any], n: int, name: str = "value") -> None:
        if n < 1:
            raise LocalError(f"a layout for {n} environments")
        self.space = space
        self.n = n
        leaves: list[Leaf] = []
        root = _plan(space, n, name, 0, leaves)
        self.leaves = tuple(leaves)
        self.nbytes = leaves[-1].offset + leaves[-1].nbytes if leaves else 0
        # Bound once: a step then calls the one leaf, or the root of the tree, directly.
        self.views = root.views
        self.write = root.write
        self.write_batch = root.write_batch
        self.read = root.read
        self.copy = root.copy


def _plan(space: Space[Any], n: int, path: str, depth: int, leaves: list[Leaf]) -> Node:
    if depth > DEPTH_MAX:
        raise LayoutError(f"{path}: spaces are nested deeper than {DEPTH_MAX}")
    form = leaf_form(space)
    if form is not None:
        dtype, shape = form
        check_size(path, shape, dtype.itemsize)
        end = leaves[-1].offset + leaves[-1].nbytes if leaves else 0
        nbytes = n * dtype.itemsize * math.prod(shape)
        if end + nbytes > BATCH_BYTES_MAX:
            raise LayoutError(
                f"{path}: {n} values take {end + nbytes} bytes up to here; at most"
                f" {BATCH_BYTES_MAX} are possible"
            )
        leaf = Leaf(path, dtype, shape, _align(end, LEAF_ALIGN), nbytes)
        leaves.append(leaf)
        return ArrayLeaf(leaf, n) if shape else ScalarLeaf(leaf, n)
    items = [
        (key, _plan(sub, n, child_path(path, key), depth + 1, leaves))
        for key, sub in children(space, path)
    ]
    if isinstance(space, spaces.Dict):
        return DictNode(path, items)
    return TupleNode(path, [node for _, node in items])


class EnvViews:
    """One env record as arrays: reward float64 (n,), flags uint8 (n,), obs a tree (n, ...)."""

    __slots__ = ("flags", "obs", "reward")

    def __init__(self, reward: NDArray[np.float64], flags: NDArray[np.uint8], obs: Any) -> None:
        self.reward = reward
        self.flags = flags
        self.obs = obs


class EnvRecord:
    """The payload of an env's record: reward, flags and observation of n environments, then
    extras, which most records don't have.

    Attributes:
        n: environments.
        layout: the observation's layout, which starts at `obs_off`.
        reward_off, flags_off, obs_off: offsets in bytes from the payload's start.
        fixed_bytes: size without extras, which follow at this offset.
    """

    __slots__ = ("_final", "_stride", "fixed_bytes", "flags_off", "layout", "n", "obs_off")
    reward_off = 0

    def __init__(self, obs_space: Space[Any], n: int) -> None:
        self.n = n
        self.layout = Layout(obs_space, n, "observation")
        self.flags_off = 8 * n
        self.obs_off = _align(9 * n, LEAF_ALIGN)
        self.fixed_bytes = self.obs_off + self.layout.nbytes
        self._final = Layout(obs_space, 1, "observation")
        self._stride = _align(self._final.nbytes, LEAF_ALIGN)

    def views(self, buffer: Buffer, offset: int = 0) -> EnvViews:
        """Return the record at `offset` as arrays on that memory, read-only where it is."""
        return EnvViews(
            view(buffer, offset, (self.n,), np.dtype(np.float64)),
            view(buffer, offset + self.flags_off, (self.n,), np.dtype(np.uint8)),
            self.layout.views(buffer, offset + self.obs_off),
        )

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
        out = bytearray(_EXTRAS_HEAD.size + len(indices) * self._stride)
        _EXTRAS_HEAD.pack_into(out, 0, len(indices), 0, 0, 0)
        at = _EXTRAS_HEAD.size
        for i in indices:
            self._final.write(self._final.views(out, at), 0, finals[i])
            at += self._stride
        out += struct.pack(f"<{len(indices)}I", *indices)
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
        count, *reserved = _EXTRAS_HEAD.unpack_from(data)
        indices_at = _EXTRAS_HEAD.size + count * self._stride
        infos_at = indices_at + 4 * count
        if any(reserved) or count > self.n or infos_at > len(data):
            raise PeerError(f"extras of {len(data)} bytes with {count} terminal observations")
        indices = struct.unpack_from(f"<{count}I", data, indices_at)
        if any(i >= self.n for i in indices) or list(indices) != sorted(set(indices)):
            raise PeerError(f"terminal observations of environments {indices} of {self.n}")
        finals = {
            i: self._final.read(self._final.views(data, _EXTRAS_HEAD.size + k * self._stride), 0)
            for k, i in enumerate(indices)
        }
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
    total = _align(RECORD_HEADER_BYTES + payload, RECORD_ALIGN)
    if total > RECORD_FINE_MAX:
        total = _align(total, 1 << (total.bit_length() - 1) >> 3)
    return total


def ring_bytes(
    obs_space: Space[Any], action_space: Space[Any], n: int, slots: int
) -> dict[int, int]:
    """Return the data bytes of each role's outbox, powers of two by role number.

    A ring holds `slots` records, but at least RING_RECORDS_MIN of them and RING_BYTES_MIN bytes,
    and not more than RING_BYTES_CAP unless RING_RECORDS_MIN records need it. The recorder writes
    no records. Extras are not counted: a record with them takes more, and the ring then holds
    fewer.
    """
    payloads = {
        Role.ENV: EnvRecord(obs_space, n).fixed_bytes,
        Role.POLICY: Layout(action_space, n, "action").nbytes,
        Role.REWARD: RewardRecord(n).fixed_bytes,
    }
    sizes = {int(role): _ring_size(record_bytes(size), slots) for role, size in payloads.items()}
    sizes[int(Role.RECORDER)] = 0
    return sizes


def _ring_size(record: int, slots: int) -> int:
    least = max(RING_BYTES_MIN, RING_RECORDS_MIN * record)
    wanted = max(least, min(slots * record, RING_BYTES_CAP))
    return 1 << (wanted - 1).bit_length()
