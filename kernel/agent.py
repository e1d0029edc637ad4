"""One agent: the shell around the agent table of machine.py.

Owns its runners and its segments. It never looks into a segment: it makes them, hands each role
its own for writing and the others for reading, and keeps the descriptors so that a server that
was started again can have them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dsec import tree
from dsec.errors import FrameError, LocalError, MachineError
from dsec.failover import plan
from dsec.failover.detect import Idle, Overdue, Stillness
from dsec.failover.diagnose import writer_of
from dsec.ipc import frames, segment
from dsec.ipc.frames import AnyFrame, Phase, Role
from dsec.ipc.logs import file_name
from dsec.kernel.machine import AGENT, AgentEvent, AgentState, RunnerEvent, RunnerState
from dsec.kernel.recovery import Recovery
from dsec.kernel.runner import Runner
from dsec.report import AgentReport, Death
from dsec.spec import AgentSpec

if TYPE_CHECKING:
    from dsec.kernel.supervisor import Supervisor

CATCH_UP_S = 1.0  # what a reward runner has to answer what was published before a fault


class Agent:
    """One agent of a run.

    Attributes:
        wired, served: the servers that read its rings; those that have all they want of it.
        abandoned: its runners are gone, and not as they should.
        unreadable: a server can't read what one of them wrote.
        finished: what the recorder said at the end.
        deaths: its runners', complete once it has ended.
    """

    def __init__(self, spec: AgentSpec, run: Supervisor) -> None:
        self.name, self.spec = spec.name, spec
        self.state = AgentState.WAITING
        self.report = AgentReport(spec.name, spec.group)
        self.runners: dict[Role, Runner] = {}
        self.segments: dict[Role, segment.Segment] = {}
        self.wired, self.served, self.abandoned = set[str](), set[str](), False
        self.unreadable = False
        self.finished: frames.Finished | None = None
        self.deaths: list[Death] = []
        self._run = run
        self.spaces, self.policy_learns = b"", False
        self._parts = {each.role: each for each in tree.forked(spec)}
        self._still: dict[Role, Stillness] = defaultdict(Stillness)
        self._ring_bytes = dict[int, int]()
        self._living = dict[Runner, None]()  # all incarnations that must be reaped, in their order
        self._epochs: dict[Role, int] = defaultdict(int)
        self._recovery: Recovery | None = None  # from Go on

    @property
    def ended(self) -> bool:
        """Nothing more comes of it."""
        return self.state in (AgentState.DONE, AgentState.QUARANTINED)

    @property
    def settling(self) -> bool:
        """No process of it is left, and a server is not yet done with it."""
        return self.state in (AgentState.SETTLING, AgentState.ABANDONING)

    @property
    def kept(self) -> dict[Role, segment.Segment]:
        """What its roles keep of their states, in memory files that nobody here looks into."""
        return self._recovery.kept if self._recovery is not None else {}

    def apply(self, event: AgentEvent) -> None:
        """Let `event` happen; the table says what follows, if anything does."""
        self.state, actions = AGENT[self.state][event]
        for action in actions:
            self._act(action)
        if self.report.enter(self.state.name.lower()):
            self._run.changed(self)

    def fail(self, death: Death) -> None:
        """A runner died, or can't be."""
        self.deaths.append(death)
        late = death.phase is Phase.CLOSE and not self.unreadable
        self.apply(AgentEvent.FAULT_LATE if late else AgentEvent.FAULT)
        self._run.faulted(self, death)

    def wire_frame(
        self, role: Role, epoch: int = 0, beside: Sequence[segment.Segment] = ()
    ) -> tuple[frames.Wire, list[int]]:
        """The Wire frame for `role` and the descriptors beside it, which the caller closes, with
        those of `beside` at their end. Its own records will carry `epoch`."""
        refs, fds = self._run.system.hand_out(self.segments.values(), role, epoch, beside)
        each = self.spec
        numbers = each.num_envs, each.group, each.first, each.chain
        return frames.Wire(self.name, self.spaces, refs, *numbers), fds

    def make(self, role: Role) -> Runner:
        """One more incarnation of a role, which is not forked yet."""
        each, epoch = self._parts[role], self._epochs[role]
        self._epochs[role] += 1
        start = msgspec.structs.replace(each.start, epoch=epoch)
        return Runner(self._run, self, self.name, role, start, each.deadline_s, epoch)

    def fork(self, runner: Runner, urgent: bool = False) -> None:
        """Have it forked; `urgent`: before all that wait for that."""
        self._living[runner] = None
        self._run.zygotes[self._parts[runner.role].image].fork(runner, urgent)

    def adopt(self, runner: Runner) -> None:
        """A clone is our child now."""
        self._living[runner] = None
        runner.inherit()

    # ------------------------------------------------------------ what its runners tell (Owner)

    def holding(self, runner: Runner) -> None:
        """A runner waits for Wire; the last one to do so brings the agent on."""
        if self._recovery is not None:
            self._recovery.holding(runner)
            return
        if self.state is AgentState.FENCING:
            self._excuse(runner)
        if (said := runner.said.get(frames.Constructed)) is not None:
            self.spaces, self._ring_bytes = said.spaces, said.ring_bytes
        if self._all_in(RunnerState.HOLDING):
            self.apply(AgentEvent.CONSTRUCTED)

    def ready(self, runner: Runner) -> None:
        """A runner waits for Go, or for Resume."""
        if self._recovery is not None:
            self._recovery.tell(runner.role, plan.Event.TAKEN)
            return
        if runner.role is Role.POLICY:
            self.policy_learns = runner.said[frames.Ready].learns
        self.look_ready()

    def look_ready(self) -> None:
        """Go on if all runners are ready, and all servers, too."""
        if self._all_in(RunnerState.READY) and self.wired >= self._run.servers.keys():
            self._run.ready(self)

    def look_served(self) -> None:
        """A server has taken up, or finished, this agent's stream; or it is gone."""
        if self.state is AgentState.WIRING:
            self.look_ready()
        if self.settling and (not self.segments or self.served >= self._run.servers.keys()):
            self.apply(AgentEvent.FINISHED)

    def corrupt(self, message: str) -> None:
        """A server can't read one of its rings: whoever writes that one is at fault."""
        writer = self.runners.get(writer_of(message) or Role.ENV, self._all()[0])
        cause, self.unreadable = f"wrote what it may not: {message}", True
        if writer.state is RunnerState.GONE:
            self.fail(writer.blamed(cause, "corrupt"))
        else:
            writer.hang(cause, "corrupt")

    def lost(self, runner: Runner, death: Death) -> None:
        """A runner won't go on; its death is not complete."""
        if self._recovery is not None:
            self._recovery.lost(runner, death)

    def faulted(self, runner: Runner, death: Death) -> None:
        """A runner died."""
        if self._recovery is None or not self._recovery.faulted(runner, death):
            self.fail(death)

    def left(self, runner: Runner) -> None:
        """A runner is gone."""
        self._living.pop(runner, None)
        if (said := runner.said.get(frames.Done)) is not None:
            self.report.metrics.update(said.metrics)
        self._look_gone()

    def frame(self, runner: Runner, frame: AnyFrame, fds: Sequence[int]) -> bool:
        """Beyond what its table knows a runner speaks of how it protects its state, or would."""
        if self._recovery is not None:
            return self._recovery.frame(runner, frame, fds)
        if not (self._run.spec.dry and isinstance(frame, frames.Kept)):
            return False
        if frame.protection is not None:
            self._run.report.protect(self.name, runner.role, frame.protection)
        return True

    def drain(self, role: Role) -> None:
        """Have a role end at the next boundary; one that is away does so when it is back."""
        self.runners[role].order(RunnerEvent.DRAIN, frames.Drain(self._run.reason))

    def _excuse(self, runner: Runner) -> None:
        runner.order(RunnerEvent.EXCUSE, frames.Drain("a peer is at fault"))

    def idle(self, runner: Runner, idle: Idle) -> None:
        """Find out why a runner is idle for longer than any of its phases may last."""
        away = self._recovery is not None and self._recovery.away
        gone = (RunnerState.CLOSING, RunnerState.GONE)
        ended = not away and any(each.state in gone for each in self._all())
        served = not any(server.holds_back for server in self._run.servers.values())
        state = self._run.system.read_stat(runner.pid).state
        if why := self._still[runner.role].judge(state, idle, ended=ended and served):
            runner.hang(why)

    def _all(self) -> list[Runner]:
        return list(self.runners.values())

    def _all_in(self, state: RunnerState) -> bool:
        return all(runner.state is state for runner in self.runners.values())

    def _look_gone(self) -> None:
        if self._recovery is not None and self._recovery.away:
            return
        if self._all_in(RunnerState.GONE):
            for spare in tuple(self._living):
                spare.apply(RunnerEvent.FENCE)
            if not self._living:
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
                    runner.order(RunnerEvent.GO, frames.Go(self.policy_learns))
                self._recovery = Recovery(self, run)
                self._recovery.begin()
            case "await" | "drain":
                run.arm(self, Phase.CLOSE, run.spec.drain_timeout_s)
                if action == "await":
                    return
                for role in self.runners if run.spec.dry else tree.drained(self.spec):
                    if self._recovery is not None:
                        self._recovery.tell(role, plan.Event.DRAIN)
                    self.drain(role)
            case "cut" | "fence":
                if self._recovery is not None:
                    self._recovery.close()
                for runner in dict.fromkeys((*self._all(), *self._living)):
                    rewards = runner.role is Role.REWARD and runner.state is RunnerState.RUNNING
                    if action == "cut" and rewards:
                        runner.order(RunnerEvent.DRAIN, frames.Drain("a peer died", fenced=True))
                        run.later(CATCH_UP_S, runner.apply, RunnerEvent.FENCE)
                    elif run.spec.dry and self.deaths and runner.outbox is None:
                        self._excuse(runner)
                        run.later(run.spec.drain_timeout_s, runner.apply, RunnerEvent.FENCE)
                    else:
                        runner.apply(RunnerEvent.FENCE)
                self._look_gone()
            case "settle" | "abandon":
                run.deadlines.drop(self)
                if self._recovery is not None:
                    self._recovery.close()  # or a spare that was due would be made for nobody
                self.abandoned = action == "abandon" and bool(self.segments)
                for server in run.servers.values() if self.segments else ():
                    server.settle(self.name)
                self.look_served()
            case "close":
                self._close()
            case _:
                raise AssertionError(f"no table has {action}")

    def _fork(self) -> None:
        self.runners = {role: self.make(role) for role in self._parts}
        for runner in self._all():
            self.fork(runner)

    def _wire(self) -> None:
        run = self._run
        try:
            for role in tree.writers(self.spec, {each.role for each in run.servers.values()}):
                name = f"dsec:{file_name(self.name)}:{role.name.lower()}"
                size = self._ring_bytes.get(role, 0)
                self.segments[role] = run.system.create_segment(name, role, size, epoch=0)
            if len(self.runners) < len(self.spec.runners):
                self.policy_learns = run.hooks.wired(self.name, self.segments, self.spaces)
            for role, runner in self.runners.items():
                runner.outbox = self.segments[role]
                runner.order(RunnerEvent.WIRE, *self.wire_frame(role))
            for server in run.servers.values():
                server.wire(self.name)
        except MachineError as error:
            self._close_segments()
            run.fail("machine", str(error))  # which drains the run, and this agent with it
        except (LocalError, FrameError) as error:
            self._close_segments()
            self.runners[Role.ENV].hang(f"asked for impossible rings ({error})", "protocol")

    def _close(self) -> None:
        self.release()
        self.deaths = self.report.close(self.finished, self.deaths)
        for death in self.deaths:
            self._run.died(death)

    def release(self) -> None:
        """Close every descriptor; a second time does nothing."""
        for runner in self._all():
            runner.release()
        if self._recovery is not None:
            self._recovery.release()
        self._close_segments()

    def _close_segments(self) -> None:
        for each in self.segments.values():
            each.close()
        self.segments = {}
