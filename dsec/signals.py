"""The signals that ask for an end, from the first instant of the program to its last.

At every instant one of four things is true of them: they are *held* back (while modules are
imported and nobody could say yet what became of the run), *let in* (the first one raises
KeyboardInterrupt, and cleaning up is not cut short by a second), the running supervisor has them
(see `engine.stop`), or they are *ignored*, because the end is near anyway. This file owns all but
the third. It is the first of ours that the program imports, so it needs nothing but the
standard library, and little of that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def hold() -> None:
    """Have them wait until they are let in; processes that are forked meanwhile do so, too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)


@contextmanager
def held() -> Iterator[None]:
    """What must not be cut in two: they wait until it is done."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def waiting() -> bool:
    """Whether one of them waits."""
    return not signal.sigpending().isdisjoint(STOPS)


def asked() -> tuple[signal.Signals, ...]:
    """Those that are listened to: a SIGHUP that was ignored from the start, as by nohup, is not."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in STOPS if not (ignored and number == signal.SIGHUP))


def let_in() -> None:
    """From now on the first of them raises KeyboardInterrupt, and the others are ignored.

    So does SIGINT where a shell started us in the background and had it ignored.
    """
    for number in asked():
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def ignore() -> None:
    """Too late: whoever asks now finds the end under way, and must not lose its last words."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    ignore()
    raise KeyboardInterrupt
