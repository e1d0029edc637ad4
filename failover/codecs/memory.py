"""Whether an object has changed, seen in its own memory: a few machine words say what reading it
through Python would say a hundred times as slowly.

Owns the looking, and the proofs that it may be trusted: memory is compared and never interpreted,
and a type is only watched where it was seen at import, on objects of our own, that every change
shows there. Of a dict that are the words which count its items and changes (PEP 509); a Python that
has no such count fails the proof, and its dicts are read item by item.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from dsec.ipc.watch import Region

_HEAD = object.__basicsize__


def region(node: Any) -> Region:
    """The memory of an object behind its reference count and type."""
    return Region(node, id(node) + _HEAD, type(node).__basicsize__ - _HEAD)


def body(node: Any) -> memoryview:
    """The same, to be read. Valid while the object lives."""
    where = region(node)
    return memoryview((ctypes.c_char * where.nbytes).from_address(where.address)).cast("B")


def bytes_at(where: Region) -> bytes:
    """A copy of what lies there now, while whose memory it is lives."""
    return ctypes.string_at(where.address, where.nbytes)


def shows(node: Any, *changes: Callable[[], object]) -> bool:
    """Whether each of these changes the memory of the object, and nothing else does."""
    memory = body(node)
    for change in changes:
        before = memory.tobytes()
        if memory.tobytes() != before:
            return False
        change()
        if memory.tobytes() == before:
            return False
    return True


class _Probe:
    """Has attributes, and methods that change them as an environment's do."""

    def __init__(self) -> None:
        self.a: Any = 0
        self.b = 0.0
        self.c = 0

    def put(self) -> None:
        """By an instruction that the interpreter adapts when it has run a few times."""
        self.a = object()

    def put_back(self) -> None:
        """Another object that equals the one before."""
        self.b = float(str(self.b or 1.5))

    def drop(self) -> None:
        """Remove one and add another with the same value."""
        self.d = self.__dict__.pop("c", None)
        self.c = self.__dict__.pop("d")


def dicts_show() -> bool:
    """Whether every change of a dict shows in its own memory, be it of an instance or not."""
    probes = [_Probe() for _ in range(3)]
    for probe in probes:
        items = probe.__dict__
        changes = (
            probe.put,
            probe.put_back,
            probe.drop,
            functools.partial(setattr, probe, "a", None),
        )
        if not all(shows(items, *changes) for _ in range(64)):
            return False
    plain: dict[Any, Any] = {1: None, 2: None}
    return shows(
        plain,
        lambda: plain.__setitem__(1, 1),
        lambda: plain.update({2: 1}),
        lambda: plain.__setitem__(3, plain.pop(2)),
        lambda: plain.__setitem__(4, None),
        lambda: plain.__delitem__(4),
        plain.popitem,
        plain.clear,
    )


DICTS_SHOW = dicts_show()


def of_dict(items: dict[Any, Any]) -> tuple[Region, ...]:
    """What shows each change of a dict; nothing where that isn't proven."""
    return (region(items),) if DICTS_SHOW and type(items) is dict else ()
