"""One leaf of one agent's observations, from the moment that they are no longer kept whole.

Owns the split into planes (frames of a stack are stored once), the chunk that is being filled and
the table of those that are coded. Steps are numbered from 0 as they come in; which of them are
still wanted is lane.py's business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.buffer import codec
from dsec.buffer.arena import Arena
from dsec.buffer.leaves import FLOATS, Leaf

STACK_MAX = 16
_SLICE = 16  # observations that are decoded at a time where their frames are interleaved
Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How floats of the compressed tier are held; integers are exact always.

    Attributes:
        quantize: in a byte each, with a scale for each element and chunk.
        dtype: else in this dtype; None for their own, exactly.
    """

    quantize: bool = True
    dtype: np.dtype[Any] | None = None


@dataclass(slots=True)
class Chunk:
    """A chunk, and the steps that need it, first and last."""

    number: int
    first: int
    last: int


def stack_axes(shape: tuple[int, ...]) -> list[int]:
    """Along which axes an array of this shape may be a stack of frames."""
    return [axis for axis in (0, -1) if len(shape) >= 2 and 2 <= shape[axis] <= STACK_MAX]


def stack_axis(before: NDArray[Any], after: NDArray[Any]) -> int | None:
    """Along which axis `after` is `before` moved on by one frame: 0, -1, or None for no stack."""
    for axis in stack_axes(before.shape):
        old, new = np.moveaxis(before, axis, 0), np.moveaxis(after, axis, 0)
        if np.array_equal(old[1:], new[:-1]) and not np.array_equal(old, new):
            return axis
    return None


