"""From plain data back into an object graph: the mirror of writing.py, in place where it can be.

Owns the order of a restore: first every node is *found* (the object that stands in its place in the
graph at hand, if it fits and nothing else has taken it, or a new one), then all are *filled*. So a
state that doesn't belong here is refused before anything has been changed. Two references to one
node become two references to one object, and two nodes never share one.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from dsec.errors import SnapshotError
from dsec.failover.codecs import writing as w

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


def as_dtype(text: Any) -> np.dtype[Any]:
    """The dtype that `writing.dtype_text` described."""
    return np.dtype(text) if isinstance(text, str) else np.dtype(_as_tuples(text))


def _as_tuples(described: Any) -> Any:
    """Fields are tuples in a list of fields, shapes are tuples of numbers."""
    fields = []
    for name, kind, *shape in described:
        inner = kind if isinstance(kind, str) else _as_tuples(kind)
        fields.append((name, inner, *(tuple(each) for each in shape)))
    return fields


def digest(array: Any) -> bytes:
    """The hash of an array's form and elements; empty for anything else."""
    if type(array) is not np.ndarray or array.dtype.hasobject:
        return b""
    form = f"{array.dtype.str}{array.shape}".encode()
    return xxhash.xxh3_128_digest(form + array.tobytes())


def named(module: str, name: str) -> Any:
    """What is importable under this name.

    Raises:
        SnapshotError: nothing is, here.
    """
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        raise SnapshotError(f"the state refers to {module}.{name}, which is not here") from None


class _Dead:
    """What a dead weak reference refers to: nothing else ever does."""


