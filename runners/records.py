"""Raw records, as they lie in the ring and in the journal, as numpy arrays; and values as leaves.

Owns how records are taken apart. A run at a time, not one by one: those of one size lie at one
stride, so a column of a run is a strided view. Knows neither transitions nor who asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dsec.errors import JournalError, LayoutError, PeerError
from dsec.ipc.layout import EnvRecord, Layout, Leaf, RewardRecord, decode_spaces, record_bytes
from dsec.ipc.ring import FLAG_REQUEST, KIND_ACTION, KIND_OBS, KIND_REWARD
from dsec.ipc.spaces import children
from dsec.runners.journal import Block, Declaration

HEAD: Final = np.dtype(
    [
        ("position", "<u8"),
        ("seq", "<u8"),
        ("nbytes", "<u4"),
        ("epoch", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("mark", "<u4"),
    ]
)
_RUN_GUESS: Final = 16

Path = tuple[str | int, ...]
LeafValues = list[NDArray[Any]]
"""An array for each leaf of a space, in its order; of dtype object where a leaf has no fixed size:
its elements are the values, as `VariableLeaf` gives them."""


@dataclass(frozen=True, slots=True)
class Span:
    """Records of one kind and size, one after the other at one stride, in a buffer."""

    buffer: memoryview
    offset: int
    stride: int
    heads: NDArray[Any]

    @property
    def payload_bytes(self) -> int:
        """Payload of each record."""
        return int(self.heads["nbytes"][0])

    def column(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """The array (records, *shape) that lies `offset` bytes into each payload; a view."""
        strides: list[int] = []
        size = dtype.itemsize
        for side in reversed(shape):
            strides.insert(0, size)
            size *= side
        return np.ndarray(
            (len(self.heads), *shape),
            dtype,
            self.buffer,
            self.offset + HEAD.itemsize + offset,
            (self.stride, *strides),
        )

    def payload(self, i: int) -> memoryview:
        """The payload of record i."""
        start = self.offset + i * self.stride + HEAD.itemsize
        return self.buffer[start : start + self.payload_bytes]


def split(buffer: memoryview, kind: int) -> list[Span]:
    """Find the records of this kind in raw ring bytes, in order.

    Raises:
        JournalError: the bytes are no row of records.
    """
    found: list[Span] = []
    at, guess = 0, _RUN_GUESS
    while at < len(buffer):
        if len(buffer) - at < HEAD.itemsize:
            raise JournalError(f"{len(buffer) - at} bytes at {at} are no record")
        first = np.ndarray((), HEAD, buffer, at)
        stride = record_bytes(int(first["nbytes"]))
        room = (len(buffer) - at) // stride
        if room == 0:
            raise JournalError(f"the record at {at} claims {int(first['nbytes'])} bytes")
        count = min(room, guess)
        heads = np.ndarray((count,), HEAD, buffer, at, (stride,))
        # Where the next size begins, what a header of this size would say is wrong: ring
        # positions grow by the stride from record to record.
        expected = first["position"] + np.arange(count, dtype=np.uint64) * np.uint64(stride)
        same = heads["position"] == expected
        for name in ("mark", "nbytes", "kind"):
            same &= heads[name] == first[name]
        wrong = np.flatnonzero(~same)
        if len(wrong):
            count, guess = int(wrong[0]), _RUN_GUESS
        else:
            guess *= 4
        if int(first["kind"]) == kind:
            found.append(Span(buffer, at, stride, heads[:count]))
        at += count * stride
    return found


def leaf_paths(space: Space[Any]) -> list[Path]:
    """The keys that lead to each leaf of a space, in the order of its layout's leaves."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [()]
    return [(key, *rest) for key, sub in children(space, "space") for rest in leaf_paths(sub)]


def flatten(space: Space[Any], tree: Any) -> list[Any]:
    """The leaves of a value of this space, in the order of its layout's leaves."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [tree]
    return [leaf for key, sub in children(space, "space") for leaf in flatten(sub, tree[key])]


def unflatten(space: Space[Any], leaves: Iterator[Any]) -> Any:
    """Build a value of this space's structure from its leaves."""
    if isinstance(space, spaces.Dict):
        return {key: unflatten(sub, leaves) for key, sub in children(space, "space")}
    if isinstance(space, spaces.Tuple):
        return tuple(unflatten(sub, leaves) for _, sub in children(space, "space"))
    return next(leaves)


def empty(space: Space[Any], n: int) -> LeafValues:
    """No values at all: an array (0, n, *leaf) for each leaf."""
    return [
        np.zeros((0, n, *leaf.shape), leaf.dtype)
        if isinstance(leaf, Leaf)
        else np.zeros((0, n), np.object_)
        for leaf in Layout(space, n).order
    ]


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """One array of several, with their dtype: concatenate() alone makes it native-endian."""
    if len(arrays) == 1:
        return arrays[0]
    shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
    return np.concatenate(arrays, out=np.empty(shape, arrays[0].dtype))


