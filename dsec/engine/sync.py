"""A kernel beside a program that has no event loop: `with SyncEngine.spawn() as engine`.

Owns the waiting. There is no thread behind it: whoever waits reads what there is, for all, and the
others wait for him; so a fork of the program inherits no half of a thread, and nothing computes
beside it. What is told while nobody waits is read by the next who does.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from dsec.engine import calls, methods
from dsec.engine.calls import Call, Desk, Event
from dsec.engine.spawned import GONE_S, EngineProcess
from dsec.errors import ChannelTimeout, DsecError, EngineDied, LocalError, PeerError

START_S = 60.0
TURN_S = 0.05  # after which one who waits for another looks for himself
EVENTS_KEPT = 10_000  # that nobody asked for yet

R = TypeVar("R", bound=methods.Result)


class SyncEngine:
    """One kernel; a context manager, which ends it. Any thread may use it; a fork may not.

    Attributes:
        facts: what the kernel said of itself.
        on_event: called with each event, by whoever waits; None: `events` has them.

    Raises:
        MachineError: the system can't start it.
        EngineDied: it was gone before it answered; the error has what it wrote.
    """

    facts: methods.Initialized

    def __init__(
        self,
        events: Sequence[str] = tuple(methods.EVENTS),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.on_event = on_event
        self._process = EngineProcess()
        self._desk = Desk(self._told)
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._boxes: dict[str, deque[Event]] = {}
        self._died: EngineDied | None = None
        self._closed = False
        self._lock, self._sending = threading.RLock(), threading.Lock()
        try:
            self.facts = self.call(*calls.initialize(events), START_S)
        except BaseException:
            self._process.forget()
            raise
        self._process.known(self.facts.guardian)

    @classmethod
    def spawn(
        cls,
        *,
        events: Sequence[str] = tuple(methods.EVENTS),
        on_event: Callable[[Event], None] | None = None,
    ) -> SyncEngine:
        """Start a kernel, which tells of these events."""
        return cls(events, on_event)

    # ------------------------------------------------------------ what it can be asked

    def run_start(
        self,
        config: str | None = None,
        *,
        set: Sequence[str] = (),
        out: str | None = None,
        resume: str | None = None,
    ) -> methods.RunStarted:
        """Begin a run, as `dsec-kernel run` does."""
        return self.call(*calls.run_start(config, set, out, resume))

    def run_status(self, run: str) -> methods.RunStatus:
        """Where a run stands, or how it ended."""
        return self.call(*calls.run_status(run))

    def run_stop(self, run: str, *, kill: bool = False) -> methods.RunStatus:
        """End a run, and wait for its end."""
        return self.call(*calls.run_stop(run, kill))

    def agents(self, run: str = "", sandbox: str = "") -> tuple[methods.AgentRow, ...]:
        """The agents of a run or sandbox, or all."""
        return self.call(*calls.agents(run, sandbox)).agents

    def call(
        self,
        method: str,
        params: methods.Params,
        result: type[R],
        timeout_s: float | None = None,
    ) -> R:
        """Ask for something, and wait for the answer.

        Raises:
            EngineRefused: it was refused; says why.
            EngineDied: the kernel is gone.
            ChannelTimeout: no answer within `timeout_s`; it may still come to pass.
        """
        call = self.begin(method, params, result)
        if not self.wait(lambda: call.done, timeout_s):
            raise ChannelTimeout(f"the kernel has not answered {method} within {timeout_s} s")
        return call.outcome()

    def begin(self, method: str, params: methods.Params, result: type[R]) -> Call[R]:
        """Ask for something, and don't wait."""
        self._check()
        call, line = self._desk.begin(method, params, result)
        self._send(line)
        return call

    def events(self, timeout_s: float | None = None) -> Iterator[Event]:
        """What the kernel tells, as it comes; ends when nothing has come for `timeout_s`.

        Raises:
            EngineDied: the kernel is gone, and everything that it told has been read.
        """
        while True:
            if not self._events and not self.wait(lambda: bool(self._events), timeout_s):
                return
            yield self._events.popleft()

    def box(self, sandbox: str) -> deque[Event]:
        """From now on the events of this sandbox go here, and nowhere else."""
        return self._boxes.setdefault(sandbox, deque())

    def drop_box(self, sandbox: str) -> None:
        """Nobody looks there any more."""
        self._boxes.pop(sandbox, None)

    # ------------------------------------------------------------ waiting

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Read until something is the case; whether it is.

        Raises:
            EngineDied: the kernel is gone, and it won't be.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        first = True
        while not ready():
            if self._died is not None or self._closed or not self._process.mine:
                self._check()
            left = TURN_S * 20 if until is None else until - time.monotonic()
            if left <= 0 and not first:
                return False
            first = False
            if self._lock.acquire(timeout=max(0.0, min(left, TURN_S))):
                try:
                    if not ready():
                        self._read(max(0.0, left))
                finally:
                    self._lock.release()
            self._deliver()
        self._deliver()
        return True

    def _deliver(self) -> None:
        """Tell of events; nothing is locked then, so that whoever hears may ask for something."""
        while self.on_event is not None and self._events:
            self.on_event(self._events.popleft())

    def _check(self) -> None:
        if not self._process.mine:
            raise LocalError(calls.NOT_MINE)
        if self._died is not None:
            raise self._died.with_traceback(None)
        if self._closed:
            raise LocalError("this kernel was closed")

    def _read(self, timeout_s: float) -> None:
        """Read what there is, or comes within that time; the lock is held."""
        if self._died is not None or self._process.sock.fileno() < 0:
            return
        poll = select.poll()
        poll.register(self._process.sock, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return
        try:
            data = self._process.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        try:
            if data:
                self._desk.received(data)
                return
        except PeerError as error:
            self._process.kill()
            died = self._process.death()
            died.add_note(str(error))
            self._end(died)
            return
        self._end(self._process.death())

    def _end(self, died: EngineDied) -> None:
        self._died = died
        self._desk.fail(died)

    def _told(self, event: Event) -> None:
        box = self._boxes.get(event.params.get("sandbox", ""))
        (self._events if box is None else box).append(event)

    def _send(self, line: bytes) -> None:
        left = memoryview(line)
        with self._sending:
            while left and self._died is None:
                try:
                    left = left[self._process.sock.send(left) :]
                except BlockingIOError:
                    # It doesn't read, for we don't either, perhaps.
                    with self._lock:
                        self._read(0.0)
                    poll = select.poll()
                    poll.register(self._process.sock, select.POLLOUT | select.POLLIN)
                    poll.poll(TURN_S * 1000)
                except OSError:
                    with self._lock:
                        self._read(GONE_S)  # which finds out why
                    break

    # ------------------------------------------------------------ the end

    @property
    def mine(self) -> bool:
        """This process started it, and is no fork of the one that did."""
        return self._process.mine

    @property
    def alive(self) -> bool:
        """It can be asked for something."""
        if not self._process.mine or self._died is not None or self._closed:
            return False
        poll = select.poll()
        poll.register(self._process.sock, 0)
        return not poll.poll(0)  # of a socket that is asked nothing, only its end is told

    def close(self) -> None:
        """End it with all that it runs, and see it gone. Again is no error."""
        if self._closed or not self._process.mine:
            self._closed = True
            self._process.forget()
            return
        with contextlib.suppress(DsecError):
            self.call("shutdown", methods.Nothing(), methods.Done, 2 * GONE_S)
            self._send(self._desk.notification("exit"))
        with self._lock:
            self._closed = True
            if self._died is None:
                self._process.await_end()
                self._desk.fail(LocalError("this kernel was closed"))
            self._process.forget()

    def __enter__(self) -> SyncEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
