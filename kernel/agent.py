"""One agent: the shell around the agent table of machine.py.

Owns its runners and its segments. It never looks into a segment: it makes them, hands each role
its own for writing and the others for reading, and keeps the descriptors so that a recorder that
was started again can have them again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from dsec.errors import FrameError, LocalError, MachineError
from dsec.failover.detect import Idle, Overdue, Stillness
from dsec.ipc import frames, segment
from dsec.ipc.frames import AnyFrame, Phase, Role
from dsec.ipc.logs import file_name
from dsec.ipc.proc import read_stat
from dsec.kernel import tree
from dsec.kernel.machine import AGENT, AgentEvent, AgentState, RunnerEvent, RunnerState
from dsec.kernel.runner import Runner
from dsec.report import AgentReport, Death
from dsec.spec import AgentSpec

if TYPE_CHECKING:
    from dsec.kernel.supervisor import Supervisor

CATCH_UP_S = 1.0  # what a reward runner has to answer what was published before a fault
_SAID = {
    AgentState.RUNNING: "running",
    AgentState.DONE: "done",
    AgentState.QUARANTINED: "quarantined",
}


class Agent:
    """One agent of a run.

    Attributes:
        wired, abandoned: the recorder reads its rings; is to take what there is of it.
        finished: what the recorder said at the end.
        deaths: its runners', complete once it has ended.
    """

    def __init__(self, spec: AgentSpec, run: Supervisor) -> None:
        self.name, self.spec = spec.name, spec
        self.state = AgentState.WAITING
        self.report = AgentReport(spec.name, spec.group)
        self.runners: dict[Role, Runner] = {}
        self.segments: dict[Role, segment.Segment] = {}
        self.wired = self.abandoned = False
        self.finished: frames.Finished | None = None
        self.deaths: list[Death] = []
        self._run = run
        self._still: dict[Role, Stillness] = defaultdict(Stillness)
        self._spaces, self._ring_bytes = b"", dict[int, int]()
        self._policy_learns = False

    @property
    def ended(self) -> bool:
        """Nothing more comes of it."""
        return self.state in (AgentState.DONE, AgentState.QUARANTINED)

    @property
    def settling(self) -> bool:
        """No process of it is left, and the recorder is not yet done with it."""
        return self.state in (AgentState.SETTLING, AgentState.ABANDONING)

    def apply(self, event: AgentEvent) -> None:
        """Let `event` happen; the table says what follows, if anything does."""
        self.state, actions = AGENT[self.state][event]
        for action in actions:
            self._act(action)
        said = _SAID.get(self.state, self.report.state)
        if said != self.report.state:
            self.report.state = said
            self._run.changed(self)

    def fail(self, death: Death) -> None:
        """A runner died, or can't be."""
        self.deaths.append(death)
        self.apply(AgentEvent.FAULT_LATE if death.phase is Phase.CLOSE else AgentEvent.FAULT)
        self._run.faulted(self, death)

    def wire_frame(self, role: Role) -> tuple[frames.Wire, list[int]]:
        """The Wire frame for `role` and the descriptors beside it, which the caller closes."""
        refs: list[frames.SegmentRef] = []
        fds: list[int] = []
        for owner, each in self.segments.items():
            refs.append(frames.SegmentRef(each.role, each.size, each.epoch, len(fds)))
            fds.append(os.dup(each.fd) if owner is role else segment.readonly(each.fd))
        wire = frames.Wire(
            self.name, self._spaces, tuple(refs), self.spec.num_envs, None, self.spec.group
        )
        return wire, fds

    # ------------------------------------------------------------ what its runners tell (Owner)

    def holding(self, runner: Runner) -> None:
        """A runner waits for Wire; the last one to do so brings the agent on."""
        if (said := runner.said.get(frames.Constructed)) is not None:
            self._spaces, self._ring_bytes = said.spaces, said.ring_bytes
        if self._all_in(RunnerState.HOLDING):
            self.apply(AgentEvent.CONSTRUCTED)

    def ready(self, runner: Runner) -> None:
        """A runner waits for Go."""
        if runner.role is Role.POLICY:
            self._policy_learns = runner.said[frames.Ready].learns
        self.look_ready()

    def look_ready(self) -> None:
        """Go on if all runners are ready, and the recorder, too."""
        if self._all_in(RunnerState.READY) and (self.wired or self._run.recorder is None):
            self._run.ready(self)

    def recorded(self, said: frames.Wired | frames.Finished) -> None:
        """The recorder has taken up, or finished, this agent's stream."""
        if isinstance(said, frames.Wired):
            self.wired = True
            self.look_ready()
        else:
            self.finished = said
            self.apply(AgentEvent.FINISHED)

    def corrupt(self, message: str) -> None:
        """The recorder can't read one of its rings: whoever writes that one is at fault."""
        named = [each for each in self._all() if each.role.name.lower() in message]
        (named or self._all())[0].hang(f"wrote what it may not: {message}", "protocol")

    def faulted(self, runner: Runner, death: Death) -> None:
        """A runner died."""
        self.fail(death)

    def left(self, runner: Runner) -> None:
        """A runner is gone."""
        if (said := runner.said.get(frames.Done)) is not None:
            self.report.metrics.update(said.metrics)
        self._look_gone()

    def frame(self, frame: AnyFrame) -> bool:
        """No runner of an agent says more than its table knows."""
        return False

    def idle(self, runner: Runner, idle: Idle) -> None:
        """Find out why a runner is idle for longer than any of its phases may last."""
        ended = any(r.state in (RunnerState.CLOSING, RunnerState.GONE) for r in self._all())
        recorder = self._run.recorder
        served = recorder is None or (recorder.up and not recorder.disk_full)
        state = read_stat(runner.pid).state
        if why := self._still[runner.role].judge(state, idle, ended=ended and served):
            runner.hang(why)

    def _all(self) -> list[Runner]:
        return list(self.runners.values())

    def _all_in(self, state: RunnerState) -> bool:
        return all(runner.state is state for runner in self.runners.values())

    def _look_gone(self) -> None:
        if self._all_in(RunnerState.GONE):
            self.apply(AgentEvent.GONE)

    # ------------------------------------------------------------ the table's actions

    def late(self, verdict: Overdue | Idle) -> None:
        """It did not drain in time."""
        self._run.hooks.note("drain_timeout", agent=self.name)
        self.apply(AgentEvent.FENCE)

    def _act(self, action: str) -> None:
        run = self._run
        match action:
            case "fork":
                self._fork()
            case "wire":
                self._wire()
            case "go" if run.spec.dry:
                self.apply(AgentEvent.DRAIN)
            case "go":
                run.went_at = run.went_at or run.now()
                for runner in self._all():
                    runner.order(RunnerEvent.GO, frames.Go(self._policy_learns))
            case "await" | "drain":
                run.arm(self, Phase.CLOSE, run.spec.drain_timeout_s)
                if action == "await":
                    return
                for role in self.runners if run.spec.dry else tree.drained(self.spec):
                    self.runners[role].order(RunnerEvent.DRAIN, frames.Drain(run.reason))
            case "cut" | "fence":
                for runner in self._all():
                    rewards = runner.role is Role.REWARD and runner.state is RunnerState.RUNNING
                    if action == "cut" and rewards:
                        runner.order(RunnerEvent.DRAIN, frames.Drain("a peer died", fenced=True))
                        run.later(CATCH_UP_S, runner.apply, RunnerEvent.FENCE)
                    else:
                        runner.apply(RunnerEvent.FENCE)
                self._look_gone()
            case "settle" | "abandon":
                run.deadlines.drop(self)
                if self.finished is not None or not self.segments or run.recorder is None:
                    self.apply(AgentEvent.FINISHED)
                elif action == "abandon":
                    self.abandoned = True
                    run.recorder.abandon(self)
            case "close":
                self._close()
            case _:
                raise NotImplementedError(action)

    def _fork(self) -> None:
        run = self._run
        for each in tree.forked(self.spec):
            start, limits = each.start, each.deadline_s
            self.runners[each.role] = Runner(run, self, self.name, each.role, start, limits)
        for each in tree.forked(self.spec):
            run.zygotes[each.image].fork(self.runners[each.role])

    def _wire(self) -> None:
        run = self._run
        try:
            for role in tree.writers(self.spec, run.recorder is not None):
                name = f"dsec:{file_name(self.name)}:{role.name.lower()}"
                size = self._ring_bytes.get(role, 0)
                self.segments[role] = segment.create(name, role, size, epoch=0)
            if len(self.runners) < len(self.spec.runners):
                self._policy_learns = run.hooks.wired(self.name, self.segments, self._spaces)
            for role, runner in self.runners.items():
                runner.outbox = self.segments[role]
                runner.order(RunnerEvent.WIRE, *self.wire_frame(role))
            if run.recorder is not None:
                run.recorder.wire(self)
        except MachineError as error:
            self._close_segments()
            run.fail("machine", str(error))  # which drains the run, and this agent with it
        except (LocalError, FrameError) as error:
            self._close_segments()
            self.runners[Role.ENV].hang(f"asked for impossible rings ({error})", "protocol")

    def _close(self) -> None:
        last, report = self.finished, self.report
        self.release()
        if last is not None:
            report.count(last)
            report.lost = last.lost
            self.deaths = [
                replace(d, seq_last=max(d.seq_last, last.seq_last), action_last=last.action_last)
                for d in self.deaths
            ]
        if self.deaths:
            report.death = self.deaths[0]
        for death in self.deaths:
            self._run.died(death)

    def release(self) -> None:
        """Close every descriptor; a second time does nothing."""
        for runner in self._all():
            runner.release()
        self._close_segments()

    def _close_segments(self) -> None:
        for each in self.segments.values():
            each.close()
        self.segments = {}
