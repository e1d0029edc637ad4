"""Values of spaces without a fixed size (Text, Sequence, Graph, OneOf) as bytes, and back.

This file owns the form of one such value; where it lies in a record is layout.py's. Text is UTF-8.
Everything else goes through the codec of values.py as it is: nothing in it is cast, so what the
reader gets has the dtypes that the environment gave. It is checked against the space for what
the consumer relies on: structure, shapes, and dtypes that numpy would cast `same_kind`. As in
Gymnasium's vector environments nobody asks whether numbers are within bounds, or a text within
its length and alphabet.

A runner wrote the bytes: decoding checks the same again and never unpickles. A Sequence of many
like arrays is packed into one, for thousands of small arrays would cost more than they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
from gymnasium import Space, spaces

from dsec.errors import LayoutError, PeerError, ValueCodecError
from dsec.ipc import values
from dsec.ipc.leaves import Slots
from dsec.ipc.spaces import child_path, children, is_text, is_variable, leaf_form

_LOOSE, _ARRAYS, _SCALARS = range(3)
_NUMBERS = (np.ndarray, np.generic, bool, int, float)


class _MisfitError(Exception):
    """A value doesn't fit its space: where, and how."""


def _misfit(path: str, expected: str, value: Any) -> NoReturn:
    got = type(value).__name__
    if isinstance(value, np.ndarray | np.generic):
        got = f"{value.dtype} {value.shape}"
    elif isinstance(value, tuple | list | str):
        got += f" of length {len(value)}"
    raise _MisfitError(f"{path}: expected {expected}, got {got}")


class _Part(Protocol):
    """One space within a variable one."""

    path: str

    def wire(self, value: Any) -> Any:
        """The value in terms of values.py; _MisfitError if it isn't one of this space."""

    def unwire(self, told: Any) -> Any:
        """The value that `wire` was given; _MisfitError, too."""


class _Fixed:
    """One array or number. `batch` says that an axis of any length comes first."""

    def __init__(self, space: Space[Any], path: str, *, batch: bool) -> None:
        form = leaf_form(space)
        assert form is not None, "the caller has looked"
        self.path = path
        self.dtype, self.shape = form
        self.batch = batch

    def wire(self, value: Any) -> Any:
        if isinstance(value, _NUMBERS):
            kind = np.asarray(value)
            shape = kind.shape[1:] if self.batch and kind.shape else kind.shape
            fits = shape == self.shape and not (self.batch and not kind.shape)
            weak = not isinstance(value, np.ndarray | np.generic)
            if fits and (
                np.can_cast(kind.dtype, self.dtype, "same_kind")
                or (weak and kind.dtype.kind in "iu" and self.dtype.kind in "iu")
            ):
                return value
        any_length = ("any", *self.shape) if self.batch else self.shape
        shown = "(" + ", ".join(map(str, any_length)) + ("," if len(any_length) == 1 else "") + ")"
        _misfit(self.path, f"{self.dtype} {shown}", value)

    unwire = wire


class _Text:
    def __init__(self, path: str) -> None:
        self.path = path

    def wire(self, value: Any) -> str:
        if not isinstance(value, str):
            _misfit(self.path, "text", value)
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _MisfitError(f"{self.path}: the text is no Unicode ({error.reason})") from None
        return str(value)

    unwire = wire


class _Dict:
    def __init__(self, path: str, items: list[tuple[str | int, _Part]]) -> None:
        self.path, self._items = path, items

    def wire(self, value: Any) -> dict[Any, Any]:
        self._check(value)
        return {key: part.wire(value[key]) for key, part in self._items}

    def unwire(self, told: Any) -> dict[Any, Any]:
        self._check(told)
        return {key: part.unwire(told[key]) for key, part in self._items}

    def _check(self, value: Any) -> None:
        keys = [key for key, _ in self._items]
        if not isinstance(value, Mapping):
            _misfit(self.path, f"a dict with keys {keys}", value)
        if len(value) != len(keys) or any(key not in value for key in keys):
            raise _MisfitError(f"{self.path}: expected the keys {keys}, got {list(value)}")


