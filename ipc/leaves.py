"""One array of a layout, and trees of them: how values get in and out of views of memory.

This file owns the checks of a value against a leaf and the casts; it knows no offset but its own,
no record and no ring (see layout.py). The classes here are the whole cost of a step's copy, so
each does its usual case in one comparison and leaves all explaining to the unusual one.

What may be written into a leaf: the shape must match; the dtype may be any that numpy casts
`same_kind`, as SyncVectorEnv's `np.stack(out=)` does (float64 into float32, int64 into int32 or
float32, bool into anything), and Python's own ints and lists of them into any integer leaf. An
integer that the leaf can't hold is an error here, where numpy would wrap it in silence.

Values outside their space are none of a leaf's business (environments return them, and Gymnasium
lets them), but for actions that are indices: `Bounded` refuses what would reach behind the end of
some simulator's table.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from dsec.errors import LayoutError, LocalError

LISTED_MAX = 32
"""Up to so many values compare faster as Python's own numbers than as arrays."""

Buffer: TypeAlias = "memoryview | bytearray | bytes | NDArray[np.uint8]"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a layout: n values of `shape` at `offset` bytes from the layout's start."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Slots(list[Any]):
    """The n values of a variable leaf in a tree of views, as bytes (variable.py)."""

    __slots__ = ()


