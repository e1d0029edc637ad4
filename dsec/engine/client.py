"""The sandboxes of this program in the one kernel that they share.

Owns that kernel: the first sandbox starts it, the last one to close ends it, and where it was lost
the next new one gets a new one. A forked child of the program has no part in it, and starts one of
its own when it needs one. Never imports numpy.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque

import msgspec
import yaml

from dsec.engine import handover, methods, talk
from dsec.engine.calls import Call, message_of
from dsec.engine.rpc import Code
from dsec.engine.spawned import GONE_S
from dsec.engine.sync import SyncEngine
from dsec.errors import (
    DsecError,
    EngineDied,
    EngineRefused,
    LocalError,
    MachineError,
    PeerError,
    SandboxFailed,
)

EVENTS = ("event.away", "event.death", "event.ended", "event.failover", "event.holds")
FETCH_S = 30.0

Received = tuple[talk.AnyMessage, list[int]]


class _Shared:
    """The kernel of this process, and how many sandboxes use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: SyncEngine | None = None
        self._users = 0
        self._count = 0

    def take(self) -> tuple[SyncEngine, int]:
        """The kernel for one more sandbox, and a number that no other one has here.

        Raises:
            MachineError, EngineDied: none can be started.
        """
        with self._lock:
            if self._engine is None or not self._engine.alive:
                self._engine, self._users = SyncEngine.spawn(events=EVENTS), 0
            self._users += 1
            self._count += 1
            return self._engine, self._count

    def give_back(self, engine: SyncEngine) -> None:
        """One sandbox less; the last one ends the kernel."""
        with self._lock:
            if engine is not self._engine:
                if not engine.alive:
                    engine.close()
                return
            self._users -= 1
            if self._users:
                return
            self._engine = None
        engine.close()


_shared = _Shared()


def _begin_anew() -> None:
    """What a fork inherits is its parent's."""
    global _shared
    _shared = _Shared()


os.register_at_fork(after_in_child=_begin_anew)


class Hosted:
    """One sandbox in the shared kernel.

    Attributes:
        name: what it is called there.

    Raises:
        MachineError: the system can't start a kernel.
        SandboxFailed: the kernel is gone.
        FrameError: the order is too large.
    """

    def __init__(self, order: talk.Order) -> None:
        talk.encode(order)  # what is too large for the runners that it is for
        self._order = order
        try:
            self._engine, number = _shared.take()
        except EngineDied as died:
            raise _gone(died) from None
        version = self._engine.facts.server["version"]
        if version != order.version:
            _shared.give_back(self._engine)
            raise MachineError(
                f"the program has dsec-kernel {order.version}, its kernel is {version}",
                "Start it again: dsec-kernel was installed anew meanwhile",
            )
        self.name = f"{order.agent.get('name', 'sandbox')}-{number}"
        self._events = self._engine.box(self.name)
        self._inbox: deque[Received] = deque()
        self._open: Call[methods.SandboxOpened] | None = None
        self._closed = False
        try:
            self._open = self._engine.begin("sandbox.open", self._asked(), methods.SandboxOpened)
        except EngineDied as died:
            self.forget()
            raise _gone(died) from None
        except BaseException:
            self.forget()
            raise

    def _asked(self) -> methods.SandboxOpen:
        fields = msgspec.structs.asdict(self._order)
        del fields["version"]
        agent = fields["agent"]
        if msgspec.json.decode(msgspec.json.encode(agent)) != agent:
            fields["agent"] = yaml.safe_dump(agent)  # which has numbers that JSON hasn't
        if fields["pool"] is not None:
            fields["pool"] = methods.Pool(**fields["pool"])
        return methods.SandboxOpen(sandbox=self.name, **fields)

    @property
    def mine(self) -> bool:
        """This process opened it, and is no fork of the one that did."""
        return self._engine.mine

    @property
    def guardian(self) -> int:
        """The kernel's process that is gone last."""
        return self._engine.facts.guardian

    @property
    def supervisor(self) -> int:
        """The kernel's process that all others are children of."""
        return self._engine.facts.supervisor

    @property
    def folder(self) -> str:
        """The kernel's temporary files, until it has ended."""
        return self._engine.facts.folder

    def receive(self, timeout_s: float) -> Received | None:
        """The next message with its descriptors, the caller's to close; None if none came.

        Raises:
            SandboxFailed: the kernel is gone.
            LocalError: closed.
        """
        if self._closed:
            raise LocalError("this sandbox was closed")
        try:
            if not self._engine.wait(self._ready, timeout_s):
                return None
        except EngineDied as died:
            raise _gone(died) from None
        if self._inbox:
            return self._inbox.popleft()
        if self._events:
            event = self._events.popleft()
            if ticket := event.params.pop("ticket", ""):
                return self._fetch(ticket, 1)[0]
            message = message_of(event)
            if message is None:
                return self.receive(timeout_s)
            if isinstance(message, talk.Ended) and message.kind:
                self._inbox.append((message, []))
                return talk.Refused(message.kind, message.message, message.remedy), []
            return message, []
        self._opened()
        return self._inbox.popleft()

    def _ready(self) -> bool:
        opened = self._open is not None and self._open.done
        return bool(self._inbox or self._events or opened)

    def _opened(self) -> None:
        """Fetch the rings, or tell why there are none."""
        call, self._open = self._open, None
        assert call is not None, "ready"
        try:
            found = call.outcome()
            self._inbox.extend(self._fetch(found.ticket, len(found.agents)))
        except EngineDied as died:
            raise _gone(died) from None
        except EngineRefused as error:
            kinds = {Code.MACHINE: "machine", Code.CONFIG: "config"}
            kind = kinds.get(Code(error.code), "internal")
            self._inbox.append((talk.Refused(kind, error.what, error.remedy), []))

    def _fetch(self, ticket: str, count: int) -> handover.Parcels:
        try:
            return handover.fetch(self._engine.facts.handover, ticket, count, FETCH_S)
        except (PeerError, OSError) as error:
            what = f"no descriptors came from the kernel: {error}"
            return [(talk.Refused("internal", what), [])]

    def close(self, grace_s: float) -> tuple[str, ...]:
        """See it gone: by itself within `grace_s`, killed after that.

        Returns:
            The files of its recording. A second call does nothing.
        """
        if self._closed or not self.mine:
            self.forget()
            return ()
        files: tuple[str, ...] = ()
        asked = methods.SandboxClose(sandbox=self.name, grace_s=grace_s)
        limit_s = grace_s + 2 * GONE_S
        with contextlib.suppress(DsecError):
            closed = self._engine.call(
                "sandbox.close", asked, methods.SandboxClosed, timeout_s=limit_s
            )
            files = closed.files
        self.forget()
        return files

    def forget(self) -> None:
        """It is used no more; says nothing to it. Again is no error."""
        if self._closed:
            return
        self._closed = True
        for _, fds in self._inbox:
            for fd in fds:
                os.close(fd)
        self._engine.drop_box(self.name)
        if self.mine:
            _shared.give_back(self._engine)


def _gone(died: EngineDied) -> SandboxFailed:
    return SandboxFailed(
        f"the kernel is gone, and all its environments with it: {died}",
        "\n".join(
            filter(
                None,
                [
                    died.stderr_tail,
                    "Was it killed, by hand or for want of memory? `dmesg | grep -i oom` tells",
                ],
            )
        ),
    )