class Decoder:
    """Takes apart the records of agents that were declared alike.

    Raises:
        JournalError: the declaration doesn't fit this version's layouts.
    """

    def __init__(self, declaration: Declaration) -> None:
        try:
            self.obs_space, self.action_space = decode_spaces(declaration.spaces)
            self.n = declaration.num_envs
            self._first = declaration.first
            self.env = EnvRecord(self.obs_space, self.n)
            self.actions = Layout(self.action_space, self.n, "action")
            self.rewards = RewardRecord(self.n)
        except (LayoutError, PeerError) as error:
            raise JournalError(f"agent {declaration.agent!r}: {error}") from None
        here = (self.env.reward_off, self.env.flags_off, self.env.obs_off, self.env.fixed_bytes)
        there = (
            declaration.reward_off,
            declaration.flags_off,
            declaration.obs_off,
            declaration.fixed_bytes,
        )
        if here != there:
            raise JournalError(
                f"agent {declaration.agent!r} was recorded with the layout {there}; this version"
                f" of dsec-kernel has {here}. Read it with the version that wrote it."
            )

    def _column(
        self, spans: list[Span], offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> NDArray[Any]:
        out = np.empty((sum(len(span.heads) for span in spans), *shape), dtype)
        at = 0
        for span in spans:
            end = at + len(span.heads)
            out[at:end] = span.column(offset, dtype, shape)
            at = end
        return out

    def leaves(self, spans: list[Span], layout: Layout, offset: int, fixed: int) -> LeafValues:
        """One array for each leaf; copies. Those of fixed size are (records, n, *shape).

        Args:
            offset: of the layout in each payload.
            fixed: of what has no fixed size.

        Raises:
            PeerError: what has no fixed size is malformed.
        """
        variable = self._variable(spans, layout, fixed)
        return [
            self._column(spans, offset + leaf.offset, leaf.dtype, (self.n, *leaf.shape))
            if isinstance(leaf, Leaf)
            else next(variable)
            for leaf in layout.order
        ]

    def _variable(self, spans: list[Span], layout: Layout, fixed: int) -> Iterator[NDArray[Any]]:
        count = sum(len(span.heads) for span in spans)
        found = [np.empty((count, self.n), np.object_) for _ in layout.variable]
        slots = layout.bare()
        row = 0
        for span in spans if found else ():
            requests = span.heads["flags"] & FLAG_REQUEST != 0
            for k in range(len(span.heads)):
                if requests[k]:  # there is no action
                    row += 1
                    continue
                layout.unpack(slots, span.payload(k)[fixed:])
                for leaf, column, values in zip(layout.variable, found, slots, strict=True):
                    for i, value in enumerate(values):
                        column[row, i] = leaf.decode(value)
                row += 1
        return iter(found)

    def numbers(self, spans: list[Span], offset: int, dtype: str) -> NDArray[Any]:
        """One array (records, n) of the numbers at `offset`; a copy."""
        return self._column(spans, offset, np.dtype(dtype), (self.n,))

    def spans(self, block: Block) -> tuple[list[Span], list[Span], list[Span]]:
        """The records of a batch, checked against what the batch claims to hold.

        Raises:
            JournalError: a record is missing, too many, or of the wrong size.
        """
        env, policy, reward = (
            split(part, kind)
            for part, kind in zip(block.parts, (KIND_OBS, KIND_ACTION, KIND_REWARD), strict=True)
        )
        first, end = block.first_seq, block.first_seq + block.count
        # The first batch also holds the first observation, to which no transition led.
        begins = first == self._first
        _expect(env, first + (not begins), end + 1, self.env.fixed_bytes, None)
        most = None if self.actions.variable else self.actions.nbytes
        _expect(policy, first, end, self.actions.nbytes, most)
        _expect(reward, first, end, self.rewards.fixed_bytes, self.rewards.fixed_bytes)
        return env, policy, reward


def _expect(spans: list[Span], first: int, end: int, least: int, most: int | None) -> None:
    seqs = [span.heads["seq"] for span in spans]
    found = np.concatenate(seqs) if seqs else np.zeros(0, np.uint64)
    if not np.array_equal(found, np.arange(first, end, dtype=np.uint64)):
        raise JournalError(f"records {first} to {end - 1} are due; it holds {found.tolist()[:8]}")
    for span in spans:
        longer = most is not None and span.payload_bytes > most
        if longer and (span.heads["flags"] & FLAG_REQUEST).all():
            continue
        if span.payload_bytes < least or longer:
            raise JournalError(f"a record of {span.payload_bytes} bytes where {least} are due")
