"""How each node of a plan is read again quickly: see whether it changed, and only then work.

Owns the caches of a compiled plan. A tracker gives the content of its node, as `Kind.read` would,
encoded if it stays as it is while nothing changed. Whether something changed is decided by
identity: a number or text that is the same object is the same value, and what refers to nodes
refers to the same ones. Where memory shows each change (memory.py) the plan looks there and asks
nobody; what has no cheap test is read every time. Trackers hold what they compare with, so an
identity can't be re-used behind their back.

An attribute that refers to a node and then to another one breaks the plan (`Restructured`): it is
remembered as loose, the plan is compiled anew, and from then on what hangs there is written afresh
in every capture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import compress
from operator import is_, is_not
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dsec.failover.codecs import arrays, layouts
from dsec.failover.codecs.containers import Container, Instance, fields_of, read_items, read_slots
from dsec.failover.codecs.memory import of_dict
from dsec.failover.codecs.reading import digest
from dsec.failover.codecs.writing import CONSTANT, Kind, Writer
from dsec.ipc.watch import Region

encode = msgspec.msgpack.Encoder().encode
BOX = ("gymnasium.spaces.box", "Box")
BOX_BOUNDS = ("low", "high", "bounded_below", "bounded_above")
"""The arrays of a Box are constants by Gymnasium's contract, and may be as large as observations:
they are compared and not copied."""

PLAIN = frozenset((type(None), bool, int, float, str, bytes))
"""What is no node: an attribute that has led elsewhere before, and is one of these now, is watched
like any other until it leads somewhere again."""

ALL = object()
"""The key of an edge that stands for all items of a sequence."""

Edge = tuple[int, Any]
Reading = Callable[[Writer], Any]


class Tracked(NamedTuple):
    """One node of a plan.

    Attributes:
        read: its content now. As long as that is encoded whole (`msgspec.Raw`) it stays what it is
            until a region changes.
        regions: memory that shows each change; empty where none does.
        parts: for who reads nodes in C (quick.py): the `Fields` or `Items` of a mapping or a
            sequence, or an array or a generator itself; None where that takes Python.
        instance: the mapping is all that an instance has.
    """

    read: Reading
    regions: tuple[Region, ...] = ()
    parts: Any = None
    instance: bool = False


class Restructured(Exception):
    """The graph is no longer the one that was compiled: this edge leads elsewhere now."""

    def __init__(self, edge: Edge | None) -> None:
        super().__init__(edge)
        self.edge = edge


class Fields:
    """Reads a mapping of attributes or items, as [keys, values]."""

    def __init__(self, node: Any, items: dict[Any, Any], loose: set[Edge], writer: Writer) -> None:
        self._id = id(node)
        self._items = items
        self._keys: tuple[Any, ...] = ()
        self._seen: tuple[Any, ...] = ()
        self._written: list[Any] = []
        self._refers: list[bool] = []
        self._fresh: list[int] = []  # positions to be written anew each time
        self._encoded: msgspec.Raw | None = None
        self._learn(loose, writer, compiling=True)

    def _learn(self, loose: set[Edge], writer: Writer, *, compiling: bool) -> None:
        """Take in all keys and values."""
        self._keys = tuple(self._items)
        self._seen = tuple(self._items.values())
        self._places = range(len(self._keys))
        self._written, self._refers, self._fresh = [], [], []
        self._names = msgspec.Raw(encode([writer.value(key) for key in self._keys]))
        if not _alike(self._items):
            raise Restructured(None)  # such a mapping is read every time
        for i, (key, value) in enumerate(zip(self._keys, self._seen, strict=True)):
            writer.key = key
            if compiling and (self._id, key) in loose and type(value) not in PLAIN:
                self._fresh.append(i)
                self._written.append(None)
                self._refers.append(False)
                continue
            writer.referred = False
            self._written.append(writer.value(value))
            self._refers.append(writer.referred)
            if writer.referred and not compiling:
                self._fresh.append(i)
        self._encoded = None

    def read(self, writer: Writer) -> Any:
        """[keys, values], encoded if they don't refer to anything loose."""
        items = self._items
        if tuple(items) != self._keys:
            self._reshape(writer)
        else:
            values = tuple(items.values())
            changed = [*compress(self._places, map(is_not, values, self._seen))]
            if changed:
                self._update(values, changed, writer)
            elif self._encoded is not None:
                return self._encoded
        if not self._fresh:
            self._encoded = msgspec.Raw(encode([self._names, self._written]))
            return self._encoded
        written = self._written
        for i in self._fresh:
            writer.key = self._keys[i]
            written[i] = writer.value(self._seen[i])
        return [self._names, written.copy()]

    @property
    def seen(self) -> tuple[dict[Any, Any], msgspec.Raw, list[tuple[Any, Any, Any, bool]]]:
        """The mapping; its keys, written; and of each item, as it was read last, key, value, what
        was written, and whether it is loose."""
        each = zip(self._keys, self._seen, self._written, self._places, strict=True)
        fresh = set(self._fresh)
        return self._items, self._names, [(k, v, w, i in fresh) for k, v, w, i in each]

    def _update(self, values: tuple[Any, ...], changed: list[int], writer: Writer) -> None:
        fresh = self._fresh
        for i in changed:
            if i in fresh:
                continue
            if self._refers[i]:
                raise Restructured((self._id, self._keys[i]))
            writer.key = self._keys[i]
            writer.referred = False
            self._written[i] = writer.value(values[i])
            if writer.referred:
                fresh.append(i)
        self._seen = values
        self._encoded = None

    def _reshape(self, writer: Writer) -> None:
        """Keys came or went."""
        before = dict(zip(self._keys, zip(self._seen, self._refers, strict=True), strict=True))
        fresh = {self._keys[i] for i in self._fresh}
        for key, (old, refers) in before.items():
            if refers and key not in fresh and self._items.get(key, ALL) is not old:
                raise Restructured((self._id, key))
        loose = {(self._id, key) for key in fresh}
        kept = {key for key, (_, refers) in before.items() if refers and key not in fresh}
        self._learn(loose, writer, compiling=False)
        self._fresh = [i for i in self._fresh if self._keys[i] not in kept]


