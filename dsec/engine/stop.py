"""What the running supervisor does when it is asked to end.

SIGINT, SIGTERM and SIGHUP (the terminal is gone) end the run in order: every agent at its next
boundary, the recording whole. A second one kills, and SIGQUIT kills at once, for those in a hurry.
Before and after the run signals.py has them.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Any, Protocol

from dsec import signals


class Stoppable(Protocol):
    """A supervisor, say."""

    def request_drain(self, reason: str) -> None: ...

    def request_kill(self) -> None: ...


class Log(Protocol):
    """As a `View` has it."""

    def log(self, level: str, event: str, **fields: Any) -> None: ...


@dataclass(slots=True)
class StopSignals:
    """Gives the signals to a supervisor for as long as it runs."""

    supervisor: Stoppable
    view: Log
    loop: asyncio.AbstractEventLoop
    seen: int = 0
    numbers: tuple[int, ...] = field(default=())

    def install(self) -> None:
        """Listen, from the loop.

        Raises:
            KeyboardInterrupt: one has come already; nothing was begun.
        """
        self.numbers = signals.asked()
        for number in self.numbers:
            self.loop.add_signal_handler(number, self.arrived, number)
        if signals.waiting():
            self.remove()
            raise KeyboardInterrupt
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.STOPS)

    def remove(self) -> None:
        """Whoever asks now is too late to stop the run, but not to lose its summary."""
        with signals.held():  # removing one would let its default, which is death, in
            for number in self.numbers:
                self.loop.remove_signal_handler(number)
            signals.ignore()

    def arrived(self, number: int) -> None:
        """Take one; the third and later ones find everything done."""
        self.seen += 1
        name = signal.Signals(number).name
        if self.seen == 1 and number != signal.SIGQUIT:
            self.view.log("warning", f"{name}: ending at the next boundary; once more to kill")
            self.supervisor.request_drain(name)
        elif self.seen <= 2:
            self.view.log("warning", f"{name}: killing all runners")
            self.supervisor.request_kill()
