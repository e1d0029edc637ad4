"""From an object graph to plain data: values become scalars and tagged lists, nodes get numbers.

Owns the writing half of the wire form; reading.py is its mirror. A *node* is an object whose
identity matters, because it can change or because others hold it: it is written once, under a
number, and referred to. A *value* can't change and is written where it stands. What a node holds
is the business of its `Kind`; the kinds of single packages (ALE, torch…) are added from outside.

All scalars are exact: floats are eight bytes, numpy's scalars keep their type, NaN keeps its bits.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dsec.errors import SnapshotError
from dsec.failover.codecs import layouts

CONSTANT, WEAK = 20, 21
REF, TUPLE, BIGINT, SCALAR, GLOBAL, METHOD, KEEP, COMPLEX, FROZENSET, SUBTUPLE = range(10)
PARTIAL, RANGE, SLICE, DTYPE, MEMBER, MODULE, ATOM, BOUND, TEXT, GENERATOR = range(10, 20)

DEPTH_MAX = 200
_OBJECT = np.dtype(object).num
_INT64 = range(-(1 << 63), 1 << 64)


class Kind(Protocol):
    """How one sort of node is written, found again in another graph, and filled."""

    tag: str

    def head(self, node: Any, writer: Writer) -> Any:
        """What never changes about it: enough to recognise or to make one."""

    def read(self, node: Any, writer: Writer) -> Any:
        """Its content now, as plain data. Sets `writer.key` before each value, for messages."""

    def find(self, head: Any, content: Any, hint: Any, reader: Any) -> Any:
        """The node to fill: `hint`, which stands in its place, if it fits, or else a new one."""

    def hints(self, node: Any, content: Any, reader: Any) -> None:
        """Tell the reader what stands now where this node's children belong."""

    def fill(self, node: Any, content: Any, reader: Any) -> None:
        """Make its content what was written."""


class Closure:
    """The key of the kind of functions that can't be imported. Not every function is a node, so
    their own type is no key of that table."""


class Refused(SnapshotError):
    """Something in the graph can't be held; `reason` without the path that leads to it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def importable(value: Any) -> tuple[str, str] | None:
    """Module and qualified name under which an object is found again, if it is."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    if module is None:  # numpy's ufuncs
        module = "numpy" if isinstance(value, np.ufunc) else "builtins"
    try:
        found = functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError, TypeError):
        return None
    return (module, name) if found is value else None


def describe(value: Any) -> str:
    """What a KEEP value is recognised by: things that don't change and can't be made anew."""
    if isinstance(value, type | types.FunctionType):
        return f"{type(value).__name__} {value.__module__}.{value.__qualname__}"
    if isinstance(value, layouts.LOCKS):
        return "lock"
    if isinstance(value, re.Pattern):
        return f"pattern {value.flags} {value.pattern!r}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Writer:
    """Numbers nodes as it meets them. One writer serves one capture, or the making of a plan.

    Args:
        kinds: by exact type.
        number: of the first node that isn't known yet.
        known: numbers of nodes that are written elsewhere, by id.
        constants: what is written instead of arrays that are only compared, by id.
    """

    def __init__(
        self,
        kinds: Mapping[type, Kind],
        known: dict[int, int] | None = None,
        number: int = 0,
        constants: dict[int, list[Any]] | None = None,
    ) -> None:
        self.kinds = kinds
        self.constants = constants if constants is not None else {}
        self.counts: dict[int, int] = {}  # of references, by number
        self.tables: dict[int, Kind] = {}  # by id: nodes that are taken as a whole
        self.inner: dict[int, Exception] = {}  # by id: parts of those, which nobody else may have
        self._known = known if known is not None else {}
        self._first = number
        self.index: dict[int, int] = {}
        self.nodes: list[tuple[Kind, Any]] = []
        self.parents: list[tuple[int, Any]] = []
        self.node = -1
        self.key: Any = ""
        self.referred = False
        self._depth = 0

    def value(self, value: Any) -> Any:
        """Write one value, or the reference to a node."""
        kind = type(value)
        if kind is float or kind is bool or value is None:
            return value
        if kind is int:
            if value in _INT64:
                return value
            return [BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]
        if kind is str:
            return value if value.isascii() else [TEXT, value.encode("utf-8", "surrogatepass")]
        if kind is bytes:
            return value
        node_kind = self.kinds.get(kind)
        if node_kind is not None:
            constant = self.constants.get(id(value))
            return self.ref(value, node_kind) if constant is None else constant
        write = VALUE_WRITERS.get(kind)
        if write is not None:
            return write(self, value)
        return self._unusual(value, kind)

    def ref(self, node: Any, kind: Kind) -> list[int]:
        """The reference to a node, which gets a number if it has none."""
        self.referred = True
        where = id(node)
        number = self._known.get(where)
        if number is None:
            number = self.index.get(where)
        if number is None:
            if where in self.inner:
                raise self.inner[where]
            number = self.index[where] = self._first + len(self.nodes)
            self.nodes.append((self.tables.get(where, kind), node))
            self.parents.append((self.node, self.key))
        self.counts[number] = self.counts.get(number, 0) + 1
        return [REF, number]

    def sequence(self, values: Any) -> list[Any]:
        """Write a list of values."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Refused(f"holds values nested more than {DEPTH_MAX} deep")
        written = [self.value(each) for each in values]
        self._depth -= 1
        return written

    def _unusual(self, value: Any, kind: type) -> Any:
        """Write what the tables by exact type don't know: classes, enums, subclasses, C objects."""
        if isinstance(value, np.generic):
            return _write_scalar(self, value)
        if isinstance(value, np.dtype):
            return [DTYPE, dtype_text(value)]
        if isinstance(value, type):
            return _write_named(self, value)
        if isinstance(value, enum.Enum):
            return [MEMBER, self.value(kind), value.name]
        if isinstance(value, layouts.LOCKS) and not _is_held(value):
            return [KEEP, describe(value)]
        base = layouts.layout(kind)
        if base is None:
            if (name := importable(value)) is not None:
                return [GLOBAL, *name]
            raise Refused(f"holds {layouts.refusal(value)}")
        if isinstance(value, layouts.REFUSED):
            raise Refused(f"holds {layouts.refusal(value)}")
        if base is tuple and not getattr(value, "__dict__", None):
            return [SUBTUPLE, self.value(kind), self.sequence(value)]
        if base in layouts.VALUES:
            if getattr(value, "__dict__", None) or base in (tuple, frozenset):
                raise Refused(f"holds a {kind.__qualname__}, an immutable value with attributes")
            return [ATOM, self.value(kind), self.value(base(value))]
        return self.ref(value, self.kinds[object])


