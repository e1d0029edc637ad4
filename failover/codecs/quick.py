"""A plan's captures in C, as long as its objects keep the form in which Python saw them last.

Owns what is common to both: from the nodes as the plan read them it makes the texts between which
their values stand, and it believes the result only if that is, byte for byte, what the plan itself
wrote of the same state. Values may then be any others of their kind; whatever else changes (a key
that comes or goes, another object where one was referred to, an array of another shape) makes
`take` say so, and the plan looks for itself, in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from dsec.failover.codecs import generators
from dsec.failover.codecs.memory import bytes_at
from dsec.failover.codecs.trackers import Fields, Items, Tracked, encode
from dsec.failover.codecs.writing import SCALAR, dtype_text
from dsec.ipc import items as memory
from dsec.ipc.items import Node, Slot
from dsec.ipc.watch import Watch

PLAIN: Final = (type(None), bool, int, float)
SCALARS: Final = (np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_)
LIST_MAX: Final = 4096  # items; longer ones are read by Python

Telling = Callable[[int], bytes | None]


class Unfit(Exception):
    """These objects are nothing for it."""


def array_head(count: int) -> bytes:
    """What stands before so many items."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def bytes_head(nbytes: int) -> bytes:
    """What stands before so many bytes."""
    for tag, width in ((b"\xc4", 1), (b"\xc5", 2)):
        if nbytes < 1 << 8 * width:
            return tag + nbytes.to_bytes(width, "big")
    return b"\xc6" + nbytes.to_bytes(4, "big")


class Quick:
    """The nodes of a plan, as they were read just now.

    Args:
        readings: the plan's.
        watch: of their regions.
        before: what is written before the contents of the nodes; `heads`: of the loose nodes.
        loose: those nodes, which must all be arrays of their own.
        written: what the plan wrote; it must be what comes out here.
        tell: reads a node in Python.

    Raises:
        Unfit: they can't be read so.
    """

    def __init__(
        self,
        readings: Sequence[Tracked],
        watch: Watch,
        before: bytes,
        heads: list[Any],
        loose: Sequence[Any],
        written: bytes,
        tell: Telling,
    ) -> None:
        if not all(type(each) is np.ndarray and _own(each) for each in loose):
            raise Unfit
        self._loose = {id(array): number for number, array in enumerate(loose)}
        self._first = len(readings)
        try:
            nodes = [self._node(each) for each in readings]
            self._items = memory.Items(
                nodes,
                watch,
                before + array_head(len(nodes)),
                encode(heads) + array_head(len(loose)),
                [(array, bytes_head(array.nbytes)) for array in loose],
                tell,
            )
        except (BufferError, ValueError, TypeError, OverflowError) as error:
            raise Unfit from error
        if self.take() != written:
            raise Unfit

    def take(self) -> bytes | None:
        """The state now; None if its form is another one now."""
        return self._items.take()

    def _node(self, tracked: Tracked) -> Node:
        watched = bool(tracked.regions)
        parts = tracked.parts
        if isinstance(parts, np.ndarray):
            return Node(memory.ARRAY, parts, after=bytes_head(parts.nbytes))
        if isinstance(parts, Fields):
            items, names, fields = parts.seen
            before = (b"\x93" if tracked.instance else b"") + b"\x92" + bytes(names)
            slots = self._slots(before + array_head(len(fields)), fields)
            after = b"\xc0\xc0" if tracked.instance else b""
            if not slots:
                after = before + array_head(0) + after
            return Node(memory.DICT, items, slots, after, watched)
        if (where := generators.PLACES.get(type(parts))) is not None:
            return Node(memory.MEMORY, parts, *_generator(parts, where), watched)
        if isinstance(parts, Items) and (seen := parts.seen) is not None:
            node, values = seen
            if len(values) <= LIST_MAX and {*map(type, values)} <= {*PLAIN}:
                slots = self._slots(array_head(len(values)), [(None, v, v, False) for v in values])
                return Node(memory.LIST, node, slots, b"" if slots else array_head(0))
        return Node(memory.TOLD, watched=watched)

    def _slots(self, before: bytes, fields: Sequence[tuple[Any, Any, Any, bool]]) -> list[Slot]:
        slots = []
        for key, value, written, loose in fields:
            kind = type(value)
            if loose:
                number = self._loose.get(id(value))
                if number is None:
                    raise Unfit
                slots.append(Slot(memory.LOOSE, before + encode(written), None, key, number))
            elif kind in PLAIN:
                slots.append(Slot(memory.PLAIN, before, None, key))
            elif kind in SCALARS:
                head = b"\x93" + encode(SCALAR) + encode(dtype_text(value.dtype))
                slots.append(
                    Slot(memory.SCALAR, before + head + bytes_head(value.nbytes), value, key)
                )
            else:
                slots.append(Slot(memory.SAME, before + encode(written), value, key))
            before = b""
        return slots


def _generator(bits: Any, where: generators.Places) -> tuple[list[Slot], bytes]:
    """What is written of one of the PCG64 family, whose seed must stay as it is."""
    name = type(bits).__name__
    own, *below = generators.regions(bits)
    slots = [Slot(memory.STILL, b"", bytes_at(each), each.address, 0) for each in below]
    text = b"\x92\x84" + b"".join(map(encode, ("bit_generator", name, "state")))
    for kind, key, place in (
        (memory.WIDE, "state", where.state),
        (memory.WIDE, "inc", where.inc),
        (memory.WORD, "has_uint32", where.has_uint32),
        (memory.WORD, "uinteger", where.uinteger),
    ):
        inner = b"\x82" if key == "state" else b""
        slots.append(Slot(kind, text + inner + encode(key), None, own.address + place))
        text = b""
    return slots, encode(generators.seed_state(bits))


def _own(array: Any) -> bool:
    return array.base is None and array.flags.c_contiguous and not array.dtype.hasobject
