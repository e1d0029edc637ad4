"""Dicts, lists and arrays of this process read in one call, for who has read them in Python before.

Who makes an `Items` says what each node holds and how that is encoded; from then on `take` gives
the whole encoded anew, or None as soon as anything is of another form than was said. This file
knows positions of bytes and no codec: what the texts mean is its maker's affair. It holds whatever
it looks at, so that nothing goes away meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dsec.ipc._ring import ffi, lib
from dsec.ipc.watch import Watch

PLAIN: Final = lib.DSEC_SLOT_PLAIN
SAME: Final = lib.DSEC_SLOT_SAME
SCALAR: Final = lib.DSEC_SLOT_SCALAR
LOOSE: Final = lib.DSEC_SLOT_LOOSE
WIDE: Final = lib.DSEC_SLOT_WIDE
WORD: Final = lib.DSEC_SLOT_WORD
STILL: Final = lib.DSEC_SLOT_STILL
DICT: Final = lib.DSEC_NODE_DICT
LIST: Final = lib.DSEC_NODE_LIST
ARRAY: Final = lib.DSEC_NODE_ARRAY
TOLD: Final = lib.DSEC_NODE_TOLD
MEMORY: Final = lib.DSEC_NODE_MEMORY
_ROOM: Final = {PLAIN: 9, WIDE: 36, WORD: 5}
"""Bytes of such a value at most."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One item.

    Attributes:
        before: what is written before its value; for SAME, with it.
        value: as it is now. SAME: it must stay. SCALAR: of its type and form; LOOSE: of its form.
        key: in a dict, the very object; of memory, the address.
        number: LOOSE: which of the loose arrays.
    """

    kind: int
    before: bytes
    value: Any = None
    key: Any = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One object.

    Attributes:
        owner: the dict, list or array itself.
        after: what is written behind the last slot; of an array, before its elements.
        watched: it is read only when its entry of the watch has changed.
    """

    kind: int
    owner: Any = None
    slots: Sequence[Slot] = field(default=())
    after: bytes = b""
    watched: bool = False


class Items:
    """What `nodes` hold.

    Args:
        nodes: in the order in which they are written.
        watch: its entries are the nodes' numbers.
        before, between: what is written before the nodes, and between them and loose arrays.
        loose: the arrays of LOOSE slots, and what is written before the elements of each.
        tell: reads a TOLD node; its bytes, or None where they are of no use.

    Raises:
        BufferError, ValueError: an array has no elements that can be copied.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        watch: Watch,
        before: bytes,
        between: bytes,
        loose: Sequence[tuple[Any, bytes]],
        tell: Callable[[int], bytes | None],
    ) -> None:
        self._keep: list[Any] = [nodes, watch, loose]
        self._tell = tell
        arrays = [n.owner for n in nodes if isinstance(n.owner, np.ndarray)]
        self._nodes = ffi.new("dsec_node[]", max(1, len(nodes)))
        self._told = ffi.new("uint32_t[]", max(1, len(nodes)))
        self._texts: list[Any] = [None] * len(nodes)
        self._loose = ffi.new("dsec_loose[]", max(1, len(loose)))
        size = len(before) + len(between)
        for cell, node in zip(self._nodes, nodes, strict=False):
            size += self._lay(cell, node)
        for cell, (array, text) in zip(self._loose, loose, strict=False):
            self._form(cell.form, array)
            cell.before = self._text(text)
            size += len(text) + array.nbytes
        self._size = size
        self._items = items = ffi.new("dsec_items *")
        items.nodes, items.told, items.loose = self._nodes, self._told, self._loose
        items.count, items.loose_count = len(nodes), len(loose)
        items.regions, items.regions_count, items.copies, items.changed = watch.parts
        kept = ffi.new("void *[]", [_address(array) for array in arrays] or [ffi.NULL])
        self._keep.append(kept)
        items.arrays, items.arrays_count = kept, len(arrays)
        items.array_type, items.base_key = _address(np.ndarray), _address(_BASE)
        items.before, items.between = self._text(before), self._text(between)
        items.fresh = 1
        self._out = ffi.NULL
        self._make_room(size)

    def take(self) -> bytes | None:
        """Everything as it is now. None: something is of another form, and must be looked at."""
        items = self._items
        got = lib.dsec_items_take(items)
        if got == lib.DSEC_ITEMS_TELL:
            got = self._join()
        return None if got < 0 else ffi.buffer(self._out, got)[:]

    def _join(self) -> int:
        items = self._items
        for number in ffi.unpack(self._told, items.told_count):
            text = self._tell(number)
            if text is None:
                return int(lib.DSEC_ITEMS_OTHER)
            before = self._texts[number]
            self._size += len(text) - (0 if before is None else len(before))
            self._texts[number] = text
            self._nodes[number].text = ffi.from_buffer("uint8_t[]", text), len(text)
        self._make_room(self._size)
        return int(lib.dsec_items_join(items))

    def _make_room(self, size: int) -> None:
        if self._out is ffi.NULL or size > len(self._out):
            self._out = ffi.new("uint8_t[]", size + size // 2)
            self._items.out = self._out

    def _lay(self, cell: Any, node: Node) -> int:
        """Describe one node; gives how many bytes it may hold."""
        cell.kind, cell.watched, cell.count = node.kind, node.watched, len(node.slots)
        cell.after = self._text(node.after)
        room = len(node.after)
        if node.kind == ARRAY:
            self._form(cell.form, node.owner)
            room += node.owner.nbytes
        if node.kind == TOLD:
            return 0
        cell.owner = _address(node.owner)
        slots = ffi.new("dsec_item[]", max(1, len(node.slots)))
        for to, slot in zip(slots, node.slots, strict=False):
            room += len(slot.before) + self._lay_slot(to, slot)
        own = ffi.new("uint8_t[]", max(1, room))  # the field by itself keeps nothing
        cell.slots, cell.room = slots, own
        self._keep += [slots, own]
        return room

    def _lay_slot(self, cell: Any, slot: Slot) -> int:
        cell.kind, cell.number = slot.kind, slot.number
        cell.before = self._text(slot.before)
        if slot.kind in (WIDE, WORD, STILL):
            cell.key = ffi.cast("void *", slot.key)
        else:
            cell.key = _address(slot.key)
        if slot.kind == SAME:
            cell.same = _address(slot.value)
        if slot.kind == STILL:
            copy = ffi.new("uint8_t[]", slot.value)
            self._keep.append(copy)
            cell.same, cell.number = copy, len(slot.value)
        if slot.kind != SCALAR:
            return _ROOM.get(slot.kind, 0)
        form = ffi.new("dsec_form *")
        self._form(form, slot.value)
        self._keep.append(form)
        cell.form, cell.same = form, _address(type(slot.value))
        return int(form.nbytes)

    def _text(self, text: bytes) -> tuple[Any, int]:
        self._keep.append(text)
        return ffi.from_buffer("uint8_t[]", text), len(text)

    def _form(self, cell: Any, value: Any) -> None:
        with memoryview(value) as view:
            name = ffi.new("char[]", view.format.encode())
            shape = ffi.new("uint64_t[]", view.shape or [0])
            self._keep += [name, shape]
            cell.format, cell.shape = name, shape
            cell.nbytes, cell.axes, cell.readonly = view.nbytes, view.ndim, view.readonly


_BASE = "base"


def _address(value: Any) -> Any:
    """Where an object is. Whoever asks holds it."""
    return ffi.cast("void *", id(value))
