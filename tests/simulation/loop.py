"""An event loop whose time is a number: what happens next is decided by one seed.

Owns virtual time, and the order of all that happens: the supervisor's callbacks and what the world
does. What is due at the same moment is done in an order that the seed draws. The supervisor can be
stopped, as by SIGSTOP: the world goes on meanwhile, its own callbacks wait.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any

BEGIN_S = 1000.0
POLL_S = 5e-6  # from an event to the callback of whoever waits for it


class Stuck(AssertionError):
    """Nothing will ever happen again, and the supervisor is not done; or it takes for ever."""


class Abandoned(BaseException):
    """Thrown into a supervisor whose world has failed."""


class Handle:
    """A call to come, which can be cancelled. `owned`: the supervisor's."""

    __slots__ = ("args", "call", "owned")

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...], owned: bool) -> None:
        self.call: Callable[..., Any] | None = call
        self.args, self.owned = args, owned

    def cancel(self) -> None:
        self.call, self.args = None, ()

    def cancelled(self) -> bool:
        return self.call is None


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of a supervisor, and the clock of its world."""

    def __init__(self, chance: random.Random) -> None:
        self.now, self._count, self.steps = BEGIN_S, 0, 0
        self.stopped_until = 0.0
        self._random = chance.random
        self._heap: list[tuple[float, float, int, Handle]] = []
        self._readers: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.readable: Callable[[int], bool] = lambda fd: False
        self._looking: set[int] = set()
        self.errors: list[BaseException] = []

    # ------------------------------------------------------------ what the supervisor calls

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self._push(self.now, callback, args, True)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self._push(self.now + max(0.0, delay), callback, args, True)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self._push(when, callback, args, True)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or AssertionError(context["message"]))

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        self._readers[fd] = callback, args
        self.look(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
        raise AssertionError("a simulated socket always takes a frame, or says that it never will")

    def remove_writer(self, fd: Any) -> bool:
        return False

    @property
    def readers(self) -> list[int]:
        """Descriptors that are still waited for."""
        return [*self._readers]

    # ------------------------------------------------------------ what the world calls

    def after(self, delay_s: float, call: Callable[..., Any], *args: Any) -> Handle:
        """Something that the world does later."""
        return self._push(self.now + delay_s, call, args, False)

    def look(self, fd: int) -> None:
        """A descriptor may have become readable: tell whoever waits for that."""
        if fd in self._readers and fd not in self._looking and self.readable(fd):
            self._looking.add(fd)
            self._push(self.now + POLL_S, self._read, (fd,), True)

    def suspend(self, seconds: float) -> None:
        """The clock goes on, and nobody runs: what the world was about to do comes later."""
        moved = [
            (when if handle.owned else when + seconds, tie, count, handle)
            for when, tie, count, handle in self._heap
        ]
        heapq.heapify(moved)
        self._heap = moved
        self.stopped_until = max(self.stopped_until, self.now + seconds)

    def run(self, main: Coroutine[Any, Any, Any], until_s: float, steps_max: int) -> Any:
        """Run to the end of `main`; Stuck if that doesn't come within so much virtual time."""
        asyncio._set_running_loop(self)
        try:
            task = asyncio.Task(main, loop=self)
            while not task.done():
                if self.now > BEGIN_S + until_s or self.steps > steps_max:
                    raise Stuck(f"not over after {self.now - BEGIN_S:.0f} s, {self.steps} steps")
                self._step()
            return task.result()
        except BaseException:
            self._abandon(main)
            raise
        finally:
            asyncio._set_running_loop(None)

    @staticmethod
    def _abandon(main: Coroutine[Any, Any, Any]) -> None:
        """End a coroutine that awaits something in each of its handlers, too."""
        try:
            for _ in range(8):
                main.throw(Abandoned())
        except (Abandoned, RuntimeError, StopIteration):
            return

    def settle(self, seconds: float) -> None:
        """Let the world go on without a supervisor."""
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self._step()
        self.now = until

    # ------------------------------------------------------------ inside

    def _push(self, when: float, call: Any, args: tuple[Any, ...], owned: bool) -> Handle:
        handle = Handle(call, args, owned)
        self._count += 1
        heapq.heappush(self._heap, (when, self._random(), self._count, handle))
        return handle

    def _read(self, fd: int) -> None:
        self._looking.discard(fd)
        found = self._readers.get(fd)
        if found is not None and self.readable(fd):
            found[0](*found[1])
            self.look(fd)

    def _step(self) -> None:
        if not self._heap:
            raise Stuck("nothing is left to happen, and the supervisor waits")
        when, tie, count, handle = heapq.heappop(self._heap)
        if handle.call is None:
            return
        if handle.owned and when < self.stopped_until:
            heapq.heappush(self._heap, (self.stopped_until, tie, count, handle))
            return
        self.steps += 1
        self.now = max(self.now, when)
        handle.call(*handle.args)
