"""Nodes that Python code makes: instances, dicts, lists, deques, sets, closures.

Owns what each holds and how it is filled in place. Attributes are read from `__dict__` and from
slots and never through properties, so that looking at an object can't change it. Subclasses of the
builtin containers hold both: their items, and their attributes.
"""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs import layouts
from dsec.failover.codecs.reading import MISSING, Reader, named
from dsec.failover.codecs.writing import Refused, Writer

UNSET = [-1]
"""Written for a slot that holds nothing."""


def fields_of(node: Any) -> dict[str, Any]:
    """The attributes of an instance that are not in slots; {} if it can have none."""
    return getattr(node, "__dict__", None) or {}


def read_slots(node: Any, writer: Writer) -> Any:
    """The content of all slots, or None where the class has none."""
    members = layouts.slots(type(node))
    if not members:
        return None
    written = []
    for member in members:
        writer.key = member.__name__
        try:
            value = member.__get__(node)
        except AttributeError:
            written.append(UNSET)
        else:
            written.append(writer.value(value))
    return written


def read_mapping(items: dict[Any, Any], writer: Writer) -> list[Any]:
    """Keys and values, in the order of the mapping."""
    keys, values = [], []
    for key, value in items.items():
        writer.key = key
        keys.append(writer.value(key))
        values.append(writer.value(value))
    return [keys, values]


def read_items(node: Any, base: Any, writer: Writer) -> Any:
    """What a builtin container, or the builtin part of a subclass, holds."""
    if base in (list, deque):
        writer.key = "[…]"
        return writer.sequence(node)
    if base is set:
        values = list(node)
        if list(set(values)) != values:
            raise Refused("holds a set whose order would not survive being built anew")
        return writer.sequence(values)
    if base is bytearray:
        return bytes(node)
    if base in (dict, OrderedDict, defaultdict):
        return read_mapping(node, writer)
    return None


class Container:
    """One builtin container type: dict, OrderedDict, defaultdict, list, deque, set, bytearray."""

    def __init__(self, tag: str, base: Any) -> None:
        self.tag = tag
        self.base = base

    def head(self, node: Any, writer: Writer) -> Any:
        """What its constructor fixes: a deque's bound, a defaultdict's factory."""
        if self.base is deque:
            return node.maxlen
        if self.base is defaultdict:
            writer.key = "default_factory"
            return writer.value(node.default_factory)
        return None

    def read(self, node: Any, writer: Writer) -> Any:
        """Its items."""
        return read_items(node, self.base, writer)

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """Any container of this exact type will do."""
        if type(hint) is self.base and (self.base is not deque or hint.maxlen == head):
            return hint
        if self.base is deque:
            return deque(maxlen=head)
        if self.base is defaultdict:
            return defaultdict(reader.value(head))
        return self.base()

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """Items stand at the same key or index."""
        hint_items(node, self.base, content, reader)

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Replace the items."""
        fill_items(node, self.base, content, reader)


def hint_items(node: Any, base: Any, content: Any, reader: Reader) -> None:
    """Pass on the children of a builtin container."""
    if base in (list, deque):
        for i, written in enumerate(content):
            reader.hint(written, node[i] if i < len(node) else MISSING)
    elif base in (dict, OrderedDict, defaultdict):
        for key, written in zip(*content, strict=True):
            plain = type(key) is not list
            reader.hint(key, MISSING)
            reader.hint(written, base.get(node, key, MISSING) if plain else MISSING)
    elif base is set:
        for written in content:
            reader.hint(written, MISSING)


def fill_items(node: Any, base: Any, content: Any, reader: Reader) -> None:
    """Replace the items of a builtin container, past any override of its class."""
    if base in (list, deque):
        values = reader.values(content, list(node))
        base.clear(node)
        base.extend(node, values)
    elif base in (dict, OrderedDict, defaultdict):
        pairs = []
        for key, written in zip(*content, strict=True):
            plain = type(key) is not list
            now = base.get(node, key, MISSING) if plain else MISSING
            pairs.append((reader.value(key), reader.value(written, now)))
        base.clear(node)
        for key, value in pairs:
            base.__setitem__(node, key, value)
    elif base is set:
        values = reader.values(content)
        set.clear(node)
        for value in values:
            set.add(node, value)
    elif base is bytearray:
        node[:] = content


class Instance:
    """An instance of a class made by a class statement.

    Content: [[names, values], slots, items].
    """

    tag = "i"

    def head(self, node: Any, writer: Writer) -> Any:
        """Its class."""
        return [type(node).__module__, type(node).__qualname__]

    def read(self, node: Any, writer: Writer) -> Any:
        """Attributes, slots and items."""
        names, values = [], []
        for name, value in fields_of(node).items():
            writer.key = name
            names.append(name)
            values.append(writer.value(value))
        base = layouts.layout(type(node))
        assert base is not None, "the writer takes no other instances"
        items = read_items(node, base, writer) if base is not object else None
        return [[names, values], read_slots(node, writer), items]

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """An instance of the same class, or an empty one whose constructor never ran."""
        cls = type(hint)
        if [cls.__module__, cls.__qualname__] == head:
            return hint
        module, name = head
        if "<locals>" in name:
            raise SnapshotError(
                f"the state holds a {module}.{name}, which can't be made anew, and found"
                f" {'nothing' if hint is MISSING else cls.__qualname__} in its place"
            )
        cls = named(module, name)
        if not isinstance(cls, type):
            raise SnapshotError(f"{module}.{name} is no class here")
        base: Any = layouts.layout(cls)
        if base is None or base in layouts.VALUES:
            raise SnapshotError(f"{module}.{name} is another class now")
        try:
            return base.__new__(cls)
        except TypeError as error:
            raise SnapshotError(f"a {module}.{name} can't be made anew: {error}") from None

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """Children stand at the same names."""
        (names, values), slots, items = content
        fields = fields_of(node)
        for name, written in zip(names, values, strict=True):
            reader.hint(written, fields.get(name, MISSING))
        for member, written in zip(layouts.slots(type(node)), slots or (), strict=True):
            reader.hint(written, _slot(node, member))
        if items is not None:
            hint_items(node, layouts.layout(type(node)) or object, items, reader)

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Make the attributes what they were, also those that are no longer there."""
        (names, values), slots, items = content
        if names or fields_of(node):
            fields = node.__dict__
            made = {
                name: reader.value(written, fields.get(name, MISSING))
                for name, written in zip(names, values, strict=True)
            }
            if list(made) != list(fields):
                fields.clear()
            fields.update(made)
        for member, written in zip(layouts.slots(type(node)), slots or (), strict=True):
            now = _slot(node, member)
            if written != UNSET:
                member.__set__(node, reader.value(written, now))
            elif now is not MISSING:
                member.__delete__(node)
        if items is not None:
            fill_items(node, layouts.layout(type(node)), items, reader)