class Reader:
    """Restores one state.

    Args:
        kinds: by tag.
        nodes: (tag, head, content) of each.
    """

    def __init__(self, kinds: Mapping[str, w.Kind], nodes: list[tuple[str, Any, Any]]) -> None:
        self._kinds = kinds
        self._nodes = nodes
        self._found: list[Any] = [MISSING] * len(nodes)
        self._hints: list[Any] = [MISSING] * len(nodes)
        self._taken: set[int] = set()
        self._generators: dict[int, np.random.Generator] = {}

    def restore(self) -> None:
        """Find all nodes, then fill them. The hints of the roots have been given."""
        for number, (tag, _, content) in enumerate(self._nodes):
            self._kinds[tag].hints(self.node(number), content, self)
        for number, (tag, _, content) in enumerate(self._nodes):
            self._kinds[tag].fill(self._found[number], content, self)

    def node(self, number: int) -> Any:
        """The object that node `number` is in this graph."""
        found = self._found[number]
        if found is MISSING:
            tag, head, content = self._nodes[number]
            hint = self._hints[number]
            if hint is not MISSING and id(hint) in self._taken:
                hint = MISSING
            found = self._kinds[tag].find(head, content, hint, self)
            self._found[number] = found
            self._taken.add(id(found))
        return found

    def hint(self, written: Any, current: Any) -> None:
        """`current` stands where `written` belongs: remember it for the nodes in there.

        Raises:
            SnapshotError: something that can't be made anew belongs there, and isn't there.
        """
        if type(written) is not list:
            return
        match written[0]:
            case w.REF:
                if self._hints[written[1]] is MISSING:
                    self._hints[written[1]] = current
            case w.TUPLE:
                self._hint_all(written[1], current, tuple)
            case w.SUBTUPLE:
                self._hint_all(written[2], current, tuple)
            case w.METHOD:
                self.hint(written[1], getattr(current, "__self__", MISSING))
            case w.BOUND:
                self.hint(written[1], getattr(current, "__func__", MISSING))
                self.hint(written[2], getattr(current, "__self__", MISSING))
            case w.PARTIAL:
                partial = isinstance(current, functools.partial)
                self.hint(written[1], current.func if partial else MISSING)
                self._hint_all(written[2], current.args if partial else MISSING, tuple)
                keywords = current.keywords if partial else {}
                for name, value in zip(written[3][::2], written[3][1::2], strict=True):
                    self.hint(value, keywords.get(name, MISSING))
            case w.GENERATOR:
                is_one = isinstance(current, np.random.Generator)
                self.hint(written[1], current.bit_generator if is_one else MISSING)
            case w.WEAK:
                self.hint(written[1], current() if type(current) is weakref.ref else MISSING)
            case w.CONSTANT:
                if digest(current) != written[1]:
                    raise SnapshotError("a constant array (a bound of a space) is another one here")
            case w.KEEP:
                if current is MISSING or w.describe(current) != written[1]:
                    raise SnapshotError(
                        f"the state needs what it can't make anew, {written[1]}, and found"
                        f" {'nothing' if current is MISSING else w.describe(current)} in its place"
                    )

    def _hint_all(self, written: list[Any], current: Any, kind: type) -> None:
        fits = isinstance(current, kind) and len(current) == len(written)  # type: ignore[arg-type]
        for i, each in enumerate(written):
            self.hint(each, current[i] if fits else MISSING)

    def value(self, written: Any, current: Any = MISSING) -> Any:
        """Make the value, or take the node; `current` is what a KEEP keeps."""
        if type(written) is not list:
            return written
        match written[0]:
            case w.REF:
                return self.node(written[1])
            case w.SCALAR:
                return np.frombuffer(written[2], as_dtype(written[1]))[0]
            case w.TUPLE:
                return tuple(self.values(written[1], current))
            case w.GENERATOR:
                return self._generator(written[1][1], current)
            case w.KEEP | w.CONSTANT:
                return current
            case w.GLOBAL:
                return named(written[1], written[2])
            case w.METHOD:
                owner = self.value(written[1], getattr(current, "__self__", MISSING))
                return getattr(owner, written[2])
            case _:
                return self._unusual(written, current)

    def _unusual(self, written: list[Any], current: Any) -> Any:
        match written:
            case [w.BIGINT, number]:
                return int.from_bytes(number, "little", signed=True)
            case [w.TEXT, text]:
                return text.decode("utf-8", "surrogatepass")
            case [w.COMPLEX, real, imag]:
                return complex(real, imag)
            case [w.FROZENSET, values]:
                return frozenset(self.values(values))
            case [w.SUBTUPLE, kind, values]:
                return _subtuple(self.value(kind, type(current)), self.values(values, current))
            case [w.PARTIAL, function, args, keywords]:
                flat = self.values(keywords)
                return functools.partial(
                    self.value(function, getattr(current, "func", MISSING)),
                    *self.values(args),
                    **dict(zip(flat[::2], flat[1::2], strict=True)),
                )
            case [w.WEAK, target]:
                now = current() if type(current) is weakref.ref else None
                found = self.value(target, now)
                return current if now is found is not None else weakref.ref(found or _Dead())
            case [w.RANGE, start, stop, step]:
                return range(start, stop, step)
            case [w.SLICE, values]:
                return slice(*self.values(values))
            case [w.DTYPE, text]:
                return as_dtype(text)
            case [w.MEMBER, kind, name]:
                return self.value(kind, type(current))[name]
            case [w.MODULE, name]:
                return sys.modules[name]
            case [w.ATOM, kind, value]:
                cls = self.value(kind, type(current))
                return cls.__new__(cls, self.value(value))
            case [w.BOUND, function, owner]:
                return types.MethodType(
                    self.value(function, getattr(current, "__func__", MISSING)), self.value(owner)
                )
        raise SnapshotError(f"the state holds a value of unknown kind {written[0]!r}")

    def values(self, written: list[Any], current: Any = MISSING) -> list[Any]:
        """Make a list of values."""
        if isinstance(current, tuple | list) and len(current) == len(written):
            return [self.value(each, now) for each, now in zip(written, current, strict=True)]
        return [self.value(each) for each in written]

    def _generator(self, number: int, current: Any) -> np.random.Generator:
        """The one Generator over this bit generator: the one in place, or a new one."""
        made = self._generators.get(number)
        if made is None:
            bits = self.node(number)
            is_over = isinstance(current, np.random.Generator) and current.bit_generator is bits
            made = self._generators[number] = current if is_over else np.random.Generator(bits)
        return made


def _subtuple(kind: Any, values: list[Any]) -> Any:
    """A namedtuple takes its values one by one, and may do anything in its constructor."""
    try:
        return tuple.__new__(kind, values)
    except TypeError:  # made in C, and wants its own constructor
        return kind(values)


def kinds_by_tag(kinds: Mapping[type, w.Kind]) -> dict[str, w.Kind]:
    """The table for reading from the table for writing."""
    return {kind.tag: kind for kind in kinds.values()}
