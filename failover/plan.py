"""What to do when a runner of an agent is lost: the whole policy of failover. Pure.

Rule 1: every decision about successors, standbys and their order is in this file; the kernel only
carries out what comes out of `decide`. Rule 2: it knows no clock, no process and no descriptor.

Each role of an agent is a *seat*. Who holds it is the incumbent; who is to hold it next is the
successor; a *standby* (a spare that is constructed already, or a sleeping clone) waits beside it.
Seats are independent of each other, for a role whose peer is away just goes on waiting: several
that are lost at once need no order. What they share is the agent's budget of restarts.

An incarnation is LOST as soon as it is known that it won't go on (its signal handler said so, it
hangs, it has exited), and REAPED when the system says that nothing of it runs. Between the two its
successor restores and replays; but it may publish, RESUME, only when every earlier incarnation is
reaped, or FENCED: on its way out for good, with no instruction of its own to follow (guarantee G5).
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dsec.failover.diagnose import PEERS_FAULTS
from dsec.failover.intensity import backoff_s, request_restart
from dsec.ipc.frames import Phase, Role
from dsec.report import EXIT_PERMANENT, RECYCLED, Death

POISON_DEATHS = 2  # of the same step, without progress: then an env doesn't try it again
SPARES_MAX, SPARES_PERIOD_S = 5, 60.0  # a spare that keeps dying is done without for a while
SPARE_AFTER_S = 0.005  # to fork one takes the processor from the successor, which has more to do
CRASH_MORE_S = 0.002  # a crashed one writes its stacks until then, once its successor waits for it
SPARED = ("state", "replay")  # the levels that need a constructed spare

# UP: somebody serves, or did his work. RESTING: waits before the next try. COMING: the successor
# is made. TAKING: it restores and replays. TAKEN: it has; an earlier one isn't reaped yet. DOOMED:
# given up as soon as the lost one is reaped and its death is known. OVER: nothing follows.
State = enum.Enum("State", "UP RESTING COMING TAKING TAKEN DOOMED OVER")
Standby = enum.Enum("Standby", "NONE COMING UP")

# READY: the successor is constructed. TAKEN: it has restored and replayed. FENCED: a lost one that
# isn't reaped yet will execute nothing any more. RESTED: the time of a
# REST is over. SPARE_DUE: the time of a LATER is over. SPARE_TURN: after a QUEUE. STANDBY_*: of the
# spare or the clone. DRAIN: the agent is to end at its next boundary. CLOSE: the agent ends,
# whatever happens.
Event = enum.Enum(
    "Event", "READY TAKEN FENCED RESTED SPARE_DUE SPARE_TURN STANDBY_UP STANDBY_LOST DRAIN CLOSE"
)
_STANDBYS = (Event.SPARE_DUE, Event.SPARE_TURN, Event.STANDBY_UP, Event.STANDBY_LOST)

# FORK: make a successor. ADOPT: the spare that is being made becomes it. PROMOTE: so does the
# standby, and is told to take over. TAKE: the successor is told to. REST: say RESTED after `value`
# seconds. RESUME: the successor holds the seat, and may publish. DRAIN: tell it to. QUEUE: say
# SPARE_TURN when few others make a spare. SPARE: make one. LATER: say SPARE_DUE after `value`
# seconds. HURRY: whoever is lost may finish its report for `value` seconds more, and is killed
# then. GIVE_UP: the agent is at fault; `value` says why there is no successor, and is empty if
# there are none at all.
Do = enum.Enum("Do", "FORK ADOPT PROMOTE TAKE REST RESUME DRAIN QUEUE SPARE LATER HURRY GIVE_UP")


class Act(NamedTuple):
    """One thing to do. For PROMOTE and TAKE `value` says whether to truncate (see Takeover)."""

    do: Do
    value: float | str | bool = ""


class Lost(NamedTuple):
    """Who held the seat, or was to hold it, won't go on. `seq` is the record that it was at, -1 if
    unknown; `phase` what user code it was in; `killed`: by SIGKILL, which is somebody else's;
    `sent`: so was the signal that it died of, as its handler saw; `planned`: it was well, and
    stepped aside at a boundary."""

    seq: int
    phase: Phase
    killed: bool = False
    sent: bool = False
    planned: bool = False

    @classmethod
    def of(cls, death: Death) -> Lost:
        """What a death means here."""
        killed = death.kind == "signal" and death.signal == signal.SIGKILL
        planned = death.kind == RECYCLED
        return cls(death.seq_last, death.phase, killed, death.sent, planned)


class Reaped(NamedTuple):
    """A lost one is reaped. `final` says why it may have no successor; empty if it may. `fenced`:
    it was said to be so."""

    final: str
    fenced: bool = False


class Protected(NamedTuple):
    """The incumbent has told at which level it protects its state: see Protection."""

    level: str


AnyEvent = Event | Lost | Reaped | Protected


@dataclass(frozen=True, slots=True)
class Seat:
    """One role.

    Attributes:
        unreaped: lost incarnations that are not reaped.
        fenced: those of them that execute nothing any more.
        spare: a spare is wanted beside it.
        seq: the record at which the last one was lost that had served.
        strikes: losses in a row without progress, whatever their reason.
        fatal: those of them in user code, which will do the same again, by the record that they
            were at; -1: somewhere in what is done again, or in what precedes it.
        why: why it is doomed.
    """

    state: State = State.UP
    standby: Standby = Standby.NONE
    unreaped: int = 0
    fenced: int = 0
    spare: bool = False
    seq: int = -1
    strikes: int = 0
    fatal: Mapping[int, int] = field(default_factory=dict)
    draining: bool = False
    why: str = ""
    spare_stamps: tuple[float, ...] = ()

    @property
    def away(self) -> bool:
        """Nobody serves, and somebody will."""
        return self.state not in (State.UP, State.OVER)

    @property
    def poisoned(self) -> bool:
        """The same step killed its runner again and again."""
        return max(self.fatal.values(), default=0) >= POISON_DEATHS


@dataclass(frozen=True, slots=True)
class Plan:
    """The seats of one agent, and the restarts that count against its budget."""

    restarts_max: int
    period_s: float
    seats: Mapping[Role, Seat] = field(default_factory=dict)
    stamps: tuple[float, ...] = ()

    @property
    def away(self) -> bool:
        """Some role is being replaced."""
        return any(seat.away for seat in self.seats.values())


def why_final(death: Death) -> str:
    """Why whoever died so must have no successor, as a clause; empty if it may have one."""
    if death.exit_code == EXIT_PERMANENT:
        return f"exit code {EXIT_PERMANENT} asks for no restart"
    if death.kind == "corrupt" or (death.error and death.error.type in PEERS_FAULTS):
        return "its ring can't be read by a successor, either"
    if death.kind == "import" or (death.error and death.error.lookup):
        return "a successor would not find it, either"
    return ""


def decide(
    plan: Plan, role: Role, event: AnyEvent, now: float, jitter: float = 0.0
) -> tuple[Plan, tuple[Act, ...]]:
    """Let `event` happen to the seat of `role`; return the plan as it is then, and what to do.

    `jitter` in [0, 1) is chance that the caller brings along. Everything that may come late, or
    twice, changes nothing.
    """
    seat, stamps = plan.seats[role], plan.stamps
    acts: tuple[Act, ...] = ()
    match event:
        case Lost():
            seat, stamps, acts = _lost(plan, role, seat, event, now, jitter)
        case Reaped():
            seat, acts = _reaped(seat, event)
        case Event.FENCED:
            seat, acts = _resumed(replace(seat, fenced=min(seat.fenced + 1, seat.unreaped)))
        case Event.CLOSE:
            seat = replace(seat, state=State.OVER)
        case Event.DRAIN:
            seat = replace(seat, draining=True)
        case Event.READY if seat.state is State.COMING:
            acts = (Act(Do.TAKE, seat.poisoned),)
            seat = replace(seat, state=State.TAKING)
        case Event.TAKEN if seat.state is State.TAKING:
            seat, acts = _resumed(replace(seat, state=State.TAKEN))
            if seat.state is State.TAKEN:
                acts = (Act(Do.HURRY, CRASH_MORE_S),)
        case Event.RESTED if seat.state is State.RESTING:
            seat, acts = _succeeded(seat)
        case (
            Protected() | Event.SPARE_DUE | Event.SPARE_TURN | Event.STANDBY_UP | Event.STANDBY_LOST
        ):
            seat, acts = _beside(role, plan.restarts_max, seat, event, now, jitter)
        case _:
            pass
    return replace(plan, seats={**plan.seats, role: seat}, stamps=stamps), acts


def _lost(
    plan: Plan, role: Role, seat: Seat, lost: Lost, now: float, jitter: float
) -> tuple[Seat, tuple[float, ...], tuple[Act, ...]]:
    seat, served = replace(seat, unreaped=seat.unreaped + 1), seat.state is State.UP
    if seat.state in (State.RESTING, State.DOOMED, State.OVER):
        return seat, plan.stamps, ()
    if served and lost.planned:
        # That counts against nothing. A clone has what its parent is to be rid of.
        seat = seat if seat.spare else replace(seat, standby=Standby.NONE)
        seat, acts = _succeeded(replace(seat, seq=max(seat.seq, lost.seq)))
        return seat, plan.stamps, acts
    if served and lost.phase is Phase.CLOSE:
        return replace(seat, state=State.DOOMED), plan.stamps, ()  # it had published its last
    progress = served and lost.seq > seat.seq
    strikes = 1 if progress else seat.strikes + 1
    # SIGKILL says nothing against the step, unless memory is short again and again; then an episode
    # can end there. For the others the budget is bound enough. A handler's word counts for good.
    short = role is Role.ENV and strikes > POISON_DEATHS
    guilty = not served or lost.phase is not Phase.IDLE
    guilty = guilty and not lost.sent and (not lost.killed or short)
    fatal = {} if progress else dict(seat.fatal)
    if guilty:
        fatal[lost.seq] = fatal.get(lost.seq, 0) + 1
    seat = replace(
        seat,
        seq=max(seat.seq, lost.seq) if served else seat.seq,
        strikes=strikes,
        fatal=fatal,
    )
    if role is not Role.ENV and fatal.get(lost.seq, 0) > POISON_DEATHS:
        # An environment's episode can end there; for an answer there is nothing in its place.
        at = f"record {lost.seq}" if lost.seq >= 0 else "the way to where it was"
        why = f"{at} was fatal {fatal[lost.seq]} times"
        return replace(seat, state=State.DOOMED, why=why), plan.stamps, ()
    grant = request_restart(plan.stamps, now, plan.restarts_max, plan.period_s, jitter)
    if not grant.allowed:
        spent = f"all {plan.restarts_max} restarts in {plan.period_s:g} s are used up"
        why = spent if plan.restarts_max else ""
        return replace(seat, state=State.DOOMED, why=why), grant.stamps, ()
    # Who made progress is replaced at once, however often: the budget bounds that. Who didn't will
    # hardly do better for being replaced faster.
    if wait_s := backoff_s(seat.strikes - 1, jitter):
        return replace(seat, state=State.RESTING), grant.stamps, (Act(Do.REST, wait_s),)
    seat, acts = _succeeded(seat)
    return seat, grant.stamps, acts


def _succeeded(seat: Seat) -> tuple[Seat, tuple[Act, ...]]:
    """Choose who follows: the standby, if there is one."""
    if seat.standby is Standby.UP:
        taking = replace(seat, state=State.TAKING, standby=Standby.NONE)
        return taking, (Act(Do.PROMOTE, seat.poisoned),)
    adopted = seat.standby is Standby.COMING
    coming = replace(seat, state=State.COMING, standby=Standby.NONE)
    return coming, (Act(Do.ADOPT if adopted else Do.FORK),)


def _reaped(seat: Seat, reaped: Reaped) -> tuple[Seat, tuple[Act, ...]]:
    final, fenced = reaped.final, max(0, seat.fenced - reaped.fenced)
    seat = replace(seat, unreaped=max(0, seat.unreaped - 1), fenced=fenced)
    if seat.state is State.OVER:
        return seat, ()
    if final or (seat.state is State.DOOMED and not seat.unreaped):
        return replace(seat, state=State.OVER), (Act(Do.GIVE_UP, final or seat.why),)
    return _resumed(seat)


def _resumed(seat: Seat) -> tuple[Seat, tuple[Act, ...]]:
    """Let the successor serve, if it is ready to and nobody else can write."""
    if seat.state is not State.TAKEN or seat.unreaped > seat.fenced:
        return seat, ()
    acts = [Act(Do.RESUME)] + [Act(Do.DRAIN)] * seat.draining
    if seat.spare and seat.standby is Standby.NONE and not seat.draining:
        acts.append(Act(Do.LATER, SPARE_AFTER_S))
    return replace(seat, state=State.UP), tuple(acts)


def _beside(
    role: Role, restarts_max: int, seat: Seat, event: AnyEvent, now: float, jitter: float
) -> tuple[Seat, tuple[Act, ...]]:
    """What concerns the standby only: its agent never notices."""
    if event is Event.STANDBY_UP:
        return replace(seat, standby=Standby.UP), ()
    if event is Event.STANDBY_LOST:
        seat = replace(seat, standby=Standby.NONE)
        grant = request_restart(seat.spare_stamps, now, SPARES_MAX, SPARES_PERIOD_S, jitter)
        wait_s = max(grant.delay_s, backoff_s(1, jitter)) if grant.allowed else SPARES_PERIOD_S
        seat = replace(seat, spare_stamps=grant.stamps)
        return seat, (Act(Do.LATER, wait_s),) * (seat.spare and seat.state is not State.OVER)
    if isinstance(event, Protected):
        # Of an environment only: the others are as quick to construct as a process is to fork.
        spare = role is Role.ENV and restarts_max > 0 and event.level in SPARED
        seat = replace(seat, spare=spare)
    wanted = seat.spare and seat.state is State.UP and not seat.draining
    if not wanted or seat.standby is not Standby.NONE:
        return seat, ()
    if event is Event.SPARE_TURN:
        return replace(seat, standby=Standby.COMING), (Act(Do.SPARE),)
    return seat, (Act(Do.QUEUE),)
