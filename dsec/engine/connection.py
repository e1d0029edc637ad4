"""One program that talks to a served kernel: its requests to the desk, answers and events back.

Owns the stream and what the program may do when: first `initialize`, then everything, and after
`shutdown` nothing but `exit`. A program that doesn't read is not read from, either, and misses
events, of which it is told; nothing it does or doesn't do holds up the kernel.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from dsec import __version__
from dsec.engine import methods, talk
from dsec.engine.desk import Desk, convert
from dsec.engine.methods import EVENTS, METHODS
from dsec.engine.rpc import BATCH_MAX, MESSAGE_BYTES_MAX, Code, Problem, Request, Server
from dsec.engine.wire import Wire

WAITING_MAX = 1000  # requests of one connection that are not answered yet
OUT_BYTES_MAX = 8 * 1024 * 1024  # from here on it is not read, and gets no events
LAST_WORDS_S = 0.5

_EVENT_OF = {
    talk.Lost: "event.death",
    talk.Survived: "event.failover",
    talk.Outcome: "event.ended",
    talk.Shot: "event.progress",
}


class Connection:
    """One connection.

    Args:
        wire: taken over.
        closed: called once, when it has ended.
        guardian: the pid of the kernel's guardian.

    Attributes:
        shut: `shutdown` was asked for here.
    """

    def __init__(
        self, wire: Wire, desk: Desk, guardian: int, closed: Callable[[Connection], None]
    ) -> None:
        self._wire, self._desk, self._guardian, self._closed = wire, desk, guardian, closed
        self._loop = asyncio.get_running_loop()
        self._server = Server()
        self._events: frozenset[str] | None = None  # until it is initialized
        self.shut = False
        self._missed = 0
        self._tasks: dict[asyncio.Task[None], Request] = {}
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._reading = self._writing = self._over = False
        self._caller = -1
        self._read_on()

    # ------------------------------------------------------------ what comes in

    def _read_on(self) -> None:
        full = self._out_bytes > OUT_BYTES_MAX or len(self._tasks) > WAITING_MAX
        if self._over or self._reading != full:
            return
        self._reading = not full
        if not self._wire.watched:
            if not full:
                self._loop.call_soon(self._readable)
        elif full:
            self._loop.remove_reader(self._wire.source)
        else:
            self._loop.add_reader(self._wire.source, self._readable)

    def _readable(self) -> None:
        if self._over or not self._reading:
            return
        try:
            data = self._wire.read()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
            return
        for request in self._server.receive(data):
            self._begin(request)
        self._flush()
        if not self._wire.watched:
            self._reading = False
        self._read_on()

    def _begin(self, request: Request) -> None:
        task = asyncio.ensure_future(self._carry_out(request))
        self._tasks[task] = request
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._flush()
        self._read_on()

    async def _carry_out(self, request: Request) -> None:
        try:
            result = await self._answer_to(request)
        except Problem as problem:
            self._server.refuse(request, problem)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            what = f"{type(error).__name__}: {error}"
            self._server.refuse(
                request, Problem(Code.INTERNAL, what, remedy="This is a mistake of the kernel's")
            )
        else:
            self._server.answer(request, result)

    async def _answer_to(self, request: Request) -> Any:
        name = request.method
        if name not in METHODS:
            known = f"Known are {', '.join(METHODS)}"
            raise Problem(Code.NO_METHOD, f"there is no {name[:100]!r}", "method", known)
        if name == "exit":
            self._leave()
            return None
        if self._events is None and name != "initialize":
            raise Problem(
                Code.NOT_INITIALIZED, f"{name} came first", remedy="Call initialize before"
            )
        if self.shut:
            raise Problem(Code.STATE, "after shutdown there is only exit", "method")
        params = convert(request.params, METHODS[name][0])
        if name == "initialize":
            return self._initialize(cast(methods.Initialize, params))
        if name == "events.subscribe":
            return self._subscribe(cast(methods.Subscribe, params).events)
        if name == "shutdown":
            self.shut = True
        method = getattr(self._desk, name.replace(".", "_"))
        return await method(self, params)

    def _initialize(self, asked: methods.Initialize) -> methods.Initialized:
        if self._events is not None:
            raise Problem(Code.STATE, "this connection is initialized", "method")
        common = [each for each in methods.PROTOCOLS if each <= asked.protocol]
        if not common:
            raise Problem(
                Code.VERSION,
                f"{asked.protocol} is older than all that this kernel speaks",
                "protocol",
                "Take a kernel of the program's time, or a newer program",
                details={"protocols": methods.PROTOCOLS},
            )
        if asked.process_id is not None:
            self._watch(asked.process_id)
        self._subscribe(asked.events)
        return methods.Initialized(
            protocol=max(common),
            server={"name": "dsec-kernel", "version": __version__},
            capabilities={
                "events": sorted(EVENTS),
                "message_bytes_max": MESSAGE_BYTES_MAX,
                "batch_max": BATCH_MAX,
                "waiting_max": WAITING_MAX,
            },
            handover=str(self._desk.folder / "handover.sock"),
            supervisor=os.getpid(),
            guardian=self._guardian,
            folder=str(self._desk.folder),
        )

    def _watch(self, pid: int) -> None:
        """End with this process."""
        try:
            self._caller = os.pidfd_open(pid)
        except (OSError, OverflowError):
            raise Problem(
                Code.INVALID_PARAMS, f"there is no process {pid}", "process_id", "Leave it out"
            ) from None
        self._loop.add_reader(self._caller, self._ended)

    def _subscribe(self, events: tuple[str, ...]) -> methods.Subscribed:
        unknown = set(events) - set(EVENTS)
        if unknown:
            raise Problem(
                Code.INVALID_PARAMS,
                f"there is no {sorted(unknown)[0]!r}",
                "events",
                f"Known are {', '.join(EVENTS)}",
            )
        self._events = frozenset(events)
        return methods.Subscribed(events=tuple(sorted(events)))

    # ------------------------------------------------------------ what goes out

    def told(self, source: Mapping[str, str], message: talk.AnyMessage, ticket: str = "") -> None:
        """Pass on an event, if it is wanted."""
        fields = msgspec.to_builtins(message, enc_hook=str)
        kind = type(message)
        name = _EVENT_OF.get(kind) or f"event.{fields['t']}"
        del fields["t"]
        if ticket:
            fields["ticket"] = ticket
        self._notify(name, {**source, **fields})
        if isinstance(message, talk.Standing) and message.state == "quarantined":
            self._notify("event.quarantine", {**source, "agent": message.agent})

    def _notify(self, name: str, params: Mapping[str, Any]) -> None:
        if self._over or self._events is None or name not in self._events:
            return
        if self._out_bytes > OUT_BYTES_MAX:
            self._missed += 1
            return
        if self._missed:
            self._server.notify("event.lost", {"events": self._missed})
            self._missed = 0
        self._server.notify(name, params)
        self._flush()

    def complain(self, problem: Problem) -> None:
        """Say why it is not wanted, and end it."""
        self._server.complain(problem)
        self._ended()

    def _flush(self) -> None:
        for line in self._server.outgoing():
            self._out.append(memoryview(line))
            self._out_bytes += len(line)
        try:
            while self._out:
                sent = self._wire.write(self._out[0])
                self._out_bytes -= sent
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except BlockingIOError:
            if not self._writing and self._wire.sink >= 0:
                self._writing = True
                self._loop.add_writer(self._wire.sink, self._writable)
        except OSError:  # nobody reads any more
            self._out.clear()
            self._out_bytes = 0
            self._ended()
        else:
            self._stop_writing()

    def _writable(self) -> None:
        self._flush()
        self._read_on()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._wire.sink)

    # ------------------------------------------------------------ the end

    def _ended(self) -> None:
        """Nothing more comes, or nobody listens: end what it has opened."""
        if self._over:
            return
        self._over = True
        self._server.end()
        if self._reading and self._wire.watched:
            self._loop.remove_reader(self._wire.source)
        if self._caller >= 0:
            self._loop.remove_reader(self._caller)
            os.close(self._caller)
        self._desk.release(self)
        self._flush()
        self._closed(self)

    async def finish(self) -> None:
        """Say what there is to say, as long as somebody reads it soon, and close the stream."""
        self._ended()
        for task, request in list(self._tasks.items()):
            self._server.refuse(request, Problem(Code.ENDED, "this connection has ended"))
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(int(LAST_WORDS_S / 0.01)):
            self._flush()
            if not self._out:
                break
            await asyncio.sleep(0.01)
        self._stop_writing()
        self._wire.close()

    def _leave(self) -> None:
        self._loop.call_soon(self._desk.leave, 0 if self.shut else 1)
