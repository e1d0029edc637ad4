"""Spaces as bytes: what an environment tells the other roles about its observations and actions.

This file owns the description of a space on the wire and its limits. It knows no memory layout
(see layout.py) and no socket. An environment runner wrote the bytes, so decoding trusts nothing:
it builds spaces from checked numbers, never unpickles, and allocates no more than the limits
allow. Round trips are exact: dtype with its byte order, per-element bounds, infinities, which
bounds count as bounded, `start`, and the order of keys. The random state of a space stays behind,
and a subclass travels as the class of Gymnasium that it derives from. Of the spaces that an
environment's author invented, those whose values are texts travel as a Text without bounds.
"""

from __future__ import annotations

import math
import re
import string
import zlib
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dsec.errors import LayoutError, PeerError

DEPTH_MAX = 32
NDIM_MAX = 31  # numpy 1 allows 32 axes, and a batch adds one
VALUE_BYTES_MAX = 64 * 1024 * 1024
OWN_TEXT_LENGTH = 4096
"""Length that a Text must state, where its author's own space knows none. Texts may be longer."""

_KNOWN = (
    spaces.Box,
    spaces.Discrete,
    spaces.MultiDiscrete,
    spaces.MultiBinary,
    spaces.Dict,
    spaces.Tuple,
    spaces.Sequence,
    spaces.Graph,
    spaces.OneOf,
)
_DTYPE = re.compile(r"[<>|][biuf]\d{1,2}")
_RAW, _FILL, _ZLIB = b"\x00", b"\x01", b"\x02"
_BUILD_ERRORS = (ArithmeticError, ValueError, TypeError, RecursionError, zlib.error)


class _Node(msgspec.Struct, tag_field="k", forbid_unknown_fields=True, frozen=True):
    """Base of the descriptions."""


class _Box(_Node, tag="box", frozen=True):
    dtype: str
    shape: tuple[int, ...]
    low: bytes
    high: bytes
    bounded_below: bytes
    bounded_above: bytes


class _Discrete(_Node, tag="discrete", frozen=True):
    dtype: str
    n: int
    start: int


class _MultiDiscrete(_Node, tag="multi_discrete", frozen=True):
    dtype: str
    shape: tuple[int, ...]
    nvec: bytes
    start: bytes


class _MultiBinary(_Node, tag="multi_binary", frozen=True):
    n: int | tuple[int, ...]


class _Tuple(_Node, tag="tuple", frozen=True):
    items: tuple[_AnyNode, ...]


class _Dict(_Node, tag="dict", frozen=True):
    items: tuple[tuple[str | int, _AnyNode], ...]
    sort_keys: bool


class _Text(_Node, tag="text", frozen=True):
    min_length: int
    max_length: int
    charset: str


class _Sequence(_Node, tag="sequence", frozen=True):
    feature: _AnyNode
    stack: bool


class _Graph(_Node, tag="graph", frozen=True):
    node: _AnyNode
    edge: _AnyNode | None


class _OneOf(_Node, tag="one_of", frozen=True):
    items: tuple[_AnyNode, ...]


_Variable = _Text | _Sequence | _Graph | _OneOf
_AnyNode = _Box | _Discrete | _MultiDiscrete | _MultiBinary | _Tuple | _Dict | _Variable


class _Spaces(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    observation: _AnyNode
    action: _AnyNode


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Spaces)


def leaf_form(space: Space[Any]) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return dtype and shape of one value of a space that is one array or number, else None."""
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        assert space.dtype is not None and space.shape is not None
        return np.dtype(space.dtype), tuple(int(side) for side in space.shape)
    return None


def is_text(space: Space[Any]) -> bool:
    """Whether values of this space are texts: Gymnasium's Text, or a class of somebody's own that
    says so by its dtype, as MiniGrid's missions do."""
    return isinstance(space, spaces.Text) or (
        not isinstance(space, _KNOWN) and space.shape is None and space.dtype in (str, np.str_)
    )


def is_variable(space: Space[Any]) -> bool:
    """Whether values of this space have no fixed size: they are one leaf, whatever is inside."""
    return isinstance(space, spaces.Sequence | spaces.Graph | spaces.OneOf) or is_text(space)


def children(space: Space[Any], path: str) -> list[tuple[str | int, Space[Any]]]:
    """Return keys and subspaces of a Dict, Tuple or OneOf, in the space's own order.

    Raises:
        LayoutError: another kind of space, which can't be described, or a key that is neither
            text nor a number; `path` is named.
    """
    if isinstance(space, spaces.Dict):
        for key in space.spaces:
            if type(key) not in (str, int):
                raise LayoutError(
                    f"{path}: key {key!r} of a Dict space is a {type(key).__name__}; use text"
                )
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple | spaces.OneOf):
        return list(enumerate(space.spaces))
    raise _unknown(space, path)