def _slot(node: Any, member: Any) -> Any:
    try:
        return member.__get__(node)
    except AttributeError:
        return MISSING


class Cell:
    """A variable of an enclosing function, which closures share."""

    tag = "c"

    def head(self, node: Any, writer: Writer) -> Any:
        """Nothing."""

    def read(self, node: Any, writer: Writer) -> Any:
        """Its value, or UNSET."""
        try:
            return writer.value(node.cell_contents)
        except ValueError:
            return UNSET

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """Only the cell in place is of use: the function's code refers to it."""
        if type(hint) is types.CellType:
            return hint
        raise SnapshotError("the state holds a closure that is not here")

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """Its value."""
        if content != UNSET:
            reader.hint(content, _cell(node))

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Set or delete it."""
        if content != UNSET:
            node.cell_contents = reader.value(content, _cell(node))
        elif _cell(node) is not MISSING:
            del node.cell_contents


def _cell(node: Any) -> Any:
    try:
        return node.cell_contents
    except ValueError:
        return MISSING


class Function:
    """A function that can't be imported: a lambda, or one made inside another. What it can hold is
    in its closure, its defaults and its attributes; its code is part of the program."""

    tag = "f"

    def head(self, node: Any, writer: Writer) -> Any:
        """Its name, and where it was written."""
        code = node.__code__
        return [node.__module__, node.__qualname__, code.co_firstlineno]

    def read(self, node: Any, writer: Writer) -> Any:
        """Cells, defaults, keyword defaults, attributes."""
        writer.key = "__closure__"
        return writer.sequence(
            (node.__closure__, node.__defaults__, node.__kwdefaults__, node.__dict__ or None)
        )

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The function in place, if it is the same code."""
        if type(hint) is types.FunctionType and self.head(hint, Writer({})) == head:
            return hint
        raise SnapshotError(f"the state holds the function {head[1]}, which is not here")

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """The same four."""
        now = (node.__closure__, node.__defaults__, node.__kwdefaults__, node.__dict__)
        for written, current in zip(content, now, strict=True):
            reader.hint(written, current)

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Cells are filled as nodes; the rest is set."""
        _, defaults, kwdefaults, _ = content
        node.__defaults__ = reader.value(defaults, node.__defaults__)
        node.__kwdefaults__ = reader.value(kwdefaults, node.__kwdefaults__)
