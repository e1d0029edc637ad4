"""What the tests of this room generate: spaces, loose values, damaged bytes.

Owns Hypothesis strategies and exact comparison only; knows nothing of layouts or codecs, so that
a fault there can't hide here as well.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gs
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

FLOATS = ["float16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
BOX_DTYPES = [*FLOATS, *INTS, "bool", ">f4", ">i2"]

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def boxes(draw: st.DrawFn) -> gs.Box:
    """Boxes of every dtype: scalar or per-element bounds, infinite ones, empty and 0-d shapes."""
    dtype: np.dtype[Any] = np.dtype(draw(st.sampled_from(BOX_DTYPES)))
    shape = draw(shapes)
    if dtype.kind == "f":
        ends = st.sampled_from([-math.inf, -3.5, -1.0, 0.0, 0.25, 7.0, math.inf])
    elif dtype.kind == "b":
        ends = st.sampled_from([0, 1])
    else:
        top = min(int(np.iinfo(dtype).max), 2**63 - 2)
        low = max(int(np.iinfo(dtype).min), -(2**63))
        ends = st.sampled_from([low, 0, 1, 5, top])
        if dtype.kind == "i" and draw(st.booleans()):
            return gs.Box(-math.inf, math.inf, shape, dtype)
    if draw(st.booleans()):
        least, most = sorted([draw(ends), draw(ends)])
        return gs.Box(least, most, shape, dtype)
    size = math.prod(shape)
    pairs = [sorted([draw(ends), draw(ends)]) for _ in range(size)]
    lows = np.array([a for a, _ in pairs], dtype).reshape(shape)
    highs = np.array([b for _, b in pairs], dtype).reshape(shape)
    return gs.Box(lows, highs, shape, dtype)


discretes = st.builds(
    gs.Discrete,
    st.integers(1, 2**40),
    start=st.integers(-(2**40), 2**40),
) | st.builds(gs.Discrete, st.integers(1, 100), start=st.integers(-10, 20))


@st.composite
def multi_discretes(draw: st.DrawFn) -> gs.MultiDiscrete[Any]:
    """MultiDiscrete of up to two axes, any integer dtype, with start."""
    dtype: np.dtype[Any] = np.dtype(draw(st.sampled_from(INTS)))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3))
    nvec = draw(hnp.arrays(dtype, shape, elements=st.integers(1, 60)))
    start = draw(hnp.arrays(dtype, shape, elements=st.integers(0, 60)))
    return gs.MultiDiscrete(nvec, dtype, start=start)


multi_binaries = st.builds(
    gs.MultiBinary, st.integers(1, 5) | st.lists(st.integers(1, 3), min_size=1, max_size=3)
)

keys = st.text("abcd_\u00e9\u4e2d", min_size=1, max_size=4)


def _composite(parts: st.SearchStrategy[Space[Any]]) -> st.SearchStrategy[Space[Any]]:
    items = st.dictionaries(keys, parts, min_size=1, max_size=3)
    return (
        st.lists(parts, min_size=1, max_size=3).map(gs.Tuple)
        | items.map(gs.Dict)
        # an OrderedDict keeps its own order, which needn't be the sorted one
        | items.map(lambda d: gs.Dict(OrderedDict(d)))
    )


leaf_spaces: st.SearchStrategy[Space[Any]] = (
    boxes() | discretes | multi_discretes() | multi_binaries
)
any_space: st.SearchStrategy[Space[Any]] = st.recursive(leaf_spaces, _composite, max_leaves=6)


texts = st.builds(
    gs.Text,
    st.integers(0, 40),
    min_length=st.just(0),
    charset=st.sampled_from(["ab", "\u00e9\u4e2d "]),
)
graphs = st.builds(
    gs.Graph,
    boxes() | st.builds(gs.Discrete, st.integers(1, 9)),
    st.none() | boxes() | st.builds(gs.Discrete, st.integers(1, 9)),
)


def _variable(parts: st.SearchStrategy[Space[Any]]) -> st.SearchStrategy[Space[Any]]:
    return (
        _composite(parts)
        | st.builds(gs.Sequence, parts, stack=st.booleans())
        | st.lists(parts, min_size=1, max_size=3).map(gs.OneOf)
    )


varied_space: st.SearchStrategy[Space[Any]] = st.recursive(
    leaf_spaces | texts | graphs, _variable, max_leaves=6
)
"""As `any_space`, with those that have no fixed size."""


def order(space: Space[Any]) -> Any:
    """The keys of nested Dict spaces, in order; `==` of spaces doesn't look at it."""
    if isinstance(space, gs.Dict):
        return [(key, order(sub)) for key, sub in space.spaces.items()]
    if isinstance(space, gs.Tuple):
        return [order(sub) for sub in space.spaces]
    return None