def _unknown(space: Space[Any], path: str) -> LayoutError:
    return LayoutError(
        f"{path}: a {type(space).__name__} space can't be described to other processes; use Box,"
        " Discrete, MultiDiscrete, MultiBinary, Text, Sequence, Graph, OneOf, or a Dict or Tuple"
        " of these"
    )


def child_path(path: str, key: str | int) -> str:
    """Return the path of one item of a composite: `observation["camera"][0]`."""
    return f'{path}["{key}"]' if isinstance(key, str) else f"{path}[{key}]"


def check_size(path: str, shape: tuple[int, ...], itemsize: int) -> int:
    """Return the bytes of one array, 1 at least.

    Raises:
        LayoutError: too many axes, a negative side, or more than VALUE_BYTES_MAX.
    """
    if len(shape) > NDIM_MAX:
        raise LayoutError(f"{path}: {len(shape)} axes; at most {NDIM_MAX} are possible")
    if any(side < 0 for side in shape):
        raise LayoutError(f"{path}: shape {shape} has a negative side")
    nbytes = math.prod(shape) * itemsize
    if nbytes > VALUE_BYTES_MAX:
        raise LayoutError(
            f"{path}: one array takes {nbytes} bytes; at most {VALUE_BYTES_MAX} are possible"
        )
    return max(nbytes, 1)


def encode_spaces(observation: Space[Any], action: Space[Any]) -> bytes:
    """Describe both spaces of an environment.

    Raises:
        LayoutError: a space that can't be described (a custom one) or that exceeds a limit; the
            message names kind and path.
    """
    return _encoder.encode(
        _Spaces(
            _describe(observation, "observation", 0, [VALUE_BYTES_MAX]),
            _describe(action, "action", 0, [VALUE_BYTES_MAX]),
        )
    )


