"""What the kernel tells a program of its lanes: who was lost and goes on, what is kept, the end.

Owns what is remembered of it, and that a failure is one error with the report behind it. Waiting
for answers is lanes.py's, which asks here whether there is anybody left to wait for.
"""

from __future__ import annotations

import os
import time
from collections import deque

from dsec.engine import talk
from dsec.engine.client import Hosted
from dsec.errors import MachineError, SandboxFailed, SandboxTimeout
from dsec.failover import keep
from dsec.failover.keep import Snapshot
from dsec.ipc import datagrams
from dsec.ipc.frames import Role

FAILOVERS_KEPT = 1000
SECTION_SLICE_S = 0.001
REPORT_LINES = 40  # of a report, in the notes of an exception


class News:
    """What one kernel has told.

    Attributes:
        failovers: what was survived, the latest of it.
        files: of the recording, once it is closed.
        away: the lanes whose environments are being replaced.
        kept: by lane and role, the memory file in which a role keeps its state; mine to close.
        failed: the message and the report of what ended it all.
    """

    def __init__(self, kernel: Hosted) -> None:
        self._kernel = kernel
        self.failovers: deque[talk.Survived] = deque(maxlen=FAILOVERS_KEPT)
        self.files: tuple[str, ...] = ()
        self.away: set[str] = set()
        self.kept: dict[tuple[str, int], int] = {}
        self.failed: tuple[str, str] | None = None

    def hear(self, wait_s: float = 0.0) -> None:
        """Take in what was told since the last time; if that is nothing, what comes in `wait_s`.

        Raises:
            MachineError: the machine can't go on.
        """
        try:
            while (got := self._kernel.receive(wait_s)) is not None:
                self.take(*got)
                wait_s = 0.0
        except SandboxFailed as failed:
            self.fail(str(failed), failed.report)

    def take(self, message: talk.AnyMessage, fds: list[int]) -> None:
        """Take in one message, and the descriptors that came with it."""
        match message:
            case talk.Holds() if len(fds) == 1:
                place, older = (message.agent, message.role), self.kept
                fds, older[place] = [older[place]] if place in older else [], fds[0]
            case talk.Away():
                self.away.add(message.agent)
            case talk.Survived():
                self.failovers.append(message)
                if message.role == "env":
                    self.away.discard(message.agent)
            case talk.Lost():
                self.fail(f"{message.agent}: {message.cause}", message.report)
            case talk.Refused(kind="machine"):
                datagrams.close_fds(fds)
                raise MachineError(message.message, message.remedy)
            case talk.Refused():
                self.fail(message.message)
            case talk.Ended():
                self.files = message.files
                self.fail("the kernel has ended before the environments were closed")
        datagrams.close_fds(fds)

    def section(self, lane: str, role: int, seq: int, until: float) -> Snapshot:
        """What a role has kept of its state at record `seq`.

        Raises:
            SandboxFailed: it is over.
            SandboxTimeout: it has kept nothing until then.
        """
        while True:
            fd = self.kept.get((lane, role), -1)
            for head in keep.heads(fd) if fd >= 0 else ():
                found = keep.read(fd, head) if head.seq == seq and head.boundary else None
                if found is not None:
                    own = len(found.parts) - found.beside
                    return found._replace(parts=found.parts[:own], beside=0)
            self.hear(SECTION_SLICE_S)
            self.check()
            if time.monotonic() > until:
                raise SandboxTimeout(
                    f"the state of {lane}'s {Role(role).name.lower()} did not come"
                )

    def fail(self, message: str, report: str = "") -> None:
        """It is over; the first reason counts."""
        self.failed = self.failed or (message, report)

    def check(self) -> None:
        """Raise if it is over."""
        if self.failed is None:
            return
        message, report = self.failed
        failed = SandboxFailed(message, report)
        if report:
            failed.add_note("\n".join(report.splitlines()[-REPORT_LINES:]))
        raise failed from None

    def forget(self) -> None:
        """Close what was kept; again is no error."""
        while self.kept:
            os.close(self.kept.popitem()[1])