class PlaneStore:
    """The planes of one leaf.

    Args:
        axis: along which an observation is a stack of frames; None if it is one plane.
        count: planes in a chunk, of which the first is the key.
        steps_max: how many steps can be wanted at once.
        lossless: never quantise (actions).
    """

    def __init__(
        self, leaf: Leaf, arena: Arena, axis: int | None, count: int, steps_max: int, lossless: bool
    ) -> None:
        self._leaf, self._arena, self.axis, self._count = leaf, arena, axis, count
        self.stack = 1 if axis is None else leaf.shape[axis]
        self._nbytes = leaf.nbytes // self.stack
        shape = leaf.shape if axis is None else np.delete(leaf.shape, axis)
        # Of an image with colours a row is one of pixels.
        self._row = int(np.prod(shape[1:])) if len(shape) >= 2 else 0
        self._may_lose = leaf.floating and not lossless
        self._steps = 0
        # Planes that no chunk has yet; a step adds up to a whole stack to them.
        self._open = np.zeros((count + self.stack - 1, self._nbytes), np.uint8)
        self._open_first, self._opened = 0, 0
        self._last: NDArray[np.uint8] | None = None  # the planes of the latest step
        self._ids: Steps | None = None
        if axis is not None:
            self._ids = np.zeros((steps_max, self.stack), np.int64)
            self._last = np.zeros((self.stack, self._nbytes), np.uint8)
        if axis == -1:
            self._side = np.zeros((_SLICE * self.stack, self._nbytes), np.uint8)
        capacity = -(-steps_max * self.stack // count) + 2
        self._place = np.zeros(capacity, np.int64)
        self._kind = np.zeros(capacity, np.uint8)  # and in the high half the cast, plus one
        self.chunks: deque[Chunk] = deque()
        self.parked: list[Chunk] = []
        self._spans: dict[int, Chunk] = {}  # of chunks that are not coded yet, and of the last one

    @staticmethod
    def fixed_bytes(leaf: Leaf, axis: int | None, count: int, steps_max: int) -> int:
        """Bytes that a store takes before anything is in it."""
        stack = 1 if axis is None else leaf.shape[axis]
        table = (-(-steps_max * stack // count) + 2) * 9
        ids = (
            0 if axis is None else steps_max * stack * 8 + leaf.nbytes * (1 + _SLICE * (axis == -1))
        )
        return (count + stack - 1) * (leaf.nbytes // stack) + table + ids

    # ------------------------------------------------------------------ coming in

    @property
    def full(self) -> bool:
        """Whether a chunk has to be coded before another step can be taken in."""
        return self._opened >= self._count

    def code(self, how: Quantization) -> tuple[codec.Coded, int]:
        """The chunk that is due, and how its values were cast."""
        planes = self._open[: self._count]
        if not self._may_lose:
            return codec.exact(planes, self._row_of(self._leaf.dtype)), 0
        values = planes.view(self._leaf.dtype)
        if how.quantize:
            wide = values.astype(np.float32) if values.dtype.itemsize < 4 else values
            if (coded := codec.quantised(wide)) is not None:
                return coded, 0
        elif how.dtype is not None and how.dtype.itemsize < values.dtype.itemsize:
            with np.errstate(over="ignore"):
                cast = values.astype(how.dtype)
            if np.array_equal(np.isfinite(cast), np.isfinite(values)):
                return codec.exact(cast.view(np.uint8), self._row_of(how.dtype)), FLOATS.index(
                    how.dtype
                ) + 1
        return codec.exact(planes, self._row_of(self._leaf.dtype)), 0

    def placed(self, place: int, coded: codec.Coded, cast: int) -> None:
        """The chunk that was due is at `place` of the arena."""
        number = self._open_first // self._count
        index = number % len(self._place)
        self._place[index], self._kind[index] = place, coded.kind | cast << 4
        self._open_first += self._count
        self._opened -= self._count
        self._open[: self._opened] = self._open[self._count : self._count + self._opened].copy()
        self.chunks.append(self._spans[number])

    def take(self, value: NDArray[Any]) -> None:
        """Take in the value of the next step; there must be room."""
        step, self._steps = self._steps, self._steps + 1
        if self.axis is None:
            self._open[self._opened] = np.frombuffer(value.tobytes(), np.uint8)
            self._opened += 1
            self._need(step, step // self._count)
            return
        assert self._ids is not None and self._last is not None
        planes = np.moveaxis(value, self.axis, 0)
        new = np.ascontiguousarray(planes).view(np.uint8).reshape(self.stack, self._nbytes)
        ids = self._ids[step % len(self._ids)]
        before = self._ids[(step - 1) % len(self._ids)]
        if step and np.array_equal(new[:-1], self._last[1:]):
            ids[:-1] = before[1:]
            ids[-1] = before[-1] if np.array_equal(new[-1], self._last[-1]) else self._add(new[-1])
        else:
            for i, plane in enumerate(new):
                repeated = i and np.array_equal(plane, new[i - 1])
                ids[i] = ids[i - 1] if repeated else self._add(plane)
        self._last[:] = new
        for number in range(int(ids[0]) // self._count, int(ids[-1]) // self._count + 1):
            self._need(step, number)

    def _need(self, step: int, number: int) -> None:
        """This step needs that chunk."""
        if number not in self._spans:
            # Whatever is before the chunk before can't be reached by a stack any more.
            for old in [each for each in self._spans if each < number - self.stack]:
                del self._spans[old]
            self._spans[number] = Chunk(number, step, step)
        self._spans[number].last = step

    def _add(self, plane: NDArray[np.uint8]) -> int:
        self._open[self._opened] = plane
        self._opened += 1
        return self._open_first + self._opened - 1

    # ------------------------------------------------------------------ going out

    def free(self, chunk: Chunk) -> None:
        """Give a chunk's bytes back: no step that is wanted needs it."""
        self._arena.free(int(self._place[chunk.number % len(self._place)]))

    def read(self, steps: Steps) -> NDArray[Any]:
        """The values of steps, (n, *shape): whole, decoded, of the leaf's dtype."""
        leaf = self._leaf
        flat = np.empty((len(steps), leaf.nbytes), np.uint8)
        if not leaf.nbytes:
            pass
        elif self.axis == -1:
            self._read_interleaved(steps, flat)
        else:
            ids = steps if self._ids is None else self._ids[steps % len(self._ids)].reshape(-1)
            self._decode(ids, flat.reshape(-1, self._nbytes))
        return flat.view(leaf.dtype).reshape(len(steps), *leaf.shape)

    def _read_interleaved(self, steps: Steps, out: NDArray[np.uint8]) -> None:
        """Few at a time, by way of planes that lie side by side and stay in the cache."""
        assert self._ids is not None
        order = np.argsort(steps, kind="stable")
        for start in range(0, len(steps), _SLICE):
            rows = order[start : start + _SLICE]
            planes = self._side[: len(rows) * self.stack]
            self._decode(self._ids[steps[rows] % len(self._ids)].reshape(-1), planes)
            codec.interleave(planes, rows, self.stack, self._leaf.dtype.itemsize, out)

    def _decode(self, ids: Steps, out: NDArray[np.uint8]) -> None:
        rows = np.argsort(ids, kind="stable")
        ids = ids[rows]
        chunks, slots = np.divmod(ids, self._count)
        index = chunks % len(self._place)
        kinds = self._kind[index]
        at = (self._place[index] + self._arena.address).astype(np.uint64)
        waiting = ids >= self._open_first
        kinds[waiting] = codec.RAW
        at[waiting] = self._open.ctypes.data
        slots[waiting] = ids[waiting] - self._open_first
        kept = []  # what is decompressed has to outlive the call that reads it
        for chunk in np.unique(chunks[kinds & 15 == codec.ZSTD]):
            of = (chunks == chunk) & ~waiting
            place, kind = self._place[chunk % len(self._place)], int(kinds[of][0])
            nbytes = self._nbytes * self._cast(kind).itemsize // self._leaf.dtype.itemsize
            kept.append(codec.unsqueezed(self._arena.bytes, int(place), self._count, nbytes))
            at[of], kinds[of] = kept[-1].ctypes.data, kind & ~15 | codec.RAW
        quantised = kinds & 15 == codec.QUANT
        if quantised.any():
            self._dequantise(at[quantised], slots[quantised], rows[quantised], out)
        for kind in np.unique(kinds[~quantised] >> 4):
            of = ~quantised & (kinds >> 4 == kind)
            whole = kind == 0
            cast = self._cast(int(kind) << 4)
            nbytes = self._nbytes * cast.itemsize // self._leaf.dtype.itemsize
            target = out if whole else np.empty((int(of.sum()), nbytes), np.uint8)
            to = rows[of] if whole else np.arange(len(target))
            codec.decode(
                at[of], kinds[of] & 15, slots[of], to, self._count, self._row_of(cast), target
            )
            if not whole:
                out[rows[of]] = target.view(cast).astype(self._leaf.dtype).view(np.uint8)

    def _row_of(self, dtype: np.dtype[Any]) -> int:
        """Bytes of a row of a plane whose values are held in this dtype."""
        return self._row * dtype.itemsize

    def _cast(self, kind: int) -> np.dtype[Any]:
        return FLOATS[(kind >> 4) - 1] if kind >> 4 else self._leaf.dtype

    def _dequantise(
        self, at: NDArray[np.uint64], slots: Steps, rows: Steps, out: NDArray[np.uint8]
    ) -> None:
        own = self._leaf.dtype
        width = self._nbytes // own.itemsize
        wide = np.dtype(np.float64 if own.itemsize == 8 else np.float32)
        values = np.empty((len(slots), width), wide)
        codec.dequantise(at, slots, np.arange(len(slots)), values)
        out[rows] = values.astype(own, copy=False).view(np.uint8)
