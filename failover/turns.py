"""Whose spare is constructed now. Pure; `now` is injected.

A spare is made beside an agent that steps, and its construction takes the processor from all of
them: a thousand agents that get ready together must not construct a thousand spares together. So
they take turns. One that takes longer than STALL_S keeps nobody waiting any more.
"""

from __future__ import annotations

from typing import Generic, TypeVar

STALL_S = 1.0

K = TypeVar("K")


class Turns(Generic[K]):
    """A queue before a few places.

    Args:
        places: how many may be at it at a time.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: dict[K, None] = {}
        self._since: dict[K, float] = {}

    def ask(self, key: K) -> None:
        """It wants a turn; asking twice makes it no longer or shorter."""
        self._waiting.setdefault(key)

    def next(self, now: float) -> K | None:
        """Whose turn it is, if a place is free; it has it until `done`."""
        if not self._waiting:
            return None
        busy = sum(now - since < STALL_S for since in self._since.values())
        if busy >= self._places:
            return None
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._since[key] = now
        return key

    def done(self, key: K) -> None:
        """It needs its place no longer, nor one in the queue; again is no error."""
        self._waiting.pop(key, None)
        self._since.pop(key, None)
