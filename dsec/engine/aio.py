"""A kernel beside a program with an event loop: `async with Engine.spawn() as engine`.

Owns the stream as asyncio has it. All methods are for the loop in which it was entered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TypeVar

from dsec.engine import calls, methods
from dsec.engine.calls import Desk, Event
from dsec.engine.spawned import GONE_S, EngineProcess
from dsec.engine.sync import EVENTS_KEPT, START_S, SyncEngine
from dsec.errors import ChannelTimeout, DsecError, EngineDied, LocalError, PeerError

R = TypeVar("R", bound=methods.Result)


class Engine:
    """One kernel; an async context manager, which starts and ends it.

    Attributes:
        facts: what the kernel said of itself, from entering on.
        on_event: called with each event; None: `events` has them.
    """

    facts: methods.Initialized

    def __init__(
        self,
        events: Sequence[str] = tuple(methods.EVENTS),
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.on_event = on_event
        self._wanted = tuple(events)
        self._desk = Desk(self._told)
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._news = asyncio.Event()
        self._out = bytearray()
        self._process: EngineProcess | None = None
        self._died: EngineDied | None = None
        self._burying: asyncio.Task[None] | None = None

    @classmethod
    def spawn(
        cls,
        *,
        events: Sequence[str] = tuple(methods.EVENTS),
        on_event: Callable[[Event], None] | None = None,
    ) -> Engine:
        """A kernel that tells of these events; it starts when it is entered."""
        return cls(events, on_event)

    @staticmethod
    def spawn_sync(
        *,
        events: Sequence[str] = tuple(methods.EVENTS),
        on_event: Callable[[Event], None] | None = None,
    ) -> SyncEngine:
        """The same for a program without an event loop; it is started at once."""
        return SyncEngine.spawn(events=events, on_event=on_event)

    async def start(self) -> None:
        """Start it.

        Raises:
            MachineError: the system can't.
            EngineDied: it was gone before it answered; the error has what it wrote.
        """
        if self._process is not None:
            raise LocalError("this kernel was started before; make another one")
        self._process = EngineProcess()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._process.sock.fileno(), self._readable)
        try:
            self.facts = await self.call(*calls.initialize(self._wanted), START_S)
        except BaseException:
            self._hang_up()
            raise
        self._process.known(self.facts.guardian)

    # ------------------------------------------------------------ what it can be asked

    async def run_start(
        self,
        config: str | None = None,
        *,
        set: Sequence[str] = (),
        out: str | None = None,
        resume: str | None = None,
    ) -> methods.RunStarted:
        """Begin a run, as `dsec-kernel run` does."""
        return await self.call(*calls.run_start(config, set, out, resume))

    async def run_status(self, run: str) -> methods.RunStatus:
        """Where a run stands, or how it ended."""
        return await self.call(*calls.run_status(run))

    async def run_stop(self, run: str, *, kill: bool = False) -> methods.RunStatus:
        """End a run, and wait for its end."""
        return await self.call(*calls.run_stop(run, kill))

    async def agents(self, run: str = "", sandbox: str = "") -> tuple[methods.AgentRow, ...]:
        """The agents of a run or sandbox, or all."""
        return (await self.call(*calls.agents(run, sandbox))).agents

    async def call(
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
        self._check()
        call, line = self._desk.begin(method, params, result)
        answered = asyncio.Event()
        call.then = answered.set
        self._send(line)
        try:
            await asyncio.wait_for(answered.wait(), timeout_s)
        except TimeoutError:
            raise ChannelTimeout(
                f"the kernel has not answered {method} within {timeout_s} s"
            ) from None
        return call.outcome()

    async def events(self) -> AsyncIterator[Event]:
        """What the kernel tells, as it comes.

        Raises:
            EngineDied: the kernel is gone, and everything that it told has been read.
        """
        while True:
            while not self._events:
                self._check()
                self._news.clear()
                await self._news.wait()
            yield self._events.popleft()

    # ------------------------------------------------------------ inside

    def _check(self) -> None:
        if self._died is not None:
            raise self._died.with_traceback(None)
        if self._process is None or self._process.sock.fileno() < 0:
            raise LocalError("this kernel is not running; use `async with`")
        if not self._process.mine:
            raise LocalError(calls.NOT_MINE)

    def _readable(self) -> None:
        process = self._process
        assert process is not None, "it is read while it is there"
        why = ""
        try:
            data = process.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        try:
            if data:
                self._desk.received(data)
                return
        except PeerError as error:
            why = str(error)
            process.kill()
        self._loop.remove_reader(process.sock.fileno())
        self._loop.remove_writer(process.sock.fileno())
        self._burying = asyncio.ensure_future(self._bury(process, why))

    async def _bury(self, process: EngineProcess, why: str) -> None:
        """Find out how it ended, which may take a moment, and tell whoever waits."""
        await self._end_of(process)
        self._died = process.death()
        if why:
            self._died.add_note(why)
        self._desk.fail(self._died)
        self._news.set()

    async def _end_of(self, process: EngineProcess) -> None:
        gone = asyncio.Event()
        self._loop.add_reader(process.end, gone.set)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gone.wait(), GONE_S)
        self._loop.remove_reader(process.end)

    def _told(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)
        else:
            self._events.append(event)
            self._news.set()

    def _send(self, line: bytes) -> None:
        self._out += line
        self._flush()

    def _flush(self) -> None:
        process = self._process
        assert process is not None, "checked"
        try:
            while self._out:
                sent = process.sock.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            self._loop.add_writer(process.sock.fileno(), self._flush)
            return
        except OSError:
            self._out.clear()  # the reader finds out why
        self._loop.remove_writer(process.sock.fileno())

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """End it with all that it runs, and see it gone. Again is no error."""
        process = self._process
        if process is None or process.sock.fileno() < 0:
            return
        if process.mine and self._died is None and self._burying is None:
            with contextlib.suppress(DsecError):
                await self.call("shutdown", methods.Nothing(), methods.Done, 2 * GONE_S)
        if self._burying is not None:
            await self._burying
        elif process.mine:
            self._loop.remove_reader(process.sock.fileno())
            self._send(self._desk.notification("exit"))
            await self._end_of(process)
            process.await_end()
            self._desk.fail(LocalError("this kernel was closed"))
        self._hang_up()

    def _hang_up(self) -> None:
        process = self._process
        if process is None or process.sock.fileno() < 0:
            return
        self._loop.remove_reader(process.sock.fileno())
        self._loop.remove_writer(process.sock.fileno())
        process.forget()
        self._news.set()

    async def __aenter__(self) -> Engine:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
