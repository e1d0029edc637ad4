"""From planes to chunks and back: which format a chunk gets, and the seam to the C of delta.c.

A plane is one frame of a stack, or one leaf of an observation, as bytes. A chunk is a fixed number
of planes that follow one another, coded together so that one of them can be decoded without the
chunks around it; its first plane, the key, is always there in full. Knows neither where chunks
lie nor what steps are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from dsec.buffer._delta import ffi, lib

Bytes = NDArray[np.uint8]
RAW: Final = int(lib.DELTA_RAW)
SPARSE: Final = int(lib.DELTA_SPARSE)
ZSTD: Final = 2
QUANT: Final = 3
LEVELS: Final = 255
"""Steps between the least and the greatest value of a quantised element."""
_DENSE: Final = 0.2  # of a chunk's bytes: with more changed than that zstd does better
_ZSTD_LEVEL: Final = 1
_ZSTD_FROM: Final = 256  # bytes of a plane; smaller ones are not worth a call for each chunk


@dataclass(frozen=True, slots=True)
class Coded:
    """A chunk, ready to be placed.

    Attributes:
        kind: RAW, SPARSE, ZSTD or QUANT.
        parts: its bytes, to be laid one behind the other.
        nbytes: their number.
    """

    kind: int
    parts: list[bytes | memoryview]
    nbytes: int


def exact(planes: Bytes, row: int) -> Coded:
    """Code planes, uint8 (count, nbytes), so that they come back bit for bit.

    What changed from plane to plane, if that is little; else zstd over their differences; else the
    bytes as they are. `row` is what a row of a plane takes, 0 if it has none.
    """
    count, nbytes = planes.shape
    room = int(planes.size * (1 / count + _DENSE)) + 4 * count
    out = np.empty(room, np.uint8)
    size = lib.delta_encode(_pointer(planes), count, nbytes, row, _pointer(out, write=True), room)
    if 0 <= size < planes.size:
        return Coded(SPARSE, [out[:size].data], size)
    if nbytes >= _ZSTD_FROM:
        differences = planes.copy()
        differences[1:] ^= planes[:-1]
        squeezed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(differences.data)
        if len(squeezed) < planes.size * 0.9:
            # The length goes in front: what is read back is a view of a larger block.
            return Coded(ZSTD, [len(squeezed).to_bytes(8, "little"), squeezed], 8 + len(squeezed))
    return Coded(RAW, [planes.reshape(-1).data], planes.size)


def quantised(values: NDArray[np.floating]) -> Coded | None:
    """Code values, float32 or float64 (count, width), in one byte each but for the first row.

    Each element has its own scale in each chunk, so the error of a value is at most half a step, a
    step being 1/255 of the range of that element in that chunk (0.2 % of the range), and the last
    place of its dtype. None where a value is not finite, or a range is beyond the dtype.
    """
    rest = values[1:].astype(np.float64)
    if not len(rest) or not np.isfinite(values).all():
        return None
    low, high = rest.min(axis=0), rest.max(axis=0)
    with np.errstate(over="ignore"):
        step = ((high - low) / LEVELS).astype(values.dtype)
    coarse = step.astype(np.float64)
    if (
        not np.isfinite(coarse).all()
        or ((coarse < np.finfo(values.dtype).tiny) & (high > low)).any()
    ):
        return None
    q = np.rint((rest - low) / np.where(coarse > 0, coarse, 1.0)).clip(0, LEVELS).astype(np.uint8)
    head = np.stack([low.astype(values.dtype), step, values[0]])
    parts: list[bytes | memoryview] = [head.reshape(-1).view(np.uint8).data, q.reshape(-1).data]
    return Coded(QUANT, parts, head.nbytes + q.nbytes)


def chunk_bound(count: int, nbytes: int) -> int:
    """The most bytes that a chunk can take, whatever is in it."""
    return int(lib.delta_bound(count, nbytes)) + 8


def unsqueezed(block: Bytes, place: int, count: int, nbytes: int) -> Bytes:
    """The planes of the ZSTD chunk at `place` of `block`, uint8 (count, nbytes)."""
    size = int.from_bytes(block[place : place + 8].tobytes(), "little")
    data = block[place + 8 : place + 8 + size].data
    plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=count * nbytes)
    planes = np.frombuffer(plain, np.uint8).reshape(count, nbytes)
    return np.bitwise_xor.accumulate(planes, axis=0)


def decode(
    chunks: NDArray[np.uint64],
    kinds: Bytes,
    slots: NDArray[np.int64],
    rows: NDArray[np.int64],
    count: int,
    row: int,
    out: Bytes,
) -> None:
    """Decode planes of RAW and SPARSE chunks into rows of `out`, uint8 (n, nbytes).

    Args:
        chunks: the address of each plane's chunk. Sorted by chunk and slot.
        kinds, slots, rows: for each plane its chunk's kind, its number in there, its row.
        count: planes in a chunk.
        row: bytes of a row of theirs, as in `exact`.
    """
    nbytes = out.shape[1]
    scratch = np.empty(nbytes, np.uint8)
    done = lib.delta_decode(
        ffi.from_buffer("uint64_t[]", chunks),
        ffi.from_buffer("uint8_t[]", kinds),
        ffi.from_buffer("int64_t[]", slots),
        ffi.from_buffer("int64_t[]", rows),
        len(slots),
        count,
        nbytes,
        row,
        _pointer(scratch, write=True),
        _pointer(out, write=True),
    )
    assert done == len(slots), f"the chunk of plane {done} of {len(slots)} is malformed"


def dequantise(
    chunks: NDArray[np.uint64],
    slots: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: NDArray[np.floating],
) -> None:
    """Decode rows of QUANT chunks into rows of `out`, float32 or float64 (n, width)."""
    wide = out.dtype == np.float64
    call = lib.quant_decode64 if wide else lib.quant_decode32
    call(
        ffi.from_buffer("uint64_t[]", chunks),
        ffi.from_buffer("int64_t[]", slots),
        ffi.from_buffer("int64_t[]", rows),
        len(slots),
        out.shape[1],
        ffi.from_buffer("double[]" if wide else "float[]", out, require_writable=True),
    )


def interleave(
    planes: Bytes, rows: NDArray[np.int64], stack: int, itemsize: int, out: Bytes
) -> None:
    """From frames, uint8 (items * stack, nbytes), to these rows of `out`, in which the frames are
    the last axis, of elements of `itemsize` bytes."""
    lib.delta_interleave(
        _pointer(planes),
        ffi.from_buffer("int64_t[]", rows),
        len(rows),
        stack,
        planes.shape[1] // itemsize,
        itemsize,
        _pointer(out, write=True),
    )


def _pointer(array: Bytes, *, write: bool = False) -> object:
    return ffi.from_buffer("uint8_t[]", array, require_writable=write)
