"""Detection: who owes an answer by when, whose time is up, who is stopped. Pure; `now` is injected.

Two sorts share one queue. An *armed* deadline runs from a control frame (construct, close) and
ends when the answer comes. A *followed* runner tells by its progress word what user code it is in
and since when; each phase has its limit, and IDLE has none. A followed runner is looked at only
when its time could be up at the earliest, so that a thousand agents cost next to nothing.

If a tick comes late by d, every deadline is extended by d: while the supervisor was stopped or
the machine suspended, runners may have been too, and must not look hung.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from dsec.ipc.frames import Phase

LATE_MIN_S = 0.05  # below this a tick counts as punctual
LATE_EVENTS_MAX = 64
PEER_ENDED_S = 60.0  # how long a runner may idle after the first of its peers has ended
FINISH_MAX_S = 3600.0  # what a server has for its last task, however lively it is
STOPPED_LOOKS_MAX = 8  # looks, and no time: those who stop a server may stop us, too
LOOK_MAX_S = 10.0  # the longest time between two looks at a followed runner

K = TypeVar("K")


class Word(NamedTuple):
    """A progress word; `since` in seconds of the same clock as `now`."""

    phase: Phase
    since: float
    seq: int


class Overdue(NamedTuple):
    """Time is up: `elapsed_s` in `phase`, by the clock on the wall, against `limit_s`."""

    phase: Phase
    elapsed_s: float
    limit_s: float


class Idle(NamedTuple):
    """A followed runner has waited for `elapsed_s`, longer than its shortest limit `limit_s`.
    That has no deadline, but somebody may ask whether it waits or is stopped."""

    elapsed_s: float
    limit_s: float


class Timed(Protocol):
    """What can hold a deadline."""

    def late(self, verdict: Overdue | Idle) -> None:
        """Its time is up, or it has been idle for long."""


class Lateness:
    """Remembers by how much ticks came late, and what of that lies after a given moment."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last: float | None = None
        self._events: list[tuple[float, float]] = []

    def tick(self, now: float) -> float:
        """Note one tick; return by how much it came late, 0.0 if it was punctual."""
        last, self._last = self._last, now
        if last is None or (late := now - last - self._period_s) < LATE_MIN_S:
            return 0.0
        self._events.append((now, late))
        if len(self._events) > LATE_EVENTS_MAX:
            # The oldest two become one. That lends time to what began between them, never takes.
            (_, first), (at, second) = self._events[:2]
            self._events[:2] = [(at, first + second)]
        return late

    def after(self, moment: float) -> float:
        """The lateness that fell after `moment`: what a wait that began then is extended by."""
        return sum(min(late, at - moment) for at, late in self._events if at > moment)


@dataclass(slots=True)
class _Watch:
    limits: Mapping[Phase, float]
    look_s: float
    armed: Phase | None  # None: followed by its progress word
    since: float
    serial: int = 0