class Items:
    """Reads a list or a deque."""

    def __init__(self, node: Any, loose: set[Edge], writer: Writer) -> None:
        self._id = id(node)
        self._node = node
        self._fresh = (self._id, ALL) in loose
        self._seen: tuple[Any, ...] = ()
        self._encoded: msgspec.Raw | None = None
        self._refers = False
        if not self._fresh:
            writer.key = "[…]"
            writer.referred = False
            self._seen = tuple(node)
            self._encoded = msgspec.Raw(encode(writer.sequence(self._seen)))
            self._refers = writer.referred

    @property
    def seen(self) -> tuple[list[Any], tuple[Any, ...]] | None:
        """The list, and its items as they were read last; None where they are not watched."""
        return None if self._fresh or type(self._node) is not list else (self._node, self._seen)

    def read(self, writer: Writer) -> Any:
        """The items, encoded if they don't refer to anything loose."""
        node, seen = self._node, self._seen
        if not self._fresh:
            if len(node) == len(seen) and all(map(is_, node, seen)) and self._encoded is not None:
                return self._encoded
            if self._refers:
                raise Restructured((self._id, ALL))
        writer.key = "[…]"
        writer.referred = False
        values = tuple(node)
        written = writer.sequence(values)
        if self._fresh or writer.referred:
            self._fresh = True
            return written
        self._seen, self._encoded = values, msgspec.Raw(encode(written))
        return self._encoded


def _instance(node: Any, loose: set[Edge], writer: Writer) -> Tracked:
    items = fields_of(node)
    base = layouts.layout(type(node)) or object
    if (type(node).__module__, type(node).__name__) == BOX:
        for array in map(items.get, BOX_BOUNDS):
            if found := digest(array):
                writer.constants[id(array)] = [CONSTANT, found]
    fields = Fields(node, items, loose, writer) if items else None
    has_slots = bool(layouts.slots(type(node)))
    read_slots(node, writer)
    if base is not object:
        read_items(node, base, writer)

    def read(writer: Writer) -> Any:
        if fields is None and getattr(node, "__dict__", None):
            raise Restructured(None)
        return [
            fields.read(writer) if fields is not None else [[], []],
            read_slots(node, writer) if has_slots else None,
            read_items(node, base, writer) if base is not object else None,
        ]

    def read_plain(writer: Writer) -> Any:
        assert fields is not None
        written = [fields.read(writer), None, None]
        return msgspec.Raw(encode(written)) if type(written[0]) is msgspec.Raw else written

    plain = fields is not None and not has_slots and base is object
    return Tracked(read_plain, of_dict(items), fields, instance=True) if plain else Tracked(read)


def _array(node: arrays.Array, kind: Kind, writer: Writer) -> Reading:
    first = kind.read(node, writer)
    shape, dtype = node.shape, node.dtype
    if not isinstance(first, bytes):
        return lambda writer: kind.read(node, writer)
    if not node.flags.writeable and node.base is None:
        encoded = msgspec.Raw(encode(first))
        return lambda writer: encoded
    if node.flags.c_contiguous:
        copy = node.tobytes

        def read(writer: Writer) -> Any:
            if node.shape != shape or node.dtype is not dtype:
                raise Restructured(None)
            return copy()

        return read
    return lambda writer: kind.read(node, writer)


def watched(node: Any, kind: Kind, look: Callable[[], Any], writer: Writer) -> Reading:
    """Read a node only when what `look` returns has changed."""
    seen = look()
    encoded = msgspec.Raw(encode(kind.read(node, writer)))

    def read(writer: Writer) -> Any:
        nonlocal seen, encoded
        now = look()
        if now != seen:
            encoded = msgspec.Raw(encode(kind.read(node, writer)))
            seen = look()
        return encoded

    return read


def _alike(items: dict[Any, Any]) -> bool:
    """Whether the keys are of one plain type: then equal ones are the same (1 and True are not)."""
    return set(map(type, items)) in (set(), {str}, {int}, {np.int64})


def track(node: Any, kind: Kind, loose: set[Edge], writer: Writer) -> Tracked:
    """How this node is read from now on; the nodes that it refers to get their numbers."""
    if isinstance(kind, Instance):
        return _instance(node, loose, writer)
    if isinstance(kind, Container) and kind.base is dict and _alike(node):
        fields = Fields(node, node, loose, writer)
        return Tracked(fields.read, of_dict(node), fields)
    if isinstance(kind, Container) and kind.base in (list, deque):
        items = Items(node, loose, writer)
        return Tracked(items.read, (), items)
    if isinstance(kind, arrays.ArrayKind) and type(node) is np.ndarray:
        own = node.base is None and node.flags.c_contiguous and not node.dtype.hasobject
        return Tracked(_array(node, kind, writer), (), node if own else None)
    find = getattr(kind, "regions", None)
    if find is not None and (regions := find(node)):
        kind.read(node, writer)
        return Tracked(lambda writer: msgspec.Raw(encode(kind.read(node, writer))), regions, node)
    look = getattr(kind, "watch", None)
    if look is not None and (found := look(node)) is not None:
        return Tracked(watched(node, kind, found, writer))
    make = getattr(kind, "track", None)
    if make is not None:
        return Tracked(make(node))
    kind.read(node, writer)
    return Tracked(lambda writer: kind.read(node, writer))
