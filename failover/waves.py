"""Who starts now, and who may step: agents start in waves. Pure; `now` is injected.

Constructors mostly compute, so only some agents start at a time: more at once would only push
each of them towards its deadline. And where they start in waves, those that are ready wait for
the others before they step, for a thousand are quicker to start alone than beside some hundred
that step. Neither lasts: when nobody has got ready for STALL_S, those that are on their way no
longer count, and nobody who is ready waits longer than HOLD_MAX_S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Generic, TypeVar

STALL_S = 5.0
HOLD_MAX_S = 60.0

K = TypeVar("K")


class Waves(Generic[K]):
    """The start of one run's agents.

    Args:
        keys: all that are to start, in this order.
        starting_max: how many may be on their way at a time.
    """

    def __init__(self, keys: Iterable[K], starting_max: int) -> None:
        self.waiting = dict.fromkeys(keys)
        self._starting_max, self._waves = starting_max, len(self.waiting) > starting_max
        self._starting: dict[K, float] = {}
        self._ready: dict[K, float] = {}
        self._moved = -math.inf  # when somebody began or got ready

    def next(self, now: float, can: Callable[[K], bool]) -> K | None:
        """The next one to start, if there is room and one of those that wait `can`; it counts as
        starting from now on."""
        if not self.waiting or self._count(now) >= self._starting_max:
            return None
        for key in self.waiting:
            if can(key):
                del self.waiting[key]
                self._starting[key] = self._moved = now
                return key
        return None

    def ready(self, key: K, now: float) -> bool:
        """This one has started, and waits to be released. Return whether for others."""
        self._starting.pop(key, None)
        self._ready.setdefault(key, now)
        self._moved = now
        return self._holds(now)

    def drop(self, key: K) -> None:
        """This one does not wait or start (any more); again is no error."""
        for each in (self.waiting, self._starting, self._ready):
            each.pop(key, None)

    def release(self, now: float) -> list[K]:
        """Those that may step from now on, each told once, in the order of their `ready`."""
        until = now - HOLD_MAX_S if self._holds(now) else now
        free = [key for key, _ in takewhile(lambda item: item[1] <= until, self._ready.items())]
        for key in free:
            del self._ready[key]
        return free

    def _holds(self, now: float) -> bool:
        moving = self._waves and now - self._moved < STALL_S
        return moving and bool(self.waiting or self._starting)

    def _count(self, now: float) -> int:
        """How many are starting. They stand in the order of time."""
        while self._starting and now - self._moved >= STALL_S:
            key, since = next(iter(self._starting.items()))
            if now - since < STALL_S:
                break
            del self._starting[key]
        return len(self._starting)
