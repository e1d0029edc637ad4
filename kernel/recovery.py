"""An agent's failover, carried out: the shell around the plan of failover/plan.py.

Owns who sits where beside the incumbents that the agent knows: successors and standbys; and the
descriptors of the state that incumbents keep, which are handed on and never looked into.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsec.errors import PeerError
from dsec.failover import plan, story
from dsec.failover.plan import Do, Event, State, why_final
from dsec.ipc import frames, segment
from dsec.ipc.frames import AnyFrame, Role
from dsec.kernel.machine import AgentEvent, RunnerEvent, RunnerState
from dsec.kernel.runner import Runner
from dsec.report import Death

if TYPE_CHECKING:
    from dsec.kernel.agent import Agent
    from dsec.kernel.supervisor import Supervisor


LOOK_S = 0.001  # the shortest that the loop's clock knows


class _Seat:
    def __init__(self) -> None:
        self.successor: Runner | None = None
        self.standby: Runner | None = None
        self.lost: dict[Runner, story.Story] = {}  # had the seat, or were to have it; unreaped
        self.fenced: set[Runner] = set()  # of those
        self.kept = self.handed = segment.Segment(-1, 0, 0, 0)  # handed: the successor has it
        self.aside = segment.Segment(-1, 0, 0, 0)  # kept for atoms only
        self.story: story.Story | None = None
        self.truncate = False


def _newer(kept: segment.Segment) -> tuple[bool, int]:
    return kept.fd >= 0, kept.epoch


class Recovery:
    """The failover of one agent, from Go on."""

    def __init__(self, agent: Agent, run: Supervisor) -> None:
        self._agent, self._run, spec = agent, run, agent.spec
        self._seats = {role: _Seat() for role in agent.runners}
        seats = {role: plan.Seat() for role in agent.runners}
        self._plan = plan.Plan(spec.restarts_max, spec.restarts_period_s, seats)

    @property
    def away(self) -> bool:
        """Some role is being replaced."""
        return self._plan.away

    @property
    def kept(self) -> dict[Role, segment.Segment]:
        """What roles keep of their states for atoms, the latest incarnation each: aside, if there
        is something."""
        newest = {r: max(s.aside, s.kept, key=_newer) for r, s in self._seats.items()}
        return {role: kept for role, kept in newest.items() if kept.fd >= 0}

    def tell(self, role: Role, event: plan.AnyEvent) -> None:
        """Let `event` happen to a role, and do what follows."""
        was, now = self.away, self._run.now()
        self._plan, acts = plan.decide(self._plan, role, event, now, random.random())
        if self.away and not was:
            self._agent.apply(AgentEvent.AWAY)
        for act in acts:
            self._act(role, *act)
        if was and not self.away:
            self._agent.apply(AgentEvent.BACK)

    def begin(self) -> None:
        """The agent runs: protect its roles."""
        for role, runner in self._agent.runners.items():
            ready = runner.said[frames.Ready]
            self._agent.report.holds(role, ready)
            self._protected(role, ready.protection)

    def spare(self, role: Role) -> bool:
        """It is this role's turn to make a spare. Return whether it does."""
        self.tell(role, Event.SPARE_TURN)
        return self._seats[role].standby is not None

    def close(self) -> None:
        """The agent ends: nothing is replaced any more."""
        for role, seat in self._seats.items():
            self.tell(role, Event.CLOSE)
            self._agent.deaths += seat.story.deaths if seat.story is not None else []
            seat.story = None

    # ------------------------------------------------------------ what runners tell

    def holding(self, runner: Runner) -> None:
        """It is constructed, and waits: the successor, or a spare."""
        seat = self._seats[runner.role]
        said = runner.said.get(frames.Constructed)
        self._run.turns.done((self, runner.role))
        if said is not None and said.spaces != self._agent.spaces:
            runner.hang("was constructed with other spaces than its predecessor", "protocol")
        elif runner is seat.successor:
            self.tell(runner.role, Event.READY)
        elif runner is seat.standby:
            self.tell(runner.role, Event.STANDBY_UP)

    def lost(self, runner: Runner, death: Death) -> None:
        """It won't go on. Its death is not complete yet."""
        role, seat = runner.role, self._seats[runner.role]
        if runner in (seat.standby, seat.successor):
            self._run.turns.done((self, role))
        if runner is seat.standby:
            seat.standby = None
            self._run.hooks.note("standby_lost", name=runner.name, cause=death.cause)
            self.tell(role, Event.STANDBY_LOST)
        elif runner in (seat.successor, self._agent.runners[role]):
            if runner is seat.successor:
                seat.successor = None
            seat.lost[runner] = seat.story = seat.story or story.Story(self._run.now(), death.cause)
            self._run.hooks.away(self._agent.name, role)
            self.tell(role, plan.Lost.of(death))

    def faulted(self, runner: Runner, death: Death) -> bool:
        """It is reaped, and its death complete. False: that is the end of the agent, too."""
        role, seat = runner.role, self._seats[runner.role]
        fenced, told = runner in seat.fenced, seat.lost.pop(runner, None)
        seat.fenced.discard(runner)
        if told is not None:
            told.reaped(death)
            self._finish(seat, told)
        if self._plan.seats[role].state is State.OVER:
            return runner is not self._agent.runners[role]
        if told is not None:
            if not fenced:
                told.fenced(self._run.now())
            self._adopt(seat)
            self.tell(role, plan.Reaped("" if fenced else why_final(death), fenced))
        return True

    def _finish(self, seat: _Seat, told: story.Story) -> None:
        """Tell of a failover when it is over and all of its deaths are complete."""
        if told.is_over and told not in seat.lost.values():
            self._run.recovered(told.failover())

    def _look_fenced(self, role: Role) -> None:
        """See whether those who crash have come so far that they write nothing any more. A clone is
        a child of one of them until that one is reaped, and can't be watched before."""
        seat, run = self._seats[role], self._run
        if seat.successor is None or not run.reaper.watches(seat.successor.pid):
            return
        # Nothing else is wrong with these: they may have a successor, whatever more comes out.
        crashing = [each for each in seat.lost if each.crashes and each not in seat.fenced]
        for lost in filter(lambda each: run.reaper.past_writing(each.pid), crashing):
            seat.fenced.add(lost)
            seat.lost[lost].fenced(run.now())
            self.tell(role, Event.FENCED)
        if self._plan.seats[role].state is State.TAKEN and not seat.fenced.issuperset(crashing):
            run.later(LOOK_S, self._look_fenced, role)

    def frame(self, runner: Runner, frame: AnyFrame, fds: Sequence[int]) -> bool:
        """Take what a runner says of how it protects its state."""
        role, seat = runner.role, self._seats[runner.role]
        if not isinstance(frame, frames.Kept | frames.Clone):
            return False
        runner.extend()
        if isinstance(frame, frames.Kept):
            if runner.state is not RunnerState.RUNNING and runner not in seat.lost:
                return True  # a successor that has kept nothing yet doesn't replace what there is
            if frame.protection is not None:
                self._protected(role, frame.protection)
            return not fds or self._keep(runner, seat, frame, fds)
        if len(fds) != 1 or runner in seat.lost:
            return len(fds) == 1
        system, parent = self._run.system, self._run.system.read_stat(frame.pid).parent
        mine = parent in (runner.pid, system.getpid()) and not self._run.reaper.watches(frame.pid)
        if runner is seat.standby or not mine:
            return not parent  # gone already; else it names somebody whom we would kill for it
        if seat.standby is not None:
            seat.standby.release()
        seat.standby = self._agent.make(role)
        seat.standby.awaken(frame.pid, self._run.system.socket_of(fds[0]))
        self.tell(role, Event.STANDBY_UP)
        return True

    def _keep(self, runner: Runner, seat: _Seat, said: frames.Kept, fds: Sequence[int]) -> bool:
        try:
            what = fds[0], said.size, runner.role, runner.epoch
            kept = self._run.system.adopt_segment(*what)
        except PeerError:
            return False
        if said.inheritable:
            seat.kept.close()
            seat.kept = kept
        else:
            seat.aside.close()
            seat.aside = kept
        self._run.hooks.kept(self._agent.name, runner.role, kept)
        for server in self._run.servers.values() if self.kept[runner.role] is kept else ():
            server.kept(self._agent.name, runner.role, kept)
        return True

    def _protected(self, role: Role, protection: frames.Protection) -> None:
        if differs := self._run.report.protect(self._agent.name, role, protection):
            self._run.hooks.note("not_exact", name=self._agent.runners[role].name, why=differs)
        else:
            self.tell(role, plan.Protected(protection.level))

    def release(self) -> None:
        """Close every descriptor; a second time does nothing."""
        for seat in self._seats.values():
            seat.kept.close()
            seat.aside.close()
            for runner in filter(None, (seat.successor, seat.standby, *seat.lost)):
                runner.release()

    # ------------------------------------------------------------ the plan's acts

    def _act(self, role: Role, do: Do, value: float | str | bool) -> None:
        seat, run = self._seats[role], self._run
        match do:
            case Do.FORK:
                if seat.standby is not None:  # a clone, which is not wanted
                    seat.standby.release()
                    seat.standby = None
                seat.successor = self._agent.make(role)
                self._agent.fork(seat.successor, urgent=True)
            case Do.QUEUE:
                run.turns.ask((self, role))
                run.later(0.0, run.admit)
            case Do.SPARE:
                seat.standby = self._agent.make(role)
                self._agent.fork(seat.standby)
            case Do.ADOPT | Do.PROMOTE | Do.TAKE:
                if do is not Do.TAKE:
                    seat.successor, seat.standby = seat.standby, None
                if do is not Do.ADOPT:
                    self._take_over(role, bool(value))
            case Do.REST | Do.LATER:
                then = Event.RESTED if do is Do.REST else Event.SPARE_DUE
                run.later(float(value), self.tell, role, then)
            case Do.HURRY:
                for lost in (each for each in seat.lost if frames.Crashing in each.said):
                    run.later(float(value), lost.apply, RunnerEvent.OVERDUE)
                run.later(0.0, self._look_fenced, role)
            case Do.RESUME:
                self._resume(role)
            case Do.DRAIN:
                self._agent.drain(role)
            case Do.GIVE_UP:
                assert seat.story is not None, "who is given up was lost"
                *others, death = seat.story.given_up(str(value))
                seat.story = None
                self._agent.deaths += others
                self._agent.fail(death)

    def _take_over(self, role: Role, truncate: bool) -> None:
        seat, agent = self._seats[role], self._agent
        runner = seat.successor
        assert runner is not None and seat.story is not None, "a seat that was lost is taken over"
        beside = [seat.kept] if seat.kept.fd >= 0 else []
        wire, fds = agent.wire_frame(role, runner.epoch, beside)
        seat.handed, kept = seat.kept, len(fds) - 1 if beside else -1
        seat.truncate, runner.outbox = truncate, agent.segments[role]
        self._adopt(seat)
        frame = frames.Takeover(wire, kept, truncate, seat.story.cause, agent.policy_learns)
        runner.order(RunnerEvent.TAKEOVER, frame, fds)

    def _adopt(self, seat: _Seat) -> None:
        """A clone is its parent's child until that one is reaped, be it a successor, too. Who
        counts as fenced before that has none."""
        reaped = seat.fenced.issuperset(seat.lost)
        if seat.successor is not None and seat.successor.pid and reaped:
            self._agent.adopt(seat.successor)

    def _resume(self, role: Role) -> None:
        seat, run = self._seats[role], self._run
        runner, told = seat.successor, seat.story
        assert runner is not None and told is not None, "who resumes has taken over"
        self._agent.runners[role], seat.successor, seat.story = runner, None, None
        fds = [run.system.readonly(seat.kept.fd)] if seat.kept is not seat.handed else []
        runner.order(RunnerEvent.RESUME, frames.Resume(len(fds) - 1), fds)
        said = runner.said[frames.TakenOver]
        told.resumed(run.now(), runner.epoch, said, seat.truncate)
        self._finish(seat, told)