class _Tuple:
    def __init__(self, path: str, items: list[_Part]) -> None:
        self.path, self._items = path, items

    def wire(self, value: Any) -> tuple[Any, ...]:
        self._check(value)
        return tuple(part.wire(item) for part, item in zip(self._items, value, strict=True))

    def unwire(self, told: Any) -> tuple[Any, ...]:
        self._check(told)
        return tuple(part.unwire(item) for part, item in zip(self._items, told, strict=True))

    def _check(self, value: Any) -> None:
        if type(value) is not tuple or len(value) != len(self._items):
            _misfit(self.path, f"a tuple of {len(self._items)} items", value)


class _Items:
    """A tuple of any length, all of one space."""

    def __init__(self, path: str, part: _Part) -> None:
        self.path, self._part = path, part

    def wire(self, value: Any) -> list[Any]:
        if type(value) is not tuple:
            _misfit(self.path, "a tuple", value)
        part = self._part
        if isinstance(part, _Fixed) and value:
            kind, first = type(value[0]), value[0]
            if kind is np.ndarray or issubclass(kind, np.generic):
                form = (first.dtype, first.shape)
                if all(type(item) is kind and (item.dtype, item.shape) == form for item in value):
                    part.wire(first)
                    # into an array of this dtype: stack() alone makes it native-endian
                    out = np.empty((len(value), *first.shape), first.dtype)
                    np.stack(value, out=out)
                    return [_ARRAYS if kind is np.ndarray else _SCALARS, out]
        found = []
        for i, item in enumerate(value):
            try:
                found.append(part.wire(item))
            except _MisfitError as error:
                raise _MisfitError(f"{error} (item {i})") from None
        return [_LOOSE, found]

    def unwire(self, told: Any) -> tuple[Any, ...]:
        if type(told) is not list or len(told) != 2:
            _misfit(self.path, "a packed sequence", told)
        how, held = told
        part = self._part
        if how == _LOOSE and type(held) is list:
            return tuple(part.unwire(item) for item in held)
        if type(held) is np.ndarray and held.ndim and isinstance(part, _Fixed):
            if how == _ARRAYS:
                return tuple(part.unwire(held[i, ...]) for i in range(len(held)))
            if how == _SCALARS and held.ndim == 1:
                return tuple(part.unwire(item) for item in held)
        _misfit(self.path, "a packed sequence", held)


