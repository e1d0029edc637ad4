"""Servers: processes that the whole run needs and that are started again when they die.

Owns the restart budget and its end. The zygotes (spawn.py) and the recorder (recorder.py) are
servers; each incarnation of one is a `Runner` that has nothing to be wired with.
"""

from __future__ import annotations

import random

from dsec.ipc.frames import AnyFrame
from dsec.kernel.intensity import request_restart
from dsec.kernel.machine import RunnerEvent
from dsec.kernel.protocols import Shell
from dsec.kernel.readiness import Idle
from dsec.kernel.report import Death
from dsec.kernel.runner import Runner

RESTARTS_MAX, RESTARTS_PERIOD_S = 5, 60.0


class Server:
    """One server over all its incarnations. A subclass says how one is made and launched, and
    what follows from its frames and its end.

    Attributes:
        up, was_up: it serves; it has served.
        over: why it won't be started again; empty while it would be.
    """

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell, self.name, self.over = shell, name, ""
        self.up = self.was_up = False
        self.runner: Runner | None = None
        self._epoch = -1
        self._stamps: tuple[float, ...] = ()
        self._death: Death | None = None

    def make(self, epoch: int) -> Runner:
        """One incarnation."""
        raise NotImplementedError

    def launch(self, runner: Runner) -> None:
        """Have it forked."""
        raise NotImplementedError

    def serving(self) -> None:
        """It serves, for the first time or again."""

    def ended(self, death: Death | None) -> None:
        """It is over: it ended as asked (None), or this was its last death."""

    def start(self) -> None:
        """Start it, or start it again."""
        if not self.over:
            self._epoch, self._death = self._epoch + 1, None
            self.runner = self.make(self._epoch)
            self.launch(self.runner)

    def close(self, reason: str) -> None:
        """Kill it; it won't be started again."""
        self.over, self.up = self.over or reason, False
        if self.runner is not None:
            self.runner.apply(RunnerEvent.FENCE)

    # ------------------------------------------------------------ what its runner tells (Owner)

    def holding(self, runner: Runner) -> None:
        """There is nothing to wire."""
        runner.order(RunnerEvent.WIRE, None)

    def ready(self, runner: Runner) -> None:
        """Nor to wait for."""
        runner.order(RunnerEvent.GO, None)
        self.up = self.was_up = True
        self.serving()

    def faulted(self, runner: Runner, death: Death) -> None:
        """It died."""
        self._death = death

    def left(self, runner: Runner) -> None:
        """Start it again, if the budget allows. A server that never came up may at most once: a
        second try would end like the first."""
        self.up, death = False, self._death
        now = self.shell.clock.now()
        grant = request_restart(self._stamps, now, RESTARTS_MAX, RESTARTS_PERIOD_S, random.random())
        self._stamps = grant.stamps
        if death is None or self.over or not (grant.allowed and self.was_up):
            self.over = self.over or (death.cause if death is not None else "ended as asked")
            self.ended(death)
            return
        note = self.shell.hooks.note
        note("server_restart", name=self.name, cause=death.cause, delay_s=grant.delay_s)
        self.shell.loop.call_later(grant.delay_s, self.shell.guarded(self.start))

    def idle(self, runner: Runner, idle: Idle) -> None:
        """Its progress is not followed."""

    def frame(self, frame: AnyFrame) -> bool:
        """Take a frame that the runner's table doesn't know; False if it has no place here."""
        return False

    def release(self) -> None:
        """Close every descriptor; a second time does nothing."""
        if self.runner is not None:
            self.runner.release()