def _is_held(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


def dtype_text(dtype: np.dtype[Any]) -> Any:
    """A dtype as text, or for structured ones as nested lists; `reading.as_dtype` undoes it."""
    if dtype.isbuiltin == 1 and dtype.num != _OBJECT:
        return dtype.str
    if dtype.hasobject:
        return "|O"
    if dtype.names is None and dtype.subdtype is None:
        return dtype.str
    described = np.lib.format.dtype_to_descr(dtype)
    if np.lib.format.descr_to_dtype(described) != dtype or not isinstance(described, list):
        raise Refused(f"holds the data type {dtype}, which can't be described exactly")
    return _as_lists(described)


def _as_lists(described: Any) -> Any:
    is_list = isinstance(described, list | tuple)
    return [_as_lists(each) for each in described] if is_list else described


def _write_scalar(writer: Writer, value: np.generic) -> Any:
    if value.dtype.hasobject:
        raise Refused("holds a numpy scalar that refers to objects")
    return [SCALAR, dtype_text(value.dtype), value.tobytes()]


def _write_named(writer: Writer, value: Any) -> Any:
    name = importable(value)
    return [GLOBAL, *name] if name is not None else [KEEP, describe(value)]


def _write_function(writer: Writer, value: types.FunctionType) -> Any:
    """By name where that finds it; else it is a node if it holds anything that could change."""
    name = importable(value)
    if name is not None:
        return [GLOBAL, *name]
    held = value.__closure__ or value.__defaults__ or value.__kwdefaults__ or value.__dict__
    return writer.ref(value, writer.kinds[Closure]) if held else [KEEP, describe(value)]


def _write_method(writer: Writer, value: types.MethodType) -> Any:
    owner, name = value.__self__, value.__func__.__name__
    if getattr(owner, name, None) == value:
        return [METHOD, writer.value(owner), name]
    return [BOUND, writer.value(value.__func__), writer.value(owner)]


def _write_builtin(writer: Writer, value: types.BuiltinMethodType) -> Any:
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        return _write_named(writer, value)
    return [METHOD, writer.value(owner), value.__name__]


def _write_partial(writer: Writer, value: functools.partial[Any]) -> Any:
    keywords = [part for item in value.keywords.items() for part in item]
    return [
        PARTIAL, writer.value(value.func), writer.sequence(value.args), writer.sequence(keywords),
    ]  # fmt: skip


def _write_complex(writer: Writer, value: complex) -> Any:
    return [COMPLEX, value.real, value.imag]


def _write_module(writer: Writer, value: types.ModuleType) -> Any:
    if sys.modules.get(value.__name__) is not value:
        raise Refused(f"holds the module {value.__name__}, which can't be imported by that name")
    return [MODULE, value.__name__]


# By exact type; packages that are imported later add theirs.
VALUE_WRITERS: dict[type, Callable[[Writer, Any], Any]] = {
    tuple: lambda w, v: [TUPLE, w.sequence(v)],
    frozenset: lambda w, v: [FROZENSET, w.sequence(v)],
    complex: _write_complex,
    range: lambda w, v: [RANGE, v.start, v.stop, v.step],
    slice: lambda w, v: [SLICE, w.sequence((v.start, v.stop, v.step))],
    functools.partial: _write_partial,
    types.FunctionType: _write_function,
    types.MethodType: _write_method,
    types.BuiltinMethodType: _write_builtin,
    types.ModuleType: _write_module,
    np.random.Generator: lambda w, v: [GENERATOR, w.value(v.bit_generator)],
    weakref.ref: lambda w, v: [WEAK, w.value(v())],
    re.Pattern: lambda w, v: [KEEP, describe(v)],
    type(Ellipsis): lambda w, v: [GLOBAL, "builtins", "Ellipsis"],
    type(NotImplemented): lambda w, v: [GLOBAL, "builtins", "NotImplemented"],
    **dict.fromkeys(
        (np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_), _write_scalar
    ),
}
