"""When a healthy env runner steps aside for a fresh process, and how its state is kept for that.

Its simulator leaks, or is known to be good for so many steps only. It steps aside between two
records, so nothing is under way: its successor restores the state and has nothing to do again.
Where no codec holds the environment the successor begins an episode instead, with the state before
its reset (episode.py); where that doesn't come out the same, either, there is no exact way, so the
runner stays, and says so.

Memory is looked at by RLIMIT_DATA's own measure. How far from its limit a fresh process begins is
not in its hands, so what counts is how much of the room that it had then is left.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from dsec.failover.codecs import episodes_repeat
from dsec.ipc.frames import Start
from dsec.runners import seeds
from dsec.runners.construct import make_env
from dsec.runners.stage import Stage

SHARE: Final = 0.9
"""Of the room for memory that a runner had at its beginning; when it is used it steps aside."""
LOOKS_MIN: Final = 4  # looks at the memory on the way from here to there, at the rate so far
LOOK_EVERY: Final = 256
_PAGE: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")


def data_bytes() -> int:
    """What counts against RLIMIT_DATA (and the stack, which doesn't)."""
    return int(_STATM.read_text().split()[5]) * _PAGE


class Recycling:
    """When one incarnation is to step aside.

    Args:
        seq: the record that it begins with.

    Attributes:
        mark: the record at which to ask next.
        urgent: it is for its memory, and can't wait for the end of an episode.
    """

    def __init__(self, start: Start, seq: int) -> None:
        every, limit = start.failover.recycle_every, start.limits.get("memory_mb", 0) << 20
        self._every = every
        self._at = seq + every if every else 1 << 62
        self._limit = limit
        self._used = data_bytes() if limit else 0
        self._full = self._used + int(SHARE * (limit - self._used)) if limit else 0
        self._seen, self._look_at = seq, seq + 1 if limit else 1 << 62
        self.mark = min(self._at, self._look_at)
        self.urgent = False

    def why(self, n: int) -> str:
        """Why it is to step aside after record n; empty if it is not. Asks for another look."""
        if n >= self._look_at and not self.urgent:
            self._look(n)
        self.mark = n + 1 if self.urgent or n >= self._at else min(self._at, self._look_at)
        if self.urgent:
            return (
                f"{self._used >> 20:,} MiB of data are near its limit of {self._limit >> 20:,} MiB"
            )
        return f"it has done {self._every:,} steps" if n >= self._at else ""

    def _look(self, n: int) -> None:
        before, self._used = self._used, data_bytes()
        rate = max(1.0, (self._used - before) / max(1, n - self._seen))
        left = self._full - self._used
        self.urgent = left <= 0
        self._seen = n
        self._look_at = n + int(min(max(1.0, left / (LOOKS_MIN * rate)), LOOK_EVERY))


def why_not_anew(stage: Stage) -> str:
    """Why another process can't begin this stage's episodes; empty if it can. That is tried."""
    session = stage.session
    if len(stage.envs) > 1:
        return "no codec holds its environments, and those of a vector begin no episode together"
    seed = seeds.derive(session.start.seed, "recycling")
    settings = session.start.env
    found = episodes_repeat(stage.envs[0], seed=seed, make=lambda: make_env(settings))
    if not found.difference:
        stage.watch_beginnings()
    return found.difference
