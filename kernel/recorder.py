"""The recorder as the kernel sees it: a server that joins every agent's rings.

One that dies is started again and gets the segments of all agents that it hasn't finished: its
cursors are in its outboxes, so it goes on where it was.

While it owes an answer (Wired, Finished, RecorderDone), it may be without a sign of life for
SILENCE_MAX_S, and FINISH_MAX_S bounds even a lively end. A full disk stops the clock: the recorder
itself says when that has lasted too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsec.failover.detect import Pulse
from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame, Phase, Role
from dsec.ipc.proc import read_stat
from dsec.kernel.machine import RunnerState
from dsec.kernel.runner import Runner
from dsec.kernel.spawn import Server
from dsec.report import Death

if TYPE_CHECKING:
    from dsec.kernel.agent import Agent
    from dsec.kernel.supervisor import Supervisor

SILENCE_MAX_S = 30.0
LAST_LIFE_S = 1.0


class Recorder(Server):
    """The recorder of one run.

    Attributes:
        disk_full: why it can't write at the moment, and waits; empty if it can.
        finishing: it has been told that all agents are finished.
    """

    def __init__(self, run: Supervisor) -> None:
        super().__init__(run, "recorder")
        self.disk_full, self.finishing = "", False
        self._finish_at, self._heard = 0.0, 0
        self._pulse, self._last = Pulse(), False

    def make(self, epoch: int) -> Runner:
        """One incarnation, with what it gets first."""
        self.disk_full, self.finishing = "", False
        spec = self.run.spec
        start = frames.RecorderStart(
            spec.run_dir, spec.record_format, spec.disk_wait_s, spec.name, spec.seed
        )
        return Runner(self.run, self, self.name, Role.RECORDER, start, {}, epoch)

    def launch(self, runner: Runner) -> None:
        """Have it forked as the agents' runners are."""
        self.run.zygotes[self.run.spec.recorder_image].fork(runner)

    def serving(self) -> None:
        """Tell it of every agent that it hasn't finished, for the first time or anew."""
        for agent in self.run.agents.values():
            if agent.segments and agent.finished is None and not agent.ended:
                self.wire(agent)
        self.run.look_over()

    def faulted(self, runner: Runner, death: Death) -> None:
        """It died; that is a death of the run, unless nobody waits for it any more, or there was
        no process: then its zygote has the cause."""
        if not self.over:
            super().faulted(runner, death)
            if death.pid:
                self.run.died(death)

    def ended(self, death: Death | None) -> None:
        """It is over. Where that is because it died too often it gets one last life, to take what
        the fenced writers have left, so that recording and totals are whole all the same."""
        if death is not None and self.was_up and self.over == death.cause and not self._last:
            self._last, self.over = True, ""
            self.run.recorder_failed(death, settling=False)
            self.run.later(LAST_LIFE_S, self.start)
            return
        done = self.runner.said.get(frames.RecorderDone) if self.runner is not None else None
        self.run.recorder_ended(done, death)

    def wire(self, agent: Agent) -> None:
        """Hand it an agent's segments. One that is not up yet gets them when it is."""
        if self.up:
            self._tell(*agent.wire_frame(Role.RECORDER))
            if agent.abandoned:
                self.abandon(agent)

    def abandon(self, agent: Agent) -> None:
        """Have it take what there is of an agent whose runners are gone."""
        self._tell(frames.Abandon(agent.name))

    def finish(self) -> None:
        """All agents are finished: let it close and convert the recording."""
        if self.up and not self.finishing:
            self.finishing, self._finish_at = True, self.run.now()
            self._tell(frames.Finish())

    def _tell(self, frame: AnyFrame, fds: Sequence[int] = ()) -> None:
        if self.up and self.runner is not None:
            self.runner.send(frame, fds)

    def frame(self, runner: Runner, frame: AnyFrame, fds: Sequence[int]) -> bool:
        """Take what it says of the agents and of the disk."""
        self._heard += 1
        run = self.run
        match frame:
            case frames.Progress():
                for each in frame.agents:
                    if (agent := run.agents.get(each.agent)) is not None:
                        agent.report.count(each)
                run.hooks.progress(run.report)
            case frames.DiskFull():
                state = "lost" if frame.lost else "lasting" if frame.lasting else "full"
                self.disk_full = frame.message if state == "full" else ""
                run.hooks.disk(state, frame.message)
                if state != "full":
                    run.fail("machine", frame.message)
            case frames.DiskOk():
                self.disk_full = ""
                run.hooks.disk("ok", "")
            case frames.Corrupt() if frame.agent in run.agents:
                run.agents[frame.agent].corrupt(frame.message)
            case frames.Wired() | frames.Finished() if frame.agent in run.agents:
                run.agents[frame.agent].recorded(frame)
            case _:
                return False
        return True

    def hang_up(self) -> None:
        """End its channel: it writes what it can in the second that it has, and leaves."""
        self.over, self.up = "no longer waited for", False
        if self.runner is not None:
            self.runner.release()

    @property
    def alive(self) -> bool:
        """It has not left yet."""
        return self.runner is not None and self.runner.state is not RunnerState.GONE

    def tick(self) -> None:
        """Look for signs of life; call it a few times a second."""
        runner = self.runner
        if not self.up or runner is None or runner.state is not RunnerState.RUNNING:
            return
        stat = read_stat(runner.pid)
        agents = self.run.agents.values()
        owes = any(each.settling or (each.segments and not each.wired) for each in agents)
        owes = owes or self.finishing
        if self._pulse.beats(stat.state, stat.cpu_ticks, self._heard, owes=owes) or self.disk_full:
            self.run.arm(runner, Phase.IDLE, SILENCE_MAX_S)
        late = self.run.deadlines.lateness.after(self._finish_at)
        took_s = self.run.now() - self._finish_at - late if self.finishing else 0.0
        if why := self._pulse.fails(ending=bool(self.run.reason), finishing_s=took_s):
            runner.hang(why)
