"""The plan of failover: what follows what, cell by cell, and what must hold in any history.

The world of the stateful test is a model: incarnations that live, die and are reaped in any order.
Its oracle knows the guarantees, not the plan.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dsec.failover.plan import (
    POISON_DEATHS,
    SPARES_MAX,
    Act,
    AnyEvent,
    Do,
    Event,
    Lost,
    Plan,
    Protected,
    Reaped,
    Seat,
    Standby,
    State,
    decide,
    why_final,
)
from dsec.ipc.frames import ErrorInfo, Phase, Role
from dsec.report import Death

ENV = Role.ENV


def plan_of(restarts: int = 10, **seat: object) -> Plan:
    return Plan(restarts, 60.0, {ENV: Seat(**seat)})  # type: ignore[arg-type]


def run(plan: Plan, *events: AnyEvent, now: float = 0.0) -> tuple[Plan, list[Act]]:
    """Let events happen; return the plan and the acts of the last one."""
    acts: tuple[Act, ...] = ()
    for event in events:
        plan, acts = decide(plan, ENV, event, now)
    return plan, list(acts)


def lost(seq: int = 5, phase: Phase = Phase.STEP) -> Lost:
    return Lost(seq, phase)


def died(**facts: object) -> Death:
    return Death("a", ENV, 0, 1, "died", **{"kind": "signal", **facts})  # type: ignore[arg-type]


EVENTS: tuple[AnyEvent, ...] = (
    *Event,
    lost(),
    lost(phase=Phase.CLOSE),
    Reaped(""),
    Reaped("why"),
    Protected("state"),
    Protected("none"),
)


@pytest.mark.parametrize(
    ("state", "standby", "event"),
    list(itertools.product(State, Standby, EVENTS)),
    ids=lambda each: getattr(each, "name", repr(each)),
)
def test_every_cell_has_an_outcome(state: State, standby: Standby, event: AnyEvent) -> None:
    seat = Seat(state=state, standby=standby, spare=True, unreaped=1)
    plan, acts = run(plan_of(), event)
    plan, acts = decide(replace(plan, seats={ENV: seat}), ENV, event, 0.0)
    assert set(plan.seats) == {ENV}
    if state is State.OVER:
        assert not acts
        assert plan.seats[ENV].state is State.OVER
    if state is not State.TAKEN:
        assert Do.RESUME not in [act.do for act in acts], "nobody has restored anything"


@pytest.mark.guarantee("G5")
def test_with_a_spare_it_takes_over_while_the_lost_one_is_fenced() -> None:
    plan, acts = run(plan_of(standby=Standby.UP, spare=True), lost())
    assert acts == [Act(Do.PROMOTE, False)]
    taken, acts = run(plan, Event.TAKEN)
    assert acts == [], "the lost one may still write"
    _, acts = run(taken, Reaped(""))
    assert acts == [Act(Do.RESUME), Act(Do.SPARE)]
    _, acts = run(plan, Reaped(""), Event.TAKEN)
    assert acts == [Act(Do.RESUME), Act(Do.SPARE)], "or the other way round"


def test_without_a_standby_a_successor_is_made_first() -> None:
    plan, acts = run(plan_of(), lost())
    assert acts == [Act(Do.FORK)]
    plan, acts = run(plan, Event.READY)
    assert acts == [Act(Do.TAKE, False)]
    assert run(plan, Reaped(""), Event.TAKEN)[1] == [Act(Do.RESUME)]


def test_a_spare_that_is_still_being_made_becomes_the_successor() -> None:
    plan, acts = run(plan_of(standby=Standby.COMING, spare=True), lost())
    assert acts == [Act(Do.ADOPT)]
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, False)]


@pytest.mark.guarantee("G7")
def test_no_restarts_or_no_more_end_in_giving_up_once_the_death_is_known() -> None:
    plan, acts = run(plan_of(0), lost())
    assert acts == []
    assert run(plan, Reaped(""))[1] == [Act(Do.GIVE_UP, "")]
    plan, _ = run(plan_of(1), lost(1), Event.READY, Reaped(""), Event.TAKEN)
    plan, acts = run(plan, lost(9), Reaped(""))
    assert acts == [Act(Do.GIVE_UP, "all 1 restarts in 60 s are used up")]
    plan, _ = run(plan_of(1), lost(1), Event.READY, Reaped(""), Event.TAKEN)
    _, acts = run(plan, lost(9), now=61.0)
    assert acts == [Act(Do.FORK)], "a period later the budget is whole again"


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize(
    ("death", "said"),
    [
        (died(exit_code=125, kind="exit"), "exit code 125"),
        (died(kind="corrupt"), "ring"),
        (died(kind="exception", error=ErrorInfo("dsec.errors.PeerError", "")), "ring"),
        (died(kind="import"), "find"),
        (died(kind="exception", error=ErrorInfo("E", "", lookup=True)), "find"),
        (died(), ""),
        (died(kind="exception", error=ErrorInfo("KeyError", "")), ""),
    ],
)
def test_some_deaths_are_final(death: Death, said: str) -> None:
    final = why_final(death)
    assert said in final
    assert bool(said) == bool(final)
    plan, _ = run(plan_of(standby=Standby.UP), lost())
    _, acts = run(plan, Reaped(final))
    assert (acts == [Act(Do.GIVE_UP, final)]) == bool(final)


@pytest.mark.guarantee("G7")
def test_who_makes_progress_is_replaced_at_once_and_who_does_not_waits() -> None:
    plan = plan_of(100)
    for seq in range(5):
        plan, acts = run(plan, lost(seq))
        assert acts == [Act(Do.FORK)]
        plan, _ = run(plan, Event.READY, Reaped(""), Event.TAKEN)
    waits = []
    for _ in range(4):
        plan, acts = run(plan, lost(4))
        assert acts[0].do is Do.REST
        waits.append(acts[0].value)
        plan, acts = run(plan, Reaped(""), Event.RESTED)
        assert acts == [Act(Do.FORK)]
        plan, _ = run(plan, Event.READY, Event.TAKEN)
    assert waits == sorted(waits)
    assert len(set(waits)) == 4


@pytest.mark.guarantee("G7")
def test_a_step_that_kills_twice_is_poison() -> None:
    plan, _ = run(plan_of(), lost(7), Event.READY, Reaped(""), Event.TAKEN)
    plan, _ = run(plan, lost(7), Reaped(""), Event.RESTED)
    plan, acts = run(plan, Event.READY)
    assert acts == [Act(Do.TAKE, True)]
    plan, _ = run(plan, Event.TAKEN, lost(8), Reaped(""))
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, False)], "it got on"


def test_deaths_while_idle_blame_no_step() -> None:
    idle = lost(7, Phase.IDLE)
    plan, _ = run(plan_of(), idle, Event.READY, Reaped(""), Event.TAKEN)
    plan, _ = run(plan, idle, Reaped(""), Event.RESTED)
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, False)]


def test_a_replay_that_kills_twice_is_not_tried_again() -> None:
    plan, _ = run(plan_of(), lost(7), Event.READY, Reaped(""))
    assert plan.seats[ENV].poison < POISON_DEATHS
    plan, acts = run(plan, lost(-1), Reaped(""), Event.RESTED)
    assert acts == [Act(Do.FORK)]
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, True)]


@pytest.mark.guarantee("G5")
def test_every_earlier_incarnation_must_be_reaped() -> None:
    plan, _ = run(plan_of(standby=Standby.UP), lost(7))  # the incumbent
    plan, _ = run(plan, lost(-1), Event.RESTED, Event.READY, Event.TAKEN)  # and its successor
    plan, acts = run(plan, Reaped(""))
    assert acts == []
    assert run(plan, Reaped(""))[1][0] == Act(Do.RESUME)


def test_a_fault_in_close_is_no_loss() -> None:
    plan, acts = run(plan_of(standby=Standby.UP), lost(7, Phase.CLOSE))
    assert acts == []
    assert run(plan, Reaped(""))[1] == [Act(Do.GIVE_UP, "")]


def test_who_is_back_is_told_to_drain_if_that_was_asked_meanwhile() -> None:
    plan, _ = run(plan_of(standby=Standby.UP, spare=True), lost(7), Event.DRAIN, Reaped(""))
    plan, acts = run(plan, Event.TAKEN)
    assert acts == [Act(Do.RESUME), Act(Do.DRAIN)], "and no spare is made for the rest of it"


def test_a_spare_is_made_when_it_is_wanted_and_again_when_it_dies() -> None:
    plan, acts = run(plan_of(), Protected("state"))
    assert acts == [Act(Do.SPARE)]
    assert run(plan, Protected("state"))[1] == [], "one is enough"
    plan, acts = run(plan, Event.STANDBY_UP, Event.STANDBY_LOST)
    assert acts[0].do is Do.LATER
    plan, acts = run(plan, Event.SPARE_DUE)
    assert acts == [Act(Do.SPARE)]
    waits = []
    for _ in range(SPARES_MAX):
        plan, acts = run(plan, Event.STANDBY_LOST)
        waits.append(float(acts[0].value))
        plan, _ = run(plan, Event.SPARE_DUE)
    assert waits[-1] == 60.0, "one that keeps dying is done without for a while"
    assert plan.stamps == (), "and costs the agent none of its restarts"


@pytest.mark.parametrize("level", ["fork", "none", "replay", "state"])
def test_only_some_levels_need_a_spare_and_only_for_environments(level: str) -> None:
    wanted = level in ("state", "replay")
    assert (run(plan_of(), Protected(level))[1] == [Act(Do.SPARE)]) == wanted
    assert run(plan_of(0), Protected(level))[1] == []
    policy = Plan(10, 60.0, {Role.POLICY: Seat()})
    assert decide(policy, Role.POLICY, Protected(level), 0.0)[1] == ()


def test_roles_are_independent_but_for_the_budget() -> None:
    plan = Plan(2, 60.0, {role: Seat() for role in (Role.ENV, Role.POLICY, Role.REWARD)})
    plan, acts = decide(plan, Role.ENV, lost(), 0.0)
    assert acts == (Act(Do.FORK),)
    plan, acts = decide(plan, Role.POLICY, lost(), 0.0)
    assert acts == (Act(Do.FORK),)
    plan, acts = decide(plan, Role.REWARD, lost(), 0.0)
    assert acts == (), "the budget is spent"
    plan, acts = decide(plan, Role.REWARD, Reaped(""), 0.0)
    assert acts[0].do is Do.GIVE_UP
    assert plan.away


# ---------------------------------------------------------------- any history


class World(RuleBasedStateMachine):
    """One seat, and everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.writer = True  # somebody has been resumed and not lost
        self.unreaped = 0
        self.successor = ""  # "", making, waiting, taking, taken
        self.standby = ""  # "", making, up
        self.resting = False
        self.tried: list[float] = []
        self.over = ""
        self.doomed = False

    @initialize(restarts=st.integers(0, 6), level=st.sampled_from(["none", "state", "fork"]))
    def begin(self, restarts: int, level: str) -> None:
        self.restarts = restarts
        self.plan = Plan(restarts, 10.0, {ENV: Seat()})
        self.tell(Protected(level))

    def tell(self, event: AnyEvent) -> None:
        self.plan, acts = decide(self.plan, ENV, event, self.now, 0.5)
        for do, value in acts:
            self.act(do, value)

    def act(self, do: Do, value: float | str | bool) -> None:
        assert not self.over, "nothing follows the end"
        match do:
            case Do.FORK:
                assert not self.successor and not self.writer
                self.successor = "making"
            case Do.ADOPT:
                assert self.standby == "making" and not self.successor
                self.successor, self.standby = "making", ""
            case Do.PROMOTE:
                assert self.standby == "up" and not self.successor
                self.successor, self.standby = "taking", ""
            case Do.TAKE:
                assert self.successor == "waiting"
                self.successor = "taking"
            case Do.REST:
                assert not self.resting and not self.successor
                assert float(value) > 0
                self.resting = True
            case Do.RESUME:
                assert self.successor == "taken", "only who has restored"
                assert not self.unreaped, "never before the reap (G5)"
                assert not self.writer, "never two writers (G5)"
                self.successor, self.writer = "", True
            case Do.SPARE:
                assert not self.standby
                self.standby = "making"
            case Do.GIVE_UP:
                self.over = "given up"
            case Do.DRAIN:
                assert self.writer
            case Do.LATER:
                assert float(value) > 0

    # What the kernel does: the death of whoever has, or is to have, the seat.

    @precondition(lambda self: not self.over and (self.writer or self.successor))
    @rule(seq=st.integers(-1, 3), phase=st.sampled_from([Phase.IDLE, Phase.STEP, Phase.RESET]))
    def lose(self, seq: int, phase: Phase) -> None:
        before = len(self.plan.stamps)
        self.writer, self.successor = False, ""
        self.unreaped += 1
        self.tell(Lost(seq, phase))
        if self.plan.seats[ENV].state is State.DOOMED:
            self.doomed = True
        elif self.plan.stamps and self.plan.stamps[-1] == self.now:
            assert before <= self.restarts
            self.tried.append(self.now)

    @precondition(lambda self: self.unreaped)
    @rule(final=st.sampled_from([""] * 9 + ["final"]))
    def reap(self, final: str) -> None:
        self.unreaped -= 1
        self.tell(Reaped("" if self.over else final))

    @precondition(lambda self: self.successor == "making")
    @rule()
    def construct(self) -> None:
        self.successor = "waiting"
        self.tell(Event.READY)

    @precondition(lambda self: self.successor == "taking")
    @rule()
    def take(self) -> None:
        self.successor = "taken"
        self.tell(Event.TAKEN)

    @precondition(lambda self: self.resting)
    @rule()
    def rest(self) -> None:
        self.resting = False
        self.tell(Event.RESTED)

    @precondition(lambda self: self.standby == "making")
    @rule()
    def spare(self) -> None:
        self.standby = "up"
        self.tell(Event.STANDBY_UP)

    @precondition(lambda self: self.standby)
    @rule()
    def lose_spare(self) -> None:
        self.standby = ""
        self.tell(Event.STANDBY_LOST)

    @precondition(lambda self: not self.standby and self.writer)
    @rule()
    def clone(self) -> None:
        self.standby = "up"
        self.tell(Event.STANDBY_UP)

    @rule(seconds=st.floats(0.01, 20.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(event=st.sampled_from([Event.READY, Event.TAKEN, Event.RESTED, Event.SPARE_DUE]))
    def late_or_twice(self, event: Event) -> None:
        """What comes out of turn changes nothing, but a spare may be due."""
        state = self.plan.seats[ENV].state
        turn = {Event.READY: State.COMING, Event.TAKEN: State.TAKING, Event.RESTED: State.RESTING}
        if turn.get(event) is not state:
            self.tell(event)
            assert self.plan.seats[ENV].state is state

    @rule()
    def drain(self) -> None:
        self.tell(Event.DRAIN)

    @precondition(lambda self: not self.over)
    @rule(really=st.sampled_from([False] * 19 + [True]))
    def kill(self, really: bool) -> None:
        if really:
            self.tell(Event.CLOSE)
            self.over = "killed"

    @invariant()
    def the_budget_is_kept(self) -> None:
        for first in self.tried:
            assert sum(first <= each < first + 10.0 for each in self.tried) <= self.restarts

    @invariant()
    def somebody_is_responsible(self) -> None:
        """It always goes on: who serves, who comes, a wait, a reap to await, or the end."""
        waiting = bool(self.unreaped) and (self.doomed or self.successor == "taken")
        assert self.over or self.writer or self.successor or self.resting or waiting

    def teardown(self) -> None:
        """From anywhere a friendly world brings it to service, or to its end."""
        if not hasattr(self, "plan"):
            return
        for _ in range(20):
            if self.resting:
                self.rest()
            elif self.successor == "making":
                self.construct()
            elif self.successor == "taking":
                self.take()
            elif self.unreaped:
                self.reap("")
        assert self.over or self.writer


@pytest.mark.guarantee("G5", "G7")
def test_any_history_ends_in_service_or_in_an_end() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        World, settings=settings(max_examples=150, stateful_step_count=40, deadline=None)
    )
