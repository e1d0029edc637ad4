"""What the servers that read the agents' rings have in common, as the kernel sees them.

Owns their life: forked as the agents' runners are, started again when they die, told of every agent
that they haven't finished, for the first time or anew. Those beside it in this folder say what
follows from their frames and from their end.

While a server owes an answer (Wired, the end of an agent, its own) it may be without a sign of life
for SILENCE_MAX_S, and FINISH_MAX_S of detect.py bounds even a lively end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsec.failover.detect import Pulse
from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame, Phase, Role
from dsec.ipc.segment import Segment
from dsec.kernel.machine import RunnerState
from dsec.kernel.runner import Runner
from dsec.kernel.spawn import Server
from dsec.report import Death

if TYPE_CHECKING:
    from dsec.kernel.agent import Agent
    from dsec.kernel.supervisor import Supervisor

SILENCE_MAX_S = 30.0


class AttendantServer(Server):
    """One of the servers of `hooks.Attendant`.

    Args:
        image: the zygote that forks it.

    Attributes:
        finishing: it has been told that all agents are finished.
    """

    def __init__(self, run: Supervisor, name: str, role: Role, image: str) -> None:
        super().__init__(run, name)
        self.role, self.finishing = role, False
        self._image = image
        self._finish_at, self._heard = 0.0, 0
        self._pulse = Pulse()

    def first(self) -> AnyFrame:
        """What one incarnation gets first."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """It can't do its work at the moment, and says so: no sign of life is due."""
        return False

    def make(self, epoch: int) -> Runner:
        """One incarnation."""
        self.finishing = False
        return Runner(self.run, self, self.name, self.role, self.first(), {}, epoch)

    def launch(self, runner: Runner) -> None:
        """Have it forked as the agents' runners are."""
        self.run.zygotes[self._image].fork(runner)

    def serving(self) -> None:
        """Tell it of every agent that it hasn't finished, for the first time or anew."""
        for agent in self.run.agents.values():
            if agent.segments and self.name not in agent.served and not agent.ended:
                self.wire(agent.name)
        self.run.look_over()

    def faulted(self, runner: Runner, death: Death) -> None:
        """It died; that is a death of the run, unless nobody waits for it any more, or there was
        no process: then its zygote has the cause."""
        if not self.over:
            super().faulted(runner, death)
            if death.pid:
                self.run.died(death)

    def wire(self, agent: str) -> None:
        """Hand it an agent's segments. One that is not up yet gets them when it is."""
        if self.up:
            self.introduce(self.run.agents[agent])
            if self.run.agents[agent].settling:
                self.settle(agent)

    def introduce(self, agent: Agent) -> None:
        """Hand it what it has to do with an agent; it answers Wired."""
        self.tell(*agent.wire_frame(self.role))

    def kept(self, agent: str, role: Role, kept: Segment) -> None:
        """That is nothing to most."""

    def settle(self, agent: str) -> None:
        """Have it take what there is of an agent whose runners are gone."""

    def finish(self) -> None:
        """All agents are finished: let it come to its own end."""
        if self.up and not self.finishing:
            self.finishing, self._finish_at = True, self.run.now()
            self.tell(self.last())

    def last(self) -> AnyFrame:
        """What is said to it when all agents are finished."""
        return frames.Finish()

    def tell(self, frame: AnyFrame, fds: Sequence[int] = ()) -> None:
        """Send it a frame, if it is up."""
        if self.up and self.runner is not None:
            self.runner.send(frame, fds)

    def frame(self, runner: Runner, frame: AnyFrame, fds: Sequence[int]) -> bool:
        """Whatever it says is a sign of life."""
        self._heard += 1
        if isinstance(frame, frames.Wired) and (agent := self.run.agents.get(frame.agent)):
            agent.wired.add(self.name)
            agent.look_served()
            return True
        return self.heard(frame)

    def heard(self, frame: AnyFrame) -> bool:
        """Take what it says beyond what all say; False if that has no place here."""
        return False

    def done_with(self, agent: Agent) -> None:
        """It has all that it wants of an agent."""
        agent.served.add(self.name)
        agent.look_served()

    def hang_up(self) -> None:
        """End its channel: it writes what it can in the second that it has, and leaves."""
        self.over, self.up = "no longer waited for", False
        if self.runner is not None:
            self.runner.release()

    @property
    def holds_back(self) -> bool:
        """Agents may have to wait for it, and are not to blame."""
        return not self.up or self.waits

    @property
    def alive(self) -> bool:
        """It has not left yet."""
        return self.runner is not None and self.runner.state is not RunnerState.GONE

    def tick(self) -> None:
        """Look for signs of life."""
        runner = self.runner
        if not self.up or runner is None or runner.state is not RunnerState.RUNNING:
            return
        stat = self.run.system.read_stat(runner.pid)
        owes = self.finishing or any(
            each.settling or (each.segments and self.name not in each.wired)
            for each in self.run.agents.values()
        )
        if self._pulse.beats(stat.state, stat.cpu_ticks, self._heard, owes=owes) or self.waits:
            self.run.arm(runner, Phase.IDLE, SILENCE_MAX_S)
        late = self.run.deadlines.lateness.after(self._finish_at)
        took_s = self.run.now() - self._finish_at - late if self.finishing else 0.0
        if why := self._pulse.fails(ending=bool(self.run.reason), finishing_s=took_s):
            runner.hang(why)