def view(buffer: Buffer, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array on memory, read-only where it is.

    Raises:
        LocalError: the memory is too small for it.
    """
    try:
        return np.ndarray(shape, dtype, buffer, offset)
    except (TypeError, ValueError) as error:
        raise LocalError(f"no {dtype} {shape} at byte {offset} of this buffer: {error}") from None


class ArrayLeaf:
    """A leaf of at least one axis per value."""

    __slots__ = ("_batch", "_direct", "_dtype", "_kind", "_leaf", "_shape")

    def __init__(self, leaf: Leaf, n: int) -> None:
        self._leaf = leaf
        self._dtype = leaf.dtype
        self._kind = leaf.dtype.kind
        self._shape = leaf.shape
        self._batch = (n, *leaf.shape)
        # Dtypes met before whose every value may be assigned; environments that declare float32
        # and return float64 in each step are many.
        self._direct = {leaf.dtype}

    def views(self, buffer: Buffer, offset: int = 0) -> NDArray[Any]:
        return view(buffer, offset + self._leaf.offset, self._batch, self._dtype)

    def write(self, views: NDArray[Any], i: int, value: Any) -> None:
        if type(value) is np.ndarray and value.dtype in self._direct and value.shape == self._shape:
            views[i] = value
        else:
            views[i] = self._fit(value, self._shape)

    def write_batch(self, views: NDArray[Any], values: Any) -> None:
        if (
            type(values) is np.ndarray
            and values.dtype in self._direct
            and values.shape == self._batch
        ):
            views[...] = values
        else:
            views[...] = self._fit(values, self._batch)

    def read(self, views: NDArray[Any], i: int) -> Any:
        return views[i].copy()

    def copy(self, views: NDArray[Any]) -> NDArray[Any]:
        return views.copy()

    def patched(self, tree: NDArray[Any], i: int, value: Any) -> NDArray[Any]:
        """A copy's tree with another value for environment i; the arrays are changed in place."""
        tree[i] = value
        return tree

    def _fit(self, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the value as an array that may be assigned with a cast.

        Raises:
            LayoutError: it has another shape, or a dtype or number that doesn't fit.
        """
        try:
            array = np.asarray(value)
        except Exception as error:  # ragged lists, tensors of a GPU: whatever conversion raises
            raise self._misfit(shape, f"{type(value).__name__} ({error})") from None
        got = array.dtype
        if got.kind == "O":
            plain = value is None or isinstance(value, int)
            raise self._misfit(shape, f"{value}" if plain else type(value).__name__)
        if array.shape != shape:
            raise self._misfit(shape, f"{got} {array.shape}")
        if np.can_cast(got, self._dtype, "safe"):
            self._direct.add(got)
            return array
        integers = got.kind in "iu" and self._kind in "iu"
        weak = integers and not isinstance(value, np.ndarray | np.generic)
        if not weak and not np.can_cast(got, self._dtype, "same_kind"):
            name = "" if isinstance(value, np.ndarray) else f" ({type(value).__name__})"
            raise self._misfit(shape, f"{got} {array.shape}{name}")
        if not integers:
            self._direct.add(got)
        elif array.size:
            bounds = np.iinfo(self._dtype)
            low, high = int(array.min()), int(array.max())
            if low < bounds.min or high > bounds.max:
                raise self._misfit(shape, f"{got} {array.shape} with values {low} to {high}")
        return array

    def _misfit(self, shape: tuple[int, ...], got: str) -> LayoutError:
        return LayoutError(f"{self._leaf.path}: expected {self._dtype} {shape}, got {got}")


class ScalarLeaf(ArrayLeaf):
    """A leaf of one number per value; `read` gives a numpy scalar, as iterating a batch does."""

    __slots__ = ("_max", "_min", "_type")

    def __init__(self, leaf: Leaf, n: int) -> None:
        super().__init__(leaf, n)
        self._type = leaf.dtype.type
        self._min, self._max = 0, -1
        if leaf.dtype.kind in "iu":
            bounds = np.iinfo(leaf.dtype)
            self._min, self._max = int(bounds.min), int(bounds.max)

    def write(self, views: NDArray[Any], i: int, value: Any) -> None:
        if type(value) is self._type or (type(value) is int and self._min <= value <= self._max):
            views[i] = value
        else:
            views[i] = self._fit(value, self._shape)

    def read(self, views: NDArray[Any], i: int) -> Any:
        return views[i]


class Bounded:
    """A leaf whose values are indices (Discrete, MultiDiscrete, MultiBinary): what is outside their
    space is refused."""

    __slots__ = ("_bounds", "_high", "_inner", "_low", "_path", "copy", "patched", "read", "views")

    def __init__(self, inner: ArrayLeaf, leaf: Leaf, n: int, space: Space[Any]) -> None:
        start: Any = getattr(space, "start", 0)
        count: Any = 2
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        batch = (n, *leaf.shape)
        self._inner, self._path = inner, leaf.path
        self._bounds = start, start + count - 1
        self._low: list[int] = np.broadcast_to(start, batch).ravel().tolist()
        self._high: list[int] = np.broadcast_to(start + count - 1, batch).ravel().tolist()
        self.views, self.read, self.copy = inner.views, inner.read, inner.copy
        self.patched = inner.patched

    def write(self, views: NDArray[Any], i: int, value: Any) -> None:
        self._inner.write(views, i, value)
        self._check(views[i : i + 1])

    def write_batch(self, views: NDArray[Any], values: Any) -> None:
        self._inner.write_batch(views, values)
        self._check(views)

    def _check(self, views: NDArray[Any]) -> None:
        if views.size == 1:
            if self._low[0] <= views.item() <= self._high[0]:
                return
        elif views.size > LISTED_MAX:
            low, high = self._bounds
            if bool(((views >= low) & (views <= high)).all()):
                return
        written = views.ravel().tolist()
        if all(map(operator.le, self._low, written)) and all(map(operator.le, written, self._high)):
            return
        for place, value in enumerate(written):
            low, high = self._low[place], self._high[place]
            if not low <= value <= high:
                at = "".join(f"[{i}]" for i in np.unravel_index(place, views.shape)[1:])
                raise LayoutError(
                    f"{self._path}{at}: {value} is outside its space, which is {low} to {high}"
                )


class DictNode:
    """A Dict space."""

    __slots__ = ("_items", "_path")

    def __init__(self, path: str, items: list[tuple[str | int, Node]]) -> None:
        self._path = path
        self._items = items

    def views(self, buffer: Buffer, offset: int = 0) -> dict[str | int, Any]:
        return {key: node.views(buffer, offset) for key, node in self._items}

    def write(self, views: Any, i: int, value: Any) -> None:
        self._check(value)
        for key, node in self._items:
            node.write(views[key], i, value[key])

    def write_batch(self, views: Any, values: Any) -> None:
        self._check(values)
        for key, node in self._items:
            node.write_batch(views[key], values[key])

    def read(self, views: Any, i: int) -> dict[str | int, Any]:
        return {key: node.read(views[key], i) for key, node in self._items}

    def copy(self, views: Any) -> dict[str | int, Any]:
        return {key: node.copy(views[key]) for key, node in self._items}

    def patched(self, tree: Any, i: int, value: Any) -> dict[str | int, Any]:
        return {key: node.patched(tree[key], i, value[key]) for key, node in self._items}

    def _check(self, value: Any) -> None:
        keys = [key for key, _ in self._items]
        if not isinstance(value, Mapping):
            raise LayoutError(
                f"{self._path}: expected a dict with keys {keys}, got {type(value).__name__}"
            )
        missing = [key for key in keys if key not in value]
        if missing or len(value) != len(keys):
            extra = [key for key in value if key not in keys]
            raise LayoutError(
                f"{self._path}: expected a dict with keys {keys}, got {list(value)}"
                f" (missing: {missing}, unknown: {extra})"
            )


class TupleNode:
    """A Tuple space."""

    __slots__ = ("_nodes", "_path")

    def __init__(self, path: str, nodes: list[Node]) -> None:
        self._path = path
        self._nodes = nodes

    def views(self, buffer: Buffer, offset: int = 0) -> tuple[Any, ...]:
        return tuple(node.views(buffer, offset) for node in self._nodes)

    def write(self, views: Any, i: int, value: Any) -> None:
        self._check(value)
        for node, view, item in zip(self._nodes, views, value, strict=True):
            node.write(view, i, item)

    def write_batch(self, views: Any, values: Any) -> None:
        self._check(values)
        for node, view, item in zip(self._nodes, views, values, strict=True):
            node.write_batch(view, item)

    def read(self, views: Any, i: int) -> tuple[Any, ...]:
        return tuple(node.read(view, i) for node, view in zip(self._nodes, views, strict=True))

    def copy(self, views: Any) -> tuple[Any, ...]:
        return tuple(node.copy(view) for node, view in zip(self._nodes, views, strict=True))

    def patched(self, tree: Any, i: int, value: Any) -> tuple[Any, ...]:
        triples = zip(self._nodes, tree, value, strict=True)
        return tuple(node.patched(part, i, item) for node, part, item in triples)

    def _check(self, value: Any) -> None:
        if not isinstance(value, tuple | list | np.ndarray):
            got = type(value).__name__
        elif len(value) != len(self._nodes):
            got = f"{len(value)} items"
        else:
            return
        raise LayoutError(f"{self._path}: expected a tuple of {len(self._nodes)} items, got {got}")


class Node(Protocol):
    """A node of a layout's tree: these classes, and `VariableLeaf` of variable.py."""

    def views(self, buffer: Buffer, offset: int = 0) -> Any: ...
    def write(self, views: Any, i: int, value: Any) -> None: ...
    def write_batch(self, views: Any, values: Any) -> None: ...
    def read(self, views: Any, i: int) -> Any: ...
    def copy(self, views: Any) -> Any: ...
    def patched(self, tree: Any, i: int, value: Any) -> Any: ...