class Deadlines(Generic[K]):
    """All deadlines of one supervisor. A key has at most one; a new one replaces it."""

    def __init__(self, period_s: float) -> None:
        self.lateness = Lateness(period_s)
        self._watches: dict[K, _Watch] = {}
        self._queue: list[tuple[float, int, K]] = []
        self._serial = 0

    def arm(self, key: K, phase: Phase, limit_s: float, now: float) -> None:
        """Give `key` until `now + limit_s` to answer."""
        self._watches[key] = _Watch({phase: limit_s}, limit_s, phase, now)
        self._look_at(key, now + limit_s)

    def follow(self, key: K, limits: Mapping[Phase, float], now: float) -> None:
        """Watch the progress word of `key`, with these limits in seconds for its phases."""
        look_s = min((*limits.values(), LOOK_MAX_S))
        self._watches[key] = _Watch(limits, look_s, None, now)
        self._look_at(key, now + look_s)

    def drop(self, key: K) -> None:
        """Forget `key`; an unknown one is no error."""
        self._watches.pop(key, None)

    def due(self, now: float) -> list[tuple[K, bool]]:
        """Keys to judge now, each once, and whether `judge` needs its progress word."""
        found: list[tuple[K, bool]] = []
        while self._queue and self._queue[0][0] <= now:
            _, serial, key = heapq.heappop(self._queue)
            watch = self._watches.get(key)
            if watch is not None and watch.serial == serial:
                found.append((key, watch.armed is None))
        return found

    def judge(self, key: K, now: float, word: Word | None = None) -> Overdue | Idle | None:
        """Say whether the time of a due key is up.

        One of four things happens: `Overdue`, and the key is forgotten; `Idle`, and it is looked
        at again after its shortest limit; None, with the next look set for when its time could be
        up; None because the key was dropped meanwhile.
        """
        watch = self._watches.get(key)
        if watch is None:
            return None
        if watch.armed is not None:
            word = Word(watch.armed, watch.since, -1)
        assert word is not None, "a followed key is judged by its progress word"
        elapsed_s = max(0.0, now - word.since)
        used_s = elapsed_s - self.lateness.after(word.since)
        if watch.armed is None and word.phase == Phase.IDLE:
            self._look_at(key, now + watch.look_s)
            return Idle(elapsed_s, watch.look_s) if used_s >= watch.look_s else None
        limit_s = watch.limits.get(word.phase, math.inf)
        if used_s >= limit_s:
            self.drop(key)
            return Overdue(word.phase, elapsed_s, limit_s)
        # The next phase may begin right after this look, and can't be overdue before its limit.
        self._look_at(key, now + min(limit_s - used_s, watch.look_s))
        return None

    def _look_at(self, key: K, at: float) -> None:
        self._serial += 1
        self._watches[key].serial = self._serial
        heapq.heappush(self._queue, (at, self._serial, key))


class Pulse:
    """Signs of life of a server whose progress nobody follows, from one look to the next.

    It may be silent for as long as it likes while it owes no answer. Using the CPU or waiting for
    a disk is a sign of life, too, so that a long conversion is no hang.
    """

    def __init__(self) -> None:
        self._sign = (0, 0)
        self._stopped_looks = 0

    def beats(self, state: str, cpu_ticks: int, heard: int, *, owes: bool) -> bool:
        """Say whether its silence is to be counted anew.

        Args:
            state: of the process, as /proc names it. One that is stopped owes a sign.
            cpu_ticks: that it has used so far.
            heard: frames that have come from it so far.
            owes: it has been asked for something.
        """
        before, self._sign = self._sign, (cpu_ticks, heard)
        self._stopped_looks = self._stopped_looks + 1 if state == "T" else 0
        return not (owes or state == "T") or before != self._sign or state == "D"

    def fails(self, *, ending: bool, finishing_s: float) -> str:
        """Why it is to be ended after this look, whatever signs it gave; empty if it is not.

        Args:
            ending: the run ends, and waits for it.
            finishing_s: for how long it has been busy with its last task.
        """
        if ending and self._stopped_looks > STOPPED_LOOKS_MAX:
            return "stopped (SIGSTOP) while the run ends"
        if finishing_s > FINISH_MAX_S:
            return f"took longer than {FINISH_MAX_S:g} s to finish"
        return ""


class Stillness:
    """Judges who is idle for longer than any of its phases may last.

    Waiting has no deadline, for its peers have theirs. But a runner that is stopped (SIGSTOP)
    while idle is in no phase that could be late, and stops its agent. So the process state is
    sampled where nothing moves: T, seen twice and a look apart, counts as a hang. And one that
    still waits long after a peer has ended waits for nothing.
    """

    def __init__(self) -> None:
        self._stopped = False

    def judge(self, state: str, idle: Idle, *, ended: bool) -> str:
        """Why it is to be ended; empty if it is not.

        Args:
            state: of the process, as /proc names it.
            idle: for how long.
            ended: a peer of it has ended, and nobody who lives holds it back.
        """
        before, self._stopped = self._stopped, state == "T"
        if before and self._stopped:
            return f"stopped (SIGSTOP) while idle for {idle.elapsed_s:.1f} s"
        if ended and idle.elapsed_s > PEER_ENDED_S:
            return f"idle for {idle.elapsed_s:.1f} s after a peer had ended"
        return ""
