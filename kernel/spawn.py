"""Servers, which the whole run needs and which are started again when they die; first of all the
zygotes, one for each image, which are started by exec and fork all other processes.

A zygote that can't import its image is broken for good; one that dies later is started again, and
then forks what was asked of it meanwhile.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsec.errors import MachineError
from dsec.failover.detect import Idle
from dsec.failover.diagnose import blameless
from dsec.failover.intensity import request_restart
from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame, Phase, Role
from dsec.kernel.machine import RunnerEvent, RunnerState
from dsec.kernel.runner import Runner
from dsec.report import Death
from dsec.spec import ImageSpec

if TYPE_CHECKING:
    from dsec.kernel.supervisor import Supervisor

FORKS_MAX = 16  # requests that one zygote has at a time; it forks what it finds in one go
FORK_TIMEOUT_S = 60.0
RESTARTS_MAX, RESTARTS_PERIOD_S = 5, 60.0


class Server:
    """One server over all its incarnations, each a `Runner` that has nothing to be wired with. A
    subclass says how one is made and launched, and what follows from its frames and its end.

    Attributes:
        up, was_up: it serves; it has served.
        over: why it won't be started again; empty while it would be.
    """

    def __init__(self, run: Supervisor, name: str) -> None:
        self.run, self.name, self.over = run, name, ""
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

    def lost(self, runner: Runner, death: Death) -> None:
        """What follows, follows when it is reaped."""

    def faulted(self, runner: Runner, death: Death) -> None:
        """It died."""
        self._death = blameless(death)

    def left(self, runner: Runner) -> None:
        """Start it again, if the budget allows. A server that never came up is not, unless it was
        killed from outside: a second try would end like the first."""
        self.up, death, now = False, self._death, self.run.now()
        grant = request_restart(self._stamps, now, RESTARTS_MAX, RESTARTS_PERIOD_S, random.random())
        self._stamps = grant.stamps
        killed = death is not None and death.kind == "spawn" and death.signal > 0
        if death is None or self.over or not (grant.allowed and (self.was_up or killed)):
            self.over = self.over or (death.cause if death is not None else "ended as asked")
            self.ended(death)
            return
        self.run.hooks.note("restart", name=self.name, cause=death.cause, delay_s=grant.delay_s)
        self.run.later(grant.delay_s, self.start)

    def idle(self, runner: Runner, idle: Idle) -> None:
        """Its progress is not followed."""

    def frame(self, runner: Runner, frame: AnyFrame, fds: Sequence[int]) -> bool:
        """Take a frame that the runner's table doesn't know; False if it has no place here."""
        return False

    def release(self) -> None:
        """Close every descriptor; a second time does nothing."""
        if self.runner is not None:
            self.runner.release()


class Zygote(Server):
    """The zygote of one image."""

    def __init__(self, run: Supervisor, image: ImageSpec) -> None:
        super().__init__(run, f"zygote-{image.name}")
        self.image = image
        self._wanted: deque[Runner] = deque()
        self._asked: dict[tuple[str, int], Runner] = {}

    def make(self, epoch: int) -> Runner:
        """Its role is no runner's, and nobody but us sees it."""
        prepare = frames.Prepare(self.image.name, self.image.modules, self.image.warm)
        limits = {Phase.IMPORT: self.image.import_timeout_s}
        return Runner(self.run, self, self.name, Role.SML, prepare, limits, epoch, Phase.IMPORT)

    def launch(self, runner: Runner) -> None:
        """Execute it. It says no Hello: what it gets first may be in the channel already."""
        try:
            fds = runner.descriptors()
            try:
                pid = self.run.system.exec_zygote(fds, self.run.environment, self.image.environment)
            finally:
                self.run.system.close_all(fds)
        except (MachineError, OSError) as error:
            runner.forked(0, f"can't be started: {error}")
            return
        runner.forked(pid, "")
        runner.apply(RunnerEvent.HELLO)

    def serving(self) -> None:
        """Fork what was asked for meanwhile."""
        self.run.admit()
        self._pump()

    def ended(self, death: Death | None) -> None:
        """No more forks: whoever waits for one hears why."""
        if death is not None:
            self.run.broken(self, death)
        self._pump()

    def fork(self, runner: Runner, urgent: bool = False) -> None:
        """Fork a runner as soon as possible; it is told, whatever happens. Many may wait (spares,
        say): who is `urgent` goes first."""
        self._wanted.insert(0 if urgent else len(self._wanted), runner)
        self._pump()

    def close(self, reason: str) -> None:
        """As for every server; and whoever waits for a fork hears of it."""
        super().close(reason)
        self._wanted.extend(self._asked.values())
        self._asked.clear()
        self._pump()

    def left(self, runner: Runner) -> None:
        """What it was asked for may or may not exist; a runner that does sees its channel end."""
        self._wanted.extendleft(reversed(self._asked.values()))
        self._asked.clear()
        super().left(runner)

    def frame(self, runner: Runner, frame: AnyFrame, fds: Sequence[int]) -> bool:
        """Take its answer to a Fork."""
        if not isinstance(frame, frames.Forked | frames.ForkFailed):
            return False
        if asked := self._asked.pop((frame.name, frame.epoch), None):
            pid, why = (frame.pid, "") if isinstance(frame, frames.Forked) else (0, frame.message)
            asked.forked(pid, why)
        self._pump()
        return True

    def _pump(self) -> None:
        while self._wanted and (self.over or (self.up and len(self._asked) < FORKS_MAX)):
            runner = self._wanted.popleft()
            if self.over or runner.state is not RunnerState.FORKING:
                runner.forked(0, f"{self.name}: {self.over}" if self.over else "no longer wanted")
                continue
            try:
                fds = runner.descriptors()
            except (MachineError, OSError) as error:
                runner.forked(0, f"could not be forked: {error}")
                continue
            self._asked[runner.name, runner.epoch] = runner
            assert self.runner is not None, "who is up has a runner"
            self.runner.send(frames.Fork(runner.name, runner.epoch, self.run.system.getpid()), fds)
        if self.up and self.runner is not None:
            if self._asked:
                self.run.arm(self.runner, Phase.IDLE, FORK_TIMEOUT_S)
            else:
                self.run.deadlines.drop(self.runner)
