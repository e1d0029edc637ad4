"""Time, injected: whatever decides by time takes a Clock, so that tests own it.

Seconds are CLOCK_MONOTONIC, the clock of the runners' progress words.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time: seconds since some fixed moment, never running backwards."""

    def now(self) -> float: ...


class MonotonicClock:
    """The system's clock."""

    now = staticmethod(time.monotonic)


class ManualClock:
    """A clock for tests: it moves when it is told to."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move on and return the new time."""
        assert seconds >= 0, "time does not run backwards"
        self._now += seconds
        return self._now
