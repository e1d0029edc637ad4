"""Where the values of a space lie in memory: arrays at fixed offsets, and what has no fixed size.

Owns `Layout`. A composite space becomes a tree of numpy arrays (dict for Dict, tuple for Tuple)
with a leading axis of n environments, equal in structure, dtype and shape to what
`gymnasium.vector` batches. Everything is computed once, when the space is known, so that a step
costs a few checks and the copy itself (leaves.py, which also says what may be written). Knows no
record and no ring.

A Text, Sequence, Graph or OneOf has no fixed place: it is a leaf of n values as bytes
(variable.py), which `pack` puts one after the other behind their lengths. Batched, such a leaf is
a tuple of n values, as Gymnasium has it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gymnasium import Space, spaces

from dsec.errors import LayoutError, LocalError, PeerError
from dsec.ipc.leaves import (
    ArrayLeaf,
    Bounded,
    DictNode,
    Leaf,
    Node,
    ScalarLeaf,
    Slots,
    TupleNode,
)
from dsec.ipc.spaces import (
    DEPTH_MAX,
    check_size,
    child_path,
    children,
    is_variable,
    leaf_form,
)
from dsec.ipc.variable import Variable, VariableLeaf

BATCH_BYTES_MAX = 1 << 30
LEAF_ALIGN = 16


def align(nbytes: int, to: int) -> int:
    """The next multiple of `to`, a power of two."""
    return (nbytes + to - 1) & -to


class Layout:
    """The memory of n values of one space. `indices`: an index outside its Discrete, MultiDiscrete
    or MultiBinary space is refused when it is written.

    Attributes:
        space: the space of one environment.
        n: values side by side.
        leaves: all arrays, in the order of the space.
        variable: the leaves without a fixed size, likewise.
        order: both together, in the order of the space.
        nbytes: size of the arrays.
        views: `views(buffer, offset=0) -> tree` of arrays (n, *shape) on that memory; read-only
            where the memory is. LocalError if it is too small.
        write: `write(tree, i, value)` puts the value of environment i. LayoutError names the
            leaf, what was expected and what came.
        write_batch: `write_batch(tree, values)` puts all n, given as a tree of arrays.
        read: `read(tree, i) -> value`, a copy with the types that `gymnasium.vector.utils.iterate`
            gives: an array, or a numpy scalar where the shape is ().
        copy: `copy(tree) -> tree`, fresh and writable; variable leaves become tuples.
        patched: `patched(copy, i, value) -> tree`: that copy with another value for environment i.

    Raises:
        LayoutError: a space that can't be described, or exceeds a limit; kind and path are named.
    """

    __slots__ = (
        "copy",
        "leaves",
        "n",
        "nbytes",
        "order",
        "patched",
        "read",
        "space",
        "variable",
        "views",
        "write",
        "write_batch",
    )

    views: Callable[..., Any]
    write: Callable[[Any, int, Any], None]
    write_batch: Callable[[Any, Any], None]
    read: Callable[[Any, int], Any]
    copy: Callable[[Any], Any]
    patched: Callable[[Any, int, Any], Any]

    def __init__(
        self, space: Space[Any], n: int, name: str = "value", *, indices: bool = False
    ) -> None:
        if n < 1:
            raise LocalError(f"a layout for {n} environments")
        self.space = space
        self.n = n
        order: list[Leaf | Variable] = []
        root = _plan(space, n, name, 0, order, indices)
        self.order = tuple(order)
        self.variable = tuple(leaf for leaf in order if isinstance(leaf, Variable))
        self.leaves = tuple(leaf for leaf in order if isinstance(leaf, Leaf))
        self.nbytes = _end(self.leaves)
        # Bound once: a step then calls the one leaf, or the root of the tree, directly.
        self.views = root.views
        self.write = root.write
        self.write_batch = root.write_batch
        self.read = root.read
        self.copy = root.copy
        self.patched = root.patched

    def pack(self, tree: Any) -> bytes:
        """The variable part of a record, padded to LEAF_ALIGN; nothing for a fixed space."""
        if not self.variable:
            return b""
        written = [value for slots in _slots(tree) for value in slots]
        lengths = struct.pack(f"<{len(written)}Q", *map(len, written))
        body = b"".join((lengths, *written))
        return body + bytes(-len(body) % LEAF_ALIGN)

    def bare(self) -> tuple[Slots, ...]:
        """A tree of nothing but the variable leaves."""
        return tuple(Slots([b""] * self.n) for _ in self.variable)

    def unpack(self, tree: Any, data: bytes | memoryview) -> int:
        """Let the variable leaves of `tree` be those at the start of `data`, which must stay.
        Any tree does that has `Slots` for each variable leaf, as that of `bare` has.

        Returns:
            The bytes that they took.

        Raises:
            PeerError: they are not all there.
        """
        if not self.variable:
            return 0
        count = len(self.variable) * self.n
        at = 8 * count
        if len(data) < at:
            raise PeerError(f"{len(data)} bytes where {count} values of variable size begin")
        lengths = iter(struct.unpack_from(f"<{count}Q", data))
        for slots in _slots(tree):
            for i in range(self.n):
                end = at + next(lengths)
                if end > len(data):
                    raise PeerError(f"values of variable size end at {end} of {len(data)} bytes")
                slots[i] = data[at:end]
                at = end
        return min(align(at, LEAF_ALIGN), len(data))


def _slots(tree: Any) -> Iterator[Slots]:
    """The variable leaves of a tree of views, in order."""
    if isinstance(tree, Slots):
        yield tree
    elif isinstance(tree, dict | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _slots(part)


def _end(leaves: Sequence[Leaf | Variable]) -> int:
    """Where the arrays among these end."""
    for leaf in reversed(leaves):
        if isinstance(leaf, Leaf):
            return leaf.offset + leaf.nbytes
    return 0


def _plan(
    space: Space[Any],
    n: int,
    path: str,
    depth: int,
    leaves: list[Leaf | Variable],
    indices: bool,
) -> Node:
    if depth > DEPTH_MAX:
        raise LayoutError(f"{path}: spaces are nested deeper than {DEPTH_MAX}")
    if is_variable(space):
        variable = Variable(space, path)
        leaves.append(variable)
        return VariableLeaf(variable, n)
    form = leaf_form(space)
    if form is not None:
        dtype, shape = form
        check_size(path, shape, dtype.itemsize)
        end = _end(leaves)
        nbytes = n * dtype.itemsize * math.prod(shape)
        if end + nbytes > BATCH_BYTES_MAX:
            raise LayoutError(
                f"{path}: {n} values take {end + nbytes} bytes up to here; at most"
                f" {BATCH_BYTES_MAX} are possible"
            )
        leaf = Leaf(path, dtype, shape, align(end, LEAF_ALIGN), nbytes)
        leaves.append(leaf)
        node = ArrayLeaf(leaf, n) if shape else ScalarLeaf(leaf, n)
        if indices and isinstance(
            space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
        ):
            return Bounded(node, leaf, n, space)
        return node
    items = [
        (key, _plan(sub, n, child_path(path, key), depth + 1, leaves, indices))
        for key, sub in children(space, path)
    ]
    if isinstance(space, spaces.Dict):
        return DictNode(path, items)
    return TupleNode(path, [node for _, node in items])
