"""The recorder as the kernel sees it: the server that commits what the agents' rings hold.

It counts what is recorded, so its words make the report; without it nobody empties the rings, so
its end is the end of the run. Its cursors are in its outboxes, so that one which is started again
goes on where it was. A full disk stops its clock: the recorder itself says when that has lasted too
long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec.engine.attendant import AttendantServer
from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame, Role
from dsec.kernel.machine import AgentEvent, AgentState
from dsec.kernel.runner import Runner
from dsec.report import Death

if TYPE_CHECKING:
    from dsec.kernel.supervisor import Supervisor

LAST_LIFE_S = 1.0


class Recorder(AttendantServer):
    """The recorder of one run.

    Attributes:
        disk_full: why it can't write at the moment, and waits; empty if it can.
    """

    def __init__(self, run: Supervisor) -> None:
        super().__init__(run, "recorder", Role.RECORDER, run.spec.recorder_image)
        self.disk_full, self._last = "", False

    def first(self) -> AnyFrame:
        """Where to write and how."""
        spec = self.run.spec
        return frames.RecorderStart(
            spec.run_dir, spec.record_format, spec.disk_wait_s, spec.name, spec.seed
        )

    def last(self) -> AnyFrame:
        """Whether the run may go on in another life."""
        agents = self.run.agents.values()
        done = all(each.state is AgentState.DONE for each in agents)
        return frames.Finish(keep=bool(self.run.reason) or not done)

    def make(self, epoch: int) -> Runner:
        """One incarnation, which knows nothing of a full disk yet."""
        self.disk_full = ""
        return super().make(epoch)

    @property
    def waits(self) -> bool:
        """For room on the disk."""
        return bool(self.disk_full)

    def ended(self, death: Death | None) -> None:
        """It is over. Where that is because it died too often it gets one last life, to take what
        the fenced writers have left, so that recording and totals are whole all the same."""
        run = self.run
        if death is not None and self.was_up and self.over == death.cause and not self._last:
            self._last, self.over = True, ""
            self._failed(death, settling=False)
            run.later(LAST_LIFE_S, self.start)
            return
        done = self.runner.said.get(frames.RecorderDone) if self.runner is not None else None
        if death is not None:
            self._failed(death, settling=True)
        elif done is not None:
            run.report.files = done.files
            if done.message:
                run.hooks.note("recorder", message=done.message)
        run.leave(self)

    def _failed(self, death: Death, *, settling: bool) -> None:
        """Nobody empties the rings any more, so nobody could drain. Agents that settle may wait
        for a last life."""
        whose = "machine" if death.machines_fault else "internal"
        self.run.fail(whose, f"the recorder is gone: {death.cause}")
        self.run.end_agents(AgentEvent.FENCE, settling)

    def heard(self, frame: AnyFrame) -> bool:
        """Take what it says of the agents and of the disk."""
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
            case frames.Finished() if frame.agent in run.agents:
                run.agents[frame.agent].finished = frame
                self.done_with(run.agents[frame.agent])
            case _:
                return False
        return True

    def settle(self, agent: str) -> None:
        """It sees the end of a stream by itself, but not that there will be none."""
        each = self.run.agents[agent]
        if each.abandoned and self.name not in each.served:
            self.tell(frames.Abandon(agent))

    def tick(self) -> None:
        """Don't wait for a full disk when nothing else is left to wait for."""
        super().tick()
        run = self.run
        settled = all(agent.settling or agent.ended for agent in run.agents.values())
        if self.disk_full and run.reason and settled:
            run.fail("machine", f"the disk is full: {self.disk_full}")
            run.drop(self)
