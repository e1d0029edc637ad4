"""Sets of steps as ranges: what is wanted, what is held, what may be sampled.

Pure. A span is (first, end), end excluded; a list of them is sorted and without overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """All steps that are in any of them."""
    joined: list[Span] = []
    for first, end in sorted(each for each in spans if each[0] < each[1]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def without(spans: list[Span], cuts: Iterable[Span]) -> list[Span]:
    """The steps of `spans` that are in none of the `cuts`."""
    left = spans
    for first, end in cuts:
        left = [
            part
            for a, b in left
            for part in ((a, min(b, first)), (max(a, end), b))
            if part[0] < part[1]
        ]
    return left


def both(spans: list[Span], others: list[Span]) -> list[Span]:
    """The steps that are in `spans` and in `others`."""
    met = ((max(a, c), min(b, d)) for a, b in spans for c, d in others)
    return sorted(each for each in met if each[0] < each[1])


def touches(spans: list[Span], first: int, last: int) -> bool:
    """Whether any step from `first` to `last` (included) is among them."""
    return any(a <= last and first < b for a, b in spans)


def count(spans: list[Span]) -> int:
    """How many steps there are in them."""
    return sum(b - a for a, b in spans)


def nth(spans: list[Span], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The steps that have these numbers, counted from 0 through all spans."""
    firsts = np.array([first for first, _ in spans])
    before = np.cumsum([0, *(end - first for first, end in spans)])[:-1]
    of = np.searchsorted(before, numbers, side="right") - 1
    return np.asarray(firsts[of] + numbers - before[of])
