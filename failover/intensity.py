"""Restart intensity: how often something may be restarted, and how long to wait before it.

Pure: stamps and the time come in, a verdict goes out. A spent budget is an answer that the caller
must escalate, not something that is logged here.
"""

from __future__ import annotations

from typing import NamedTuple

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0


class Grant(NamedTuple):
    """`allowed` is False if the budget is spent; `stamps` are to be passed in next time."""

    allowed: bool
    delay_s: float
    stamps: tuple[float, ...]


def request_restart(
    stamps: tuple[float, ...], now: float, restarts_max: int, period_s: float, jitter: float
) -> Grant:
    """Ask for one more restart.

    A budget admits `restarts_max` in any span of `period_s`; a stamp counts while it is younger
    than that. The first restart is immediate, then the wait doubles with each that still counts.
    """
    live = tuple(stamp for stamp in stamps if now - stamp < period_s)
    if len(live) >= restarts_max:
        return Grant(False, 0.0, live)
    return Grant(True, backoff_s(len(live), jitter), (*live, now))


def backoff_s(failures: int, jitter: float) -> float:
    """How long to wait before the next try: not at all after none, then twice as long each time.

    `jitter` in [0, 1) shortens it by up to half, so that many that died of one cause don't return
    at once.
    """
    assert 0.0 <= jitter < 1.0, "jitter is a fraction"
    # The exponent is bounded: a budget of thousands must not overflow a float.
    doubled = BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 32) if failures > 0 else 0.0
    return min(doubled, BACKOFF_MAX_S) * (1.0 - jitter / 2.0)
