"""Chunks come back: bit for bit, or within the bound that is promised for quantised floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.buffer import codec
from dsec.buffer.arena import Arena
from dsec.buffer.leaves import Leaf
from dsec.buffer.planes import PlaneStore, Quantization


def store_of(dtype: str, shape: tuple[int, ...], count: int, *, lossless: bool) -> PlaneStore:
    leaf = Leaf("obs", shape, np.dtype(dtype), floating=dtype.startswith("float"))
    bound = codec.chunk_bound(count, leaf.nbytes)
    arena = Arena(-(-bound // 4096) * 4096 + 4096, 64, 0)
    return PlaneStore(leaf, arena, None, count, 1000, lossless)


def put(store: PlaneStore, arrays: list[np.ndarray], how: Quantization) -> None:
    for array in arrays:
        while store.full:
            coded, cast = store.code(how)
            assert sum(len(part) for part in coded.parts) == coded.nbytes
            place = store._arena.place(coded.parts, coded.nbytes)
            assert place is not None
            store.placed(place, coded, cast)
        store.take(array)


@st.composite
def frames(draw: st.DrawFn) -> list[np.ndarray]:
    """Frames that change little, much or not at all from one to the next."""
    shape = draw(st.sampled_from([(3,), (1, 1), (9, 40), (30, 24, 3), (300, 300)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frame = rng.integers(0, draw(st.sampled_from([1, 2, 256])), shape).astype(np.uint8)
    found = []
    for _ in range(draw(st.integers(1, 30))):
        frame = frame.copy()
        changed = draw(st.sampled_from([0.0, 0.001, 0.05, 1.0]))
        where = rng.random(shape) < changed
        frame[where] = rng.integers(0, 256, int(where.sum()))
        found.append(frame)
    return found


@given(frames(), st.integers(2, 9), st.randoms(use_true_random=False))
def test_bytes_come_back_bit_for_bit(arrays: list[np.ndarray], count: int, random: object) -> None:
    store = store_of("uint8", arrays[0].shape, count, lossless=True)
    put(store, arrays, Quantization())
    order = np.array([random.randrange(len(arrays)) for _ in range(40)])  # type: ignore[attr-defined]
    assert np.array_equal(store.read(order), np.array(arrays)[order])


def test_every_format_is_used_where_it_is_best() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (8, 5000), np.uint8)
    still = np.repeat(noise[:1], 8, axis=0)
    drifting = (rng.integers(0, 3, (8, 5000)) * 80).astype(np.uint8)
    assert codec.exact(noise, 0).kind == codec.RAW
    assert codec.exact(still, 0).kind == codec.SPARSE
    assert codec.exact(drifting, 0).kind == codec.ZSTD


def test_more_equal_bytes_than_a_token_can_count() -> None:
    arrays = [np.zeros(200_000, np.uint8) for _ in range(4)]
    arrays[1][199_999] = 7
    arrays[2][:70_000] = 9
    arrays[3][[0, 131_071]] = 5
    store = store_of("uint8", (200_000,), 4, lossless=True)
    put(store, [*arrays, arrays[0]], Quantization())
    assert not store.full and len(store.chunks) == 1
    assert np.array_equal(store.read(np.arange(4)), np.array(arrays))


def test_a_key_of_equal_rows_takes_a_row() -> None:
    picture = np.tile(np.arange(100, dtype=np.uint8), (90, 1)).reshape(1, -1)
    assert codec.exact(picture.repeat(2, axis=0), 100).nbytes < 200
    assert codec.exact(picture.repeat(2, axis=0), 0).nbytes > 9000


@given(
    st.sampled_from(["float32", "float64", "float16"]),
    st.integers(2, 12),
    st.floats(-1e4, 1e4),
    st.floats(1e-3, 1e4),
    st.integers(0, 2**32),
)
def test_quantised_floats_keep_the_bound(
    dtype: str, count: int, middle: float, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = (middle + spread * rng.standard_normal((count + 1, 5))).astype(dtype)
    values = np.clip(values, np.finfo(dtype).min, np.finfo(dtype).max)
    store = store_of(dtype, (5,), count, lossless=False)
    put(store, list(values), Quantization())
    assert store.chunks
    held = store.read(np.arange(count))
    assert held.dtype == values.dtype
    chunk = values[1:count].astype(np.float64)
    spans = chunk.max(axis=0) - chunk.min(axis=0)
    last_place = np.spacing(np.abs(values[:count]).max(axis=0)).astype(np.float64)
    error = np.abs(held.astype(np.float64) - values[:count].astype(np.float64))
    assert (error <= spans / 510 * 1.0001 + last_place).all()
    assert np.array_equal(held[0], values[0]), "the key is exact"


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_chunk_with_what_is_no_number_stays_exact(odd: float) -> None:
    values = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    values[3, 2] = odd
    store = store_of("float32", (4,), 8, lossless=False)
    put(store, list(values), Quantization())
    assert store.chunks
    assert store.read(np.arange(8)).tobytes() == values[:8].tobytes()


def test_a_range_beyond_the_dtype_stays_exact() -> None:
    big = np.finfo(np.float64).max
    values = np.array([[0.0], [big], [-big], [1.0], [5e-324]])
    store = store_of("float64", (1,), 4, lossless=False)
    put(store, list(values), Quantization())
    assert np.array_equal(store.read(np.arange(4)), values[:4])
    tiny = np.array([[0.0], [5e-324], [1e-323], [0.0], [0.0]])
    store = store_of("float64", (1,), 4, lossless=False)
    put(store, list(tiny), Quantization())
    assert np.array_equal(store.read(np.arange(4)), tiny[:4])


def test_floats_can_be_halved_or_left_alone() -> None:
    values = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float32)
    exact = store_of("float32", (300,), 8, lossless=False)
    put(exact, list(values), Quantization(quantize=False))
    assert exact.read(np.arange(8)).tobytes() == values[:8].tobytes()
    half = store_of("float32", (300,), 8, lossless=False)
    put(half, list(values), Quantization(quantize=False, dtype=np.dtype(np.float16)))
    held = half.read(np.arange(8))
    assert np.array_equal(held, values[:8].astype(np.float16).astype(np.float32))
    assert half._arena.stored <= values[:8].nbytes // 2 + 64
    beyond = values.copy()
    beyond[2, 7] = 1e6
    whole = store_of("float32", (300,), 8, lossless=False)
    put(whole, list(beyond), Quantization(quantize=False, dtype=np.dtype(np.float16)))
    assert np.array_equal(whole.read(np.arange(8)), beyond[:8]), "float16 has no 1e6"
