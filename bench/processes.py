"""A second process for a benchmark: forked, and ended with the block that made it.

Owns its life; knows nothing of what it does.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from types import TracebackType


class Child:
    """A forked process that runs one function; it is killed when the block is left.

    Args:
        function: what it runs.
        stop: asks it to return; then it is waited for and not killed, so that what it has made
            outside its memory goes with it.
    """

    def __init__(
        self, function: Callable[[], None], stop: Callable[[], None] | None = None
    ) -> None:
        self._stop = stop
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def measured(self, measure: Callable[[], float]) -> Callable[[], float]:
        """The same measurement with this process stopped before and after it, so that a child that
        polls is a burden on its own figures only."""
        os.kill(self.pid, signal.SIGSTOP)

        def awake() -> float:
            os.kill(self.pid, signal.SIGCONT)
            try:
                return measure()
            finally:
                os.kill(self.pid, signal.SIGSTOP)

        return awake

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stop is None:
            os.kill(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGCONT)
            self._stop()
        os.waitpid(self.pid, 0)
