"""An event loop in a thread of its own, for callers that have none: they ask, and wait.

What runs there is the remote pool's client; nobody who waits is in the loop's thread. It is a
thread, so it comes after every fork of its process, never before one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError as Cancelled
from typing import Any, Final, TypeVar

from dsec.errors import LocalError, PeerGone

CALL_S: Final = 60.0
T = TypeVar("T")


class Courier:
    """The loop. Close it after all that runs in it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], limit_s: float = CALL_S) -> T:
        """Have it done, and wait for it.

        Raises:
            PeerGone: it took longer than any of its parts may.
            LocalError: this is closed.
            Exception: what it raises.
        """
        if self._closed:
            work.close()
            raise LocalError("a courier was used after close")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise PeerGone(f"what was asked of a peer has no end after {limit_s:g} s") from None
        except Cancelled:
            raise PeerGone("what was asked of a peer was given up") from None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done, without waiting."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End what still runs there, and the thread. Idempotent."""
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