def same(a: Any, b: Any, *, ordered: bool = True) -> bool:
    """Equal in value, type, dtype and shape, down to the bits of NaN and the order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray) and a.dtype == object:
        pairs = zip(a.reshape(-1), b.reshape(-1), strict=True)
        return a.shape == b.shape and all(same(x, y) for x, y in pairs)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    if isinstance(a, dict):
        keys_match = list(a) == list(b) if ordered else set(a) == set(b)
        return keys_match and all(same(a[key], b[key], ordered=ordered) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(
            same(x, y, ordered=ordered) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return bool(a == b)


def samples(space: Space[Any], count: int, seed: int) -> list[Any]:
    """Reproducible samples; big-endian and empty Boxes can't be sampled by Gymnasium itself."""
    rng = np.random.default_rng(seed)
    return [_sample(space, rng) for _ in range(count)]


def _sample(space: Space[Any], rng: np.random.Generator) -> Any:
    if isinstance(space, gs.Dict):
        return {key: _sample(sub, rng) for key, sub in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(_sample(sub, rng) for sub in space.spaces)
    if isinstance(space, gs.Text):
        picked = rng.integers(
            len(space.character_list), size=int(rng.integers(space.max_length + 1))
        )
        return "".join(space.character_list[int(i)] for i in picked)
    if isinstance(space, gs.Sequence):
        items = tuple(_sample(space.feature_space, rng) for _ in range(int(rng.integers(4))))
        return _batched(space.feature_space, items) if space.stack else items
    if isinstance(space, gs.Graph):
        count = int(rng.integers(3))
        nodes = _batched(space.node_space, [_sample(space.node_space, rng) for _ in range(3)])
        if space.edge_space is None or not count:
            return gs.GraphInstance(nodes, None, None)
        edges = _batched(space.edge_space, [_sample(space.edge_space, rng) for _ in range(count)])
        return gs.GraphInstance(nodes, edges, rng.integers(0, 3, (count, 2)))
    if isinstance(space, gs.OneOf):
        index = rng.integers(len(space.spaces))
        return (index, _sample(space.spaces[index], rng))
    if isinstance(space, gs.Discrete):
        return space.dtype.type(int(space.start) + int(rng.integers(min(int(space.n), 1000))))
    assert space.dtype is not None and space.shape is not None
    size = math.prod(space.shape)
    if space.dtype.kind == "f":
        flat: Any = rng.standard_normal(size).astype(space.dtype)
    elif space.dtype.kind == "b":
        flat = rng.integers(0, 2, size).astype(bool)
    else:
        flat = np.frombuffer(rng.bytes(size * space.dtype.itemsize), space.dtype)
    return flat.reshape(space.shape).copy()


def _batched(space: Space[Any], items: Any) -> Any:
    return (
        concatenate(space, items, create_empty_array(space, len(items)))
        if items
        else _nothing(space)
    )


def _nothing(space: Space[Any]) -> Any:
    """A stack of no values, which concatenate() can't make."""
    return create_empty_array(space, 0)


def _untitled(dtype: np.dtype[Any]) -> bool:
    if dtype.subdtype is not None:
        return _untitled(dtype.base)
    fields: Mapping[str, Any] = dtype.fields or {}
    return all(len(field) == 2 and _untitled(field[0]) for field in fields.values())


array_dtypes = (
    hnp.scalar_dtypes()
    | hnp.unicode_string_dtypes(max_len=5)
    | hnp.byte_string_dtypes(max_len=5)
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
    | hnp.nested_dtypes(max_itemsize=64).filter(_untitled)
)
arrays = hnp.arrays(array_dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
strided = hnp.arrays("float32", (4, 6)).map(lambda a: a[::2, ::-3])
numpy_scalars = hnp.scalar_dtypes().flatmap(
    lambda dtype: hnp.arrays(dtype, ()).map(lambda array: array[()])
) | st.text(max_size=5).map(np.str_)

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.text(st.characters(), max_size=3).map(lambda text: text + "\udc80")
    | st.binary(max_size=8)
)
hashables = st.recursive(
    atoms,
    lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(parts, max_size=3),
    max_leaves=8,  # with more, Hypothesis warns of this strategy's own length when it tells of it
)
value_keys = st.text(max_size=4) | st.integers(-(2**63), 2**64 - 1)
any_value: st.SearchStrategy[Any] = st.recursive(
    atoms | arrays | strided | numpy_scalars | st.sets(hashables, max_size=3),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(value_keys, parts, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes cut, with some changed, some put in, or anything else instead."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        what = draw(st.integers(0, 3))
        if what == 0:
            del data[at:]
        elif what == 1 and data:
            data[at] = draw(st.integers(0, 255))
        elif what == 2:
            data[at:at] = draw(st.binary(max_size=6))
        else:
            del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)
