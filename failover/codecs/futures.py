"""What an environment does on given actions, taken down exactly, and how two such futures differ.

Owns the comparison bit for bit and its words. Infos are left out: they may hold the time of day.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

Record = list[Any]
"""[when, what]."""


def go_on(
    env: Any, actions: list[Any], reset_at: int, step_s: list[float] | None = None
) -> list[Record]:
    """Step with these actions; reset where an episode ends, and once in its middle."""
    records: list[Record] = []
    for number, action in enumerate(actions):
        began = time.perf_counter()
        obs, reward, terminated, truncated, _ = env.step(action)
        if step_s is not None:
            step_s.append(time.perf_counter() - began)
        ended = [bool(terminated), bool(truncated)]
        records.append([f"step {number + 1}", exactly([obs, reward, *ended])])
        if any(ended) or number == reset_at:
            records.append([f"the reset after step {number + 1}", exactly([env.reset()[0]])])
    return records


def exactly(value: Any) -> Any:
    """A value as nested lists in which == means equal bit for bit, types included."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            return [value.dtype.str, list(value.shape), exactly(value.tolist())]
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, Mapping):
        return [[str(key), exactly(each)] for key, each in value.items()]
    if isinstance(value, tuple | list):
        return [exactly(each) for each in value]
    return [type(value).__name__, value.hex() if isinstance(value, float) else repr(value)]


_PARTS = ("observation", "reward", "terminated", "truncated")
"""An exercised object has only the first."""


def difference(expected: list[Record], seen: list[Record]) -> str:
    """The first difference between two sequences of records, in words; empty if there is none."""
    for (label, before), (now_label, now) in zip(expected, seen, strict=False):
        if label != now_label:
            return f"{now_label} came where {label} was expected"
        for part, one, other in zip(_PARTS, before, now, strict=False):
            if one != other:
                return f"the {part} of {label} differs{_extent(one, other)}"
    if len(expected) != len(seen):
        return f"{len(seen)} results instead of {len(expected)}"
    return ""


def _extent(one: Any, other: Any) -> str:
    """How much of an array, or which two numbers."""
    arrays = all(len(each) == 3 and isinstance(each[2], bytes) for each in (one, other))
    if arrays and one[:2] == other[:2]:
        kind = np.dtype(one[0])
        before, now = np.frombuffer(one[2], kind), np.frombuffer(other[2], kind)
        if len(before) == 1:
            return f": {now[0]} instead of {before[0]}"
        where = np.flatnonzero(before != now)
        return f" in {len(where)} of {len(before)} elements"
    if len(one) == 2 and one[0] == other[0] == "float":
        return f": {float.fromhex(other[1])} instead of {float.fromhex(one[1])}"
    return f": {other[1]} instead of {one[1]}" if len(one) == len(other) == 2 else ""
