"""What an object is, judged by its type: may its attributes be trusted to be all of its state?

Owns the line between what Python code alone has made (its state is its attributes, and perhaps a
builtin container that it derives from) and what C code keeps to itself. Knows nothing of capturing.
It is here because guessing wrong on this line is how snapshots come to be silently wrong.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing.process
import socket
import subprocess
import threading
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

WORD = tuple.__itemsize__
CONTAINERS: tuple[type, ...] = (OrderedDict, defaultdict, dict, list, deque, set, bytearray)
VALUES: tuple[type, ...] = (tuple, int, float, str, bytes, complex, frozenset)
LOCKS: tuple[type, ...] = (type(threading.Lock()), type(threading.RLock()))

_REASONS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (io.IOBase, "an open file"),
    (socket.socket, "a socket"),
    (threading.Thread, "a thread"),
    ((subprocess.Popen, multiprocessing.process.BaseProcess), "a child process"),
    (types.GeneratorType, "a Python generator, whose position can't be read"),
    ((types.CoroutineType, types.AsyncGeneratorType), "a coroutine, whose position can't be read"),
    (LOCKS, "a lock that is held"),
    ((mmap.mmap, memoryview), "memory that others may share"),
    (types.FrameType, "a frame of running code"),
)

REFUSED = (socket.socket, threading.Thread, subprocess.Popen, multiprocessing.process.BaseProcess)
"""Classes written in Python whose attributes are nevertheless not what they are."""


_layouts: dict[type, type | None] = {}
_slots: dict[type, tuple[Any, ...]] = {}


def layout(cls: type) -> type | None:
    """The builtin type that holds what `cls` has beside its attributes; `object` for nothing.

    None if C code has added to it: then the attributes are not all of its state.
    """
    if cls not in _layouts:
        _layouts[cls] = _layout(cls)
    return _layouts[cls]


def _layout(cls: type) -> type | None:
    if cls is object or cls in CONTAINERS or cls in VALUES:
        return cls
    base = cls.__base__
    below = layout(base) if base is not None else None
    if below is None or base is None:
        return None
    own = vars(cls)
    slots = own.get("__slots__", ())
    names = 1 if isinstance(slots, str) else len(tuple(slots))
    room = WORD * (names + ("__dict__" in own) + ("__weakref__" in own))
    if "__module__" not in own or cls.__basicsize__ - base.__basicsize__ > room:
        return None
    if not cls.__flags__ & (1 << 9):  # not made by a class statement, nor on the heap at all
        return None
    return below


def slots(cls: type) -> tuple[Any, ...]:
    """The descriptors of all `__slots__` of a class, bases first."""
    if cls not in _slots:
        _slots[cls] = _find_slots(cls)
    return _slots[cls]


def _find_slots(cls: type) -> tuple[Any, ...]:
    found = []
    for each in reversed(cls.__mro__):
        for member in vars(each).values():
            if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(each):
                found.append(member)
    return tuple(found)


def refusal(value: object) -> str:
    """Why a value can't be held, in words that follow "holds"."""
    for kinds, reason in _REASONS:
        if isinstance(value, kinds):
            name = getattr(value, "name", None)
            return f"{reason} ({name})" if isinstance(name, str) and name else reason
    kind = type(value)
    name = f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}".removeprefix("builtins.")
    return f"an object made in C, {name}, whose state dsec can't read"