def _describe(space: Space[Any], path: str, depth: int, budget: list[int]) -> _AnyNode:
    if depth > DEPTH_MAX:
        raise LayoutError(f"{path}: spaces are nested deeper than {DEPTH_MAX}")
    form = leaf_form(space)
    if is_variable(space) and not isinstance(space, spaces.OneOf):
        return _describe_variable(space, path, depth, budget)
    if form is None:
        items = tuple(
            (key, _describe(sub, child_path(path, key), depth + 1, budget))
            for key, sub in children(space, path)
        )
        if isinstance(space, spaces.Dict):
            return _Dict(items, bool(getattr(space, "sort_keys", True)))
        nodes = tuple(node for _, node in items)
        return _OneOf(nodes) if isinstance(space, spaces.OneOf) else _Tuple(nodes)
    dtype, shape = form
    _spend(budget, path, shape, dtype.itemsize)
    if isinstance(space, spaces.Box):
        return _Box(
            dtype.str,
            shape,
            _pack(space.low),
            _pack(space.high),
            _pack(space.bounded_below),
            _pack(space.bounded_above),
        )
    if isinstance(space, spaces.Discrete):
        return _Discrete(dtype.str, int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return _MultiDiscrete(dtype.str, shape, _pack(space.nvec), _pack(space.start))
    assert isinstance(space, spaces.MultiBinary)
    n = space.n
    return _MultiBinary(int(n) if isinstance(n, int) else tuple(int(side) for side in n))


def _describe_variable(
    space: Space[Any], path: str, depth: int, budget: list[int]
) -> _Text | _Sequence | _Graph:
    if is_text(space):
        if not isinstance(space, spaces.Text):
            if path.startswith("action"):
                raise _unknown(space, path)  # nobody could tell from a Text what it may choose
            return _Text(0, OWN_TEXT_LENGTH, string.printable)
        charset = "".join(space.character_list)
        _spend(budget, path, (len(charset),), 4)
        try:
            charset.encode()
        except UnicodeEncodeError:
            raise LayoutError(f"{path}: the charset holds half a surrogate pair") from None
        return _Text(space.min_length, space.max_length, charset)
    if isinstance(space, spaces.Sequence):
        feature = _describe(space.feature_space, f"{path}[...]", depth + 1, budget)
        return _Sequence(feature, bool(space.stack))
    assert isinstance(space, spaces.Graph)
    node = _describe(space.node_space, f"{path}.nodes", depth + 1, budget)
    edge = space.edge_space
    if edge is None:
        return _Graph(node, None)
    return _Graph(node, _describe(edge, f"{path}.edges", depth + 1, budget))


def _pack(array: NDArray[Any]) -> bytes:
    """Encode bounds: mostly one number repeated, else raw, or compressed where that is less."""
    raw = np.asarray(array).tobytes()
    one = raw[: array.itemsize]
    if array.size > 1 and raw == one * array.size:
        return _FILL + one
    packed = zlib.compress(raw, 1) if len(raw) > 256 else raw
    return _ZLIB + packed if len(packed) < len(raw) else _RAW + raw


def _unpack(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = math.prod(shape)
    nbytes = size * dtype.itemsize
    mode, body = data[:1], data[1:]
    if mode == _FILL and len(body) == dtype.itemsize:
        body *= size
    elif mode == _ZLIB:
        inflater = zlib.decompressobj()
        body = inflater.decompress(body, nbytes + 1)
    elif mode != _RAW:
        raise ValueError("bounds in an unknown form")
    if len(body) != nbytes:
        raise ValueError(f"{len(body)} bytes of bounds where {nbytes} belong")
    if dtype.kind == "b" and body.count(0) + body.count(1) != nbytes:
        raise ValueError("a bool that is neither 0 nor 1")
    return np.frombuffer(body, dtype=dtype).reshape(shape).copy()


def decode_spaces(data: bytes | memoryview) -> tuple[Space[Any], Space[Any]]:
    """Rebuild the observation and the action space.

    Raises:
        PeerError: the bytes describe no pair of spaces within the limits.
    """
    try:
        described = _decoder.decode(data)
        return (
            _build(described.observation, 0, [VALUE_BYTES_MAX]),
            _build(described.action, 0, [VALUE_BYTES_MAX]),
        )
    except (msgspec.DecodeError, LayoutError, *_BUILD_ERRORS) as error:
        raise PeerError(f"not a description of spaces ({len(data)} bytes): {error}") from None


def _dtype(text: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"dtype {text!r}")
    return np.dtype(text)


def _build(node: _AnyNode, depth: int, budget: list[int]) -> Space[Any]:
    """Build one space; `budget` as in `_spend`."""
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if isinstance(node, _Dict):
        keys = [key for key, _ in node.items]
        if len(set(keys)) != len(keys):
            raise ValueError("a key of a Dict space occurs twice")
        # An OrderedDict is taken in its own order by every version of Gymnasium. Its annotations
        # know text as keys only; the class itself, and some users, know numbers too.
        items: OrderedDict[Any, Space[Any]] = OrderedDict(
            (key, _build(sub, depth + 1, budget)) for key, sub in node.items
        )
        built = spaces.Dict(items)
        if hasattr(built, "sort_keys"):
            built.sort_keys = node.sort_keys
        return built
    if isinstance(node, _Tuple):
        return spaces.Tuple([_build(sub, depth + 1, budget) for sub in node.items])
    if isinstance(node, _Text | _Sequence | _Graph | _OneOf):
        return _build_variable(node, depth, budget)
    if isinstance(node, _MultiBinary):
        shape = (node.n,) if isinstance(node.n, int) else node.n
        _spend(budget, "space", shape, 1)
        return spaces.MultiBinary(node.n)
    dtype = _dtype(node.dtype)
    if isinstance(node, _Discrete):
        _spend(budget, "space", (), dtype.itemsize)
        if dtype == np.int64:
            return spaces.Discrete(node.n, start=node.start)
        return spaces.Discrete(node.n, start=node.start, dtype=dtype)
    _spend(budget, "space", node.shape, dtype.itemsize)
    if isinstance(node, _MultiDiscrete):
        nvec = _unpack(node.nvec, dtype, node.shape)
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=_unpack(node.start, dtype, node.shape))
    low = _unpack(node.low, dtype, node.shape)
    box: spaces.Box = spaces.Box(low, _unpack(node.high, dtype, node.shape), node.shape, dtype)
    # An integer's infinite bound has become the dtype's extreme, so the constructor can't tell.
    flags = np.dtype(bool)
    box.bounded_below = _unpack(node.bounded_below, flags, node.shape)
    box.bounded_above = _unpack(node.bounded_above, flags, node.shape)
    return box


def _build_variable(
    node: _Text | _Sequence | _Graph | _OneOf, depth: int, budget: list[int]
) -> Space[Any]:
    if isinstance(node, _Text):
        _spend(budget, "space", (len(node.charset),), 4)
        return spaces.Text(node.max_length, min_length=node.min_length, charset=node.charset)
    if isinstance(node, _OneOf):
        return spaces.OneOf([_build(sub, depth + 1, budget) for sub in node.items])
    if isinstance(node, _Sequence):
        return spaces.Sequence(_build(node.feature, depth + 1, budget), stack=node.stack)
    edge = None if node.edge is None else _build(node.edge, depth + 1, budget)
    return spaces.Graph(_build(node.node, depth + 1, budget), edge)


def _spend(budget: list[int], path: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Take one array's bytes from `budget[0]`, which is what a value may still take.

    Raises:
        LayoutError: that is more than is left.
    """
    budget[0] -= check_size(path, shape, itemsize)
    if budget[0] < 0:
        raise LayoutError(
            f"{path}: one value takes more than {VALUE_BYTES_MAX} bytes with this array"
        )
