"""How a server learns that the kernel is gone, whatever its main thread is stuck in.

The end of its channel wakes a thread, which says so and sets an alarm that ends the process if what
is still to be written takes too long: a disk may hang for ever.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import Final

ALARM_S: Final = 1.4
WATCH_SLICE_S: Final = 60.0


class Watchdog:
    """A thread that waits for the channel's end, whatever the main thread is stuck in."""

    def __init__(self, fd: int, orphaned: threading.Event) -> None:
        self._orphaned = orphaned
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(fd, 0)  # only the other end's closing is reported
        self._poll.register(self._stop, select.POLLIN)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def _watch(self) -> None:
        while not (found := self._poll.poll(WATCH_SLICE_S * 1000)):
            pass
        if any(fd == self._stop for fd, _ in found):
            return
        # The default action kills; it needs no interpreter, so nothing here can prevent it.
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        self._orphaned.set()

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join(WATCH_SLICE_S)
        os.close(self._stop)
