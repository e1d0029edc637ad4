"""What the two faces of a kernel beside a program have in common: requests, answers, events. Pure.

aio.py and sync.py move the bytes; here is which answer is whose, and which error it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import msgspec

from dsec import __version__
from dsec.engine import methods, rpc, talk
from dsec.errors import DsecError, EngineRefused, PeerError

R = TypeVar("R", bound=methods.Result)
Asked = tuple[str, methods.Params, type[R]]
"""A method, its parameters, and what it answers."""

NOT_MINE = "this kernel belongs to the process that this one was forked from; start one here"


def initialize(events: Iterable[str]) -> Asked[methods.Initialized]:
    """The first request, of a program that wants to be told of these events."""
    client = methods.ClientInfo(name="dsec", version=__version__)
    asked = methods.Initialize(protocol=methods.PROTOCOL, client=client, events=tuple(events))
    return "initialize", asked, methods.Initialized


def run_start(
    config: str | None, changes: Sequence[str], out: str | None, resume: str | None
) -> Asked[methods.RunStarted]:
    """Begin a run, as `dsec-kernel run` does."""
    asked = methods.RunStart(config=config, set=tuple(changes), out=out, resume=resume)
    return "run.start", asked, methods.RunStarted


def run_status(run: str) -> Asked[methods.RunStatus]:
    """Where a run stands, or how it ended."""
    return "run.status", methods.RunName(run=run), methods.RunStatus


def run_stop(run: str, kill: bool) -> Asked[methods.RunStatus]:
    """End a run."""
    return "run.stop", methods.RunStop(run=run, kill=kill), methods.RunStatus


def agents(run: str, sandbox: str) -> Asked[methods.Agents]:
    """The agents of a run or sandbox, or all."""
    return "agents.list", methods.AgentsList(run=run, sandbox=sandbox), methods.Agents


@dataclass(frozen=True, slots=True)
class Event:
    """What the kernel has told: `name` is one of `methods.EVENTS`, `params` as docs/ENGINE.md has
    them; `run` or `sandbox` says whose it is."""

    name: str
    params: dict[str, Any]


@dataclass(eq=False, slots=True)
class Call(Generic[R]):
    """One request that is under way."""

    result_type: type[R]
    done: bool = False
    result: Any = None
    error: DsecError | None = None
    then: Callable[[], None] | None = field(default=None, repr=False)

    def finish(self, result: Any, error: DsecError | None) -> None:
        """It has its answer."""
        self.result, self.error, self.done = result, error, True
        if self.then is not None:
            self.then()

    def outcome(self) -> R:
        """The result.

        Raises:
            EngineRefused: it was refused.
            EngineDied: the kernel is gone.
        """
        assert self.done, "waited for"
        if self.error is not None:
            raise self.error.with_traceback(None)
        return cast(R, self.result)


class Desk:
    """Requests that are under way, and whom events are told.

    Args:
        told: called with each event.
    """

    def __init__(self, told: Callable[[Event], None]) -> None:
        self._client = rpc.Client()
        self._told = told
        self._calls: dict[int, Call[Any]] = {}

    def begin(self, method: str, params: methods.Params, result: type[R]) -> tuple[Call[R], bytes]:
        """A request and its line."""
        number, line = self._client.request(method, params)
        if len(line) > rpc.MESSAGE_BYTES_MAX:
            raise EngineRefused(
                rpc.Code.INVALID_PARAMS,
                f"a request of {len(line):,} bytes; at most {rpc.MESSAGE_BYTES_MAX:,} fit",
                method,
            )
        call: Call[R] = Call(result)
        self._calls[number] = call
        return call, line

    def notification(self, method: str) -> bytes:
        """The line of a notification."""
        return self._client.notification(method)

    def received(self, data: bytes) -> None:
        """Take in what the kernel says.

        Raises:
            PeerError: it doesn't speak as a kernel does.
        """
        try:
            for said in self._client.receive(data):
                if isinstance(said, rpc.Notice):
                    self._told(Event(said.method, msgspec.json.decode(said.params)))
                elif (call := self._calls.pop(said.id, None)) is not None:
                    self._finish(call, said)
        except msgspec.DecodeError as error:
            raise PeerError(f"what the kernel said is not understood: {error}") from None

    def _finish(self, call: Call[Any], said: rpc.Reply) -> None:
        if said.error is not None:
            data = said.error.data or rpc.Data(said.error.message)
            call.finish(
                None,
                EngineRefused(said.error.code, data.what, data.where, data.remedy, data.report),
            )
        else:
            call.finish(msgspec.json.decode(said.result, type=call.result_type), None)

    def fail(self, error: DsecError) -> None:
        """Nothing that is under way will be answered."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.finish(None, error)


_EVENTS_OF_SANDBOXES = {
    "event.death": talk.Lost,
    "event.failover": talk.Survived,
    "event.agent": talk.Standing,
}


def message_of(event: Event) -> talk.AnyMessage | None:
    """An event of a sandbox as a message; None for one that is none."""
    fields = {key: value for key, value in event.params.items() if key != "sandbox"}
    known = _EVENTS_OF_SANDBOXES.get(event.name)
    tag = known.__struct_config__.tag if known else event.name.removeprefix("event.")
    if tag not in _TAGS:
        return None
    found: talk.AnyMessage = msgspec.convert({"t": tag, **fields}, talk.AnyMessage)
    return found


_TAGS = {kind.__struct_config__.tag for kind in talk.AnyMessage.__args__}
