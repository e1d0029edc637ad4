"""Trees of views: the arrays of a batch of values of one space, and parts of them.

Owns what lanes and vectors do with such trees beside what a Layout offers. Knows no ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from dsec.ipc.leaves import Slots


def arrays(tree: Any) -> Iterator[NDArray[Any]]:
    """The arrays of a tree of views, in the order of its space."""
    if isinstance(tree, dict | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from arrays(part)
    elif not isinstance(tree, Slots):
        yield tree


def slice_rows(tree: Any, first: int, n: int) -> Any:
    """The same tree, of n environments from `first` on."""
    if isinstance(tree, dict):
        return {key: slice_rows(value, first, n) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(slice_rows(value, first, n) for value in tree)
    part = tree[first : first + n]
    return Slots(part) if isinstance(tree, Slots) else part


def place_slots(tree: Any, rows: Any, first: int) -> None:
    """Put what has no fixed size in `rows` into the tree that they are a part of."""
    if isinstance(tree, dict):
        for key in tree:
            place_slots(tree[key], rows[key], first)
    elif isinstance(tree, tuple):
        for part, row in zip(tree, rows, strict=True):
            place_slots(part, row, first)
    elif isinstance(tree, Slots):
        tree[first : first + len(rows)] = rows


def copy_fixed(to: Any, source: Any) -> None:
    """Copy the arrays of a tree; what has no fixed size is left out."""
    for mine, theirs in zip(arrays(to), arrays(source), strict=True):
        mine[...] = theirs
