"""Nodes that numpy makes: arrays that own their memory, and views of such arrays.

Owns the copying of array contents, bit for bit, in the memory order they have. A view stays a view
of the same memory: an environment that writes through one and reads through the other goes on
doing so. Memory that neither numpy nor Python owns is only ever written where it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from dsec.errors import SnapshotError
from dsec.failover.codecs.layouts import refusal
from dsec.failover.codecs.reading import MISSING, Reader, as_dtype
from dsec.failover.codecs.writing import Refused, Writer, dtype_text

Array = np.ndarray[Any, Any]

OWNED, VIEW, FOREIGN = 0, 1, 2


def base_of(array: Array) -> Any:
    """The object at the end of the chain of bases; None for an array that owns its memory.

    nanobind hands over arrays together with memory that nobody else has (an emulator's screen, a
    fresh one in each step); these own it for all that we know, and the self-check asks again.
    """
    base: Any = array.base
    while type(base) is np.ndarray and base.base is not None:
        base = base.base
    if type(base) is memoryview and type(base.obj).__qualname__ == "nb_ndarray":
        return None
    return base


def _axes(array: Array) -> list[int]:
    """The axes from the slowest to the fastest in memory."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    return sorted(range(array.ndim), key=lambda axis: -array.strides[axis])


def _in_order(array: Array, axes: list[int]) -> Array:
    """The same elements, so turned that their memory order is C order."""
    return array if axes == sorted(axes) else array.transpose(axes)


def _where(array: Array, base: Any) -> tuple[int, list[int]]:
    """Offset of a view's first element in its base's memory, and its strides."""
    if isinstance(base, bytearray):
        start = np.frombuffer(base, np.uint8).ctypes.data
    else:
        start = byte_bounds(base)[0]
    return array.ctypes.data - start, list(array.strides)


_heads: dict[Any, list[Any]] = {}
_HEADS_MAX = 1024


def _head_of(dtype: np.dtype[Any], shape: tuple[int, ...], writeable: bool) -> list[Any]:
    """The head of an array in C order that owns its memory. Environments make one of a kind in
    each step, so what was written once is remembered."""
    key = id(dtype), shape, writeable  # by identity: equal dtypes may be written differently
    found = _heads.get(key) if dtype.isbuiltin == 1 else None
    if found is None:
        found = [OWNED, dtype_text(dtype), list(shape), writeable, list(range(len(shape)))]
        if dtype.isbuiltin == 1 and len(_heads) < _HEADS_MAX:
            _heads[key] = found
    return found


class ArrayKind:
    """An exact `numpy.ndarray`. Head: [sort, dtype, shape, writeable, axes]."""

    tag = "a"

    def head(self, node: Array, writer: Writer) -> Any:
        """Everything but the elements."""
        flags = node.flags
        if node.base is None and flags.c_contiguous:
            return _head_of(node.dtype, node.shape, flags.writeable)
        base = base_of(node)
        sort = OWNED
        if type(base) in (np.ndarray, bytearray):
            sort = VIEW
        elif base is not None and type(base) is not bytes:
            sort = FOREIGN
        if sort == FOREIGN and type(base) not in writer.kinds:
            raise Refused(f"holds an array over memory of {refusal(base)}")
        return [sort, dtype_text(node.dtype), list(node.shape), flags.writeable, _axes(node)]

    def read(self, node: Array, writer: Writer) -> Any:
        """The elements, or for a view where it lies in which memory."""
        if node.base is None and node.flags.c_contiguous and not node.dtype.hasobject:
            return node.tobytes()
        base = base_of(node)
        if type(base) in (np.ndarray, bytearray):
            writer.key = "base"
            return [writer.value(base), *_where(node, base)]
        if node.dtype.hasobject:
            if node.dtype.names is not None:
                raise Refused("holds a structured array with objects in it")
            writer.key = "[…]"
            return writer.sequence(node.ravel().tolist())
        return _in_order(node, _axes(node)).tobytes()

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """An array of the same form in the same kind of memory."""
        sort, dtype, shape, writeable, axes = head
        fits = (
            type(hint) is np.ndarray
            and hint.dtype == as_dtype(dtype)
            and list(hint.shape) == shape
            and _axes(hint) == axes
        )
        base = base_of(hint) if fits else MISSING
        if sort == VIEW:
            return self._view(head, content, hint if fits else MISSING, base, reader)
        if sort == FOREIGN:
            if not fits or base is None:
                raise SnapshotError("the state holds an array in memory that is not here")
            return hint
        order = [shape[axis] for axis in axes]
        if fits and base is None and hint.flags.writeable and writeable:
            return hint
        if fits and not writeable and _in_order(hint, axes).tobytes() == content:
            return hint
        return self._new(head, content, order)

    def _new(self, head: Any, content: Any, order: list[int]) -> Array:
        """An array with this memory order; it owns its memory if that is C or Fortran order."""
        _, dtype, shape, writeable, axes = head
        fortran = axes == list(range(len(axes)))[::-1]
        made: Array = np.empty(
            shape if fortran else order, as_dtype(dtype), "F" if fortran else "C"
        )
        if not writeable:
            elements = np.frombuffer(content, made.dtype).reshape(order)
            made[...] = elements.transpose(np.argsort(axes)) if fortran else elements
            made.flags.writeable = False
        return made if fortran or axes == sorted(axes) else made.transpose(np.argsort(axes))

    def _view(self, head: Any, content: Any, hint: Any, base: Any, reader: Reader) -> Array:
        _, dtype, shape, writeable, _ = head
        written, offset, strides = content
        reader.hint(written, base)
        memory = reader.value(written)
        if hint is not MISSING and base is memory and _where(hint, base) == (offset, strides):
            return hint  # type: ignore[no-any-return]
        if isinstance(memory, bytearray):
            flat: Array = np.frombuffer(memory, np.uint8)
        else:
            flat = memory.reshape(-1, order="A").view(np.uint8)
        view: Array = np.ndarray(shape, as_dtype(dtype), flat, offset, strides)
        view.flags.writeable = writeable
        return view

    def hints(self, node: Array, content: Any, reader: Reader) -> None:
        """The elements of an array of objects."""
        if node.dtype.hasobject and isinstance(content, list):
            for written, current in zip(content, node.ravel().tolist(), strict=True):
                reader.hint(written, current)

    def fill(self, node: Array, content: Any, reader: Reader) -> None:
        """Write the elements."""
        base = base_of(node)
        if isinstance(content, list):
            if node.dtype.hasobject and base is None:
                node[...] = np.empty(node.shape, object)
                for i, value in enumerate(reader.values(content, node.ravel().tolist())):
                    node.flat[i] = value
            return
        axes = _axes(node)
        elements = np.frombuffer(content, node.dtype)
        turned = _in_order(node, axes)
        if not node.flags.writeable:
            if turned.tobytes() != content:
                raise SnapshotError("a read-only array differs from the state")
            return
        turned[...] = elements.reshape(turned.shape)