class _Graph:
    def __init__(self, path: str, nodes: _Part, edges: _Part | None) -> None:
        self.path, self._nodes, self._edges = path, nodes, edges

    def wire(self, value: Any) -> list[Any]:
        if not isinstance(value, spaces.GraphInstance):
            _misfit(self.path, "a GraphInstance", value)
        links = self._links(value.edge_links)
        return [self._nodes.wire(value.nodes), self._edge(value.edges, "wire"), links]

    def unwire(self, told: Any) -> spaces.GraphInstance:
        if type(told) is not list or len(told) != 3:
            _misfit(self.path, "a GraphInstance", told)
        nodes, edges, links = told
        return spaces.GraphInstance(
            self._nodes.unwire(nodes), self._edge(edges, "unwire"), self._links(links)
        )

    def _edge(self, value: Any, method: str) -> Any:
        if value is None:
            return None
        if self._edges is None:
            _misfit(f"{self.path}.edges", "none, as the space has no edge space", value)
        return getattr(self._edges, method)(value)

    def _links(self, value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not np.ndarray or value.dtype.kind not in "iu" or value.shape[1:] != (2,):
            _misfit(f"{self.path}.edge_links", "integers (edges, 2)", value)
        return value


class _OneOf:
    def __init__(self, path: str, options: list[_Part]) -> None:
        self.path, self._options = path, options

    def wire(self, value: Any) -> list[Any]:
        self._check(value, tuple)
        return [value[0], self._options[int(value[0])].wire(value[1])]

    def unwire(self, told: Any) -> tuple[Any, Any]:
        self._check(told, list)
        return told[0], self._options[int(told[0])].unwire(told[1])

    def _check(self, value: Any, kind: type[tuple[Any, ...]] | type[list[Any]]) -> None:
        count = len(self._options)
        if not isinstance(value, kind) or len(value) != 2:
            _misfit(self.path, f"a tuple of an index below {count} and a value", value)
        index = value[0]
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            _misfit(self.path, f"an index below {count}", index)
        if not 0 <= index < count:
            raise _MisfitError(f"{self.path}: expected an index below {count}, got {index}")


def _part(space: Space[Any], path: str) -> _Part:
    """What knows how values of this space are written."""
    if leaf_form(space) is not None:
        return _Fixed(space, path, batch=False)
    if is_text(space):
        return _Text(path)
    if isinstance(space, spaces.Sequence):
        inside = f"{path}[...]"
        feature = space.feature_space
        return _batch(feature, inside) if space.stack else _Items(path, _part(feature, inside))
    if isinstance(space, spaces.Graph):
        edge = space.edge_space
        edges = None if edge is None else _batch(edge, f"{path}.edges")
        return _Graph(path, _batch(space.node_space, f"{path}.nodes"), edges)
    inner = [(key, _part(sub, child_path(path, key))) for key, sub in children(space, path)]
    if isinstance(space, spaces.Dict):
        return _Dict(path, inner)
    if isinstance(space, spaces.OneOf):
        return _OneOf(path, [part for _, part in inner])
    return _Tuple(path, [part for _, part in inner])


def _batch(space: Space[Any], path: str) -> _Part:
    """Any number of values of a space, batched as `gymnasium.vector.utils.concatenate` does."""
    if leaf_form(space) is not None:
        return _Fixed(space, path, batch=True)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = [(key, _batch(sub, child_path(path, key))) for key, sub in children(space, path)]
        if isinstance(space, spaces.Dict):
            return _Dict(path, inner)
        return _Tuple(path, [part for _, part in inner])
    return _Items(path, _part(space, path))


class Variable:
    """A leaf of a layout whose values have no fixed size.

    Attributes:
        path: where it stands, as in `observation["text"]`.
        space: a Text or another space of texts, a Sequence, Graph or OneOf.
        is_text: its values are plain texts.
    """

    __slots__ = ("_part", "is_text", "path", "space")

    def __init__(self, space: Space[Any], path: str) -> None:
        assert is_variable(space), "the caller has looked"
        self.path, self.space = path, space
        self.is_text = is_text(space)
        self._part = _part(space, path)

    def encode(self, value: Any) -> bytes:
        """Return one value as bytes.

        Raises:
            LayoutError: it isn't one of this space; the place in it is named.
        """
        try:
            told = self._part.wire(value)
            return told.encode() if self.is_text else values.encode(told, self.path)
        except (_MisfitError, ValueCodecError) as error:
            raise LayoutError(str(error)) from None

    def decode(self, data: bytes | memoryview) -> Any:
        """Return the value that was encoded, fresh.

        Raises:
            PeerError: the bytes are none of this space.
        """
        try:
            if self.is_text:
                return str(data, "utf-8")
            return self._part.unwire(values.decode(data))
        except (_MisfitError, ValueCodecError, UnicodeDecodeError) as error:
            raise PeerError(f"{self.path}: {error}") from None


class VariableLeaf:
    """A variable leaf in a tree of views: n values as bytes, decoded when they are asked for."""

    __slots__ = ("_n", "variable")

    def __init__(self, variable: Variable, n: int) -> None:
        self.variable = variable
        self._n = n

    def views(self, buffer: Any, offset: int = 0) -> Slots:
        del buffer, offset  # it has no place of its own there
        return Slots([b""] * self._n)

    def write(self, views: Slots, i: int, value: Any) -> None:
        views[i] = self.variable.encode(value)

    def write_batch(self, views: Slots, values: Any) -> None:
        if not isinstance(values, tuple | list | np.ndarray) or len(values) != self._n:
            got = f"{len(values)} items" if hasattr(values, "__len__") else type(values).__name__
            raise LayoutError(
                f"{self.variable.path}: expected a tuple of {self._n} values, got {got}"
            )
        for i, value in enumerate(values):
            try:
                views[i] = self.variable.encode(value)
            except LayoutError as error:
                raise LayoutError(f"environment {i}: {error}") from None

    def read(self, views: Slots, i: int) -> Any:
        return self.variable.decode(views[i])

    def copy(self, views: Slots) -> tuple[Any, ...]:
        return tuple(map(self.variable.decode, views))

    def patched(self, tree: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
        return (*tree[:i], value, *tree[i + 1 :])
