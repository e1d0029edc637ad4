"""The plan of failover in any history: never two writers, never too early, always an end.

The world is a model: incarnations that live, die and are reaped in any order. Its oracle knows the
guarantees, not the plan.
"""

from __future__ import annotations

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
    AnyEvent,
    Do,
    Event,
    Lost,
    Plan,
    Protected,
    Reaped,
    Seat,
    State,
    decide,
)
from dsec.ipc.frames import Phase, Role

ENV = Role.ENV


class World(RuleBasedStateMachine):
    """One seat, and everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.writer = True  # somebody has been resumed and not lost
        self.unreaped = self.fenced = 0
        self.successor = ""  # "", making, waiting, taking, taken
        self.standby = ""  # "", making, up
        self.resting = self.queued = False
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
                assert self.unreaped == self.fenced, "never before the fence (G5)"
                assert not self.writer, "never two writers (G5)"
                self.successor, self.writer = "", True
            case Do.QUEUE:
                self.queued = True
            case Do.SPARE:
                assert not self.standby and not self.queued
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

    @precondition(lambda self: not self.over and self.writer)
    @rule(seq=st.integers(0, 3))
    def step_aside(self, seq: int) -> None:
        """Whatever the budget, who is well is replaced, and nothing is counted."""
        before = self.plan.stamps
        self.writer = False
        self.unreaped += 1
        if self.standby == "up" and not self.plan.seats[ENV].spare:
            self.standby = ""  # a clone, which isn't wanted
        self.tell(Lost(seq, Phase.IDLE, planned=True))
        assert self.plan.stamps == before
        assert self.successor and not self.resting

    @precondition(lambda self: self.queued)
    @rule()
    def turn(self) -> None:
        self.queued = False
        self.tell(Event.SPARE_TURN)

    @precondition(lambda self: self.unreaped)
    @rule(final=st.sampled_from([""] * 9 + ["final"]))
    def reap(self, final: str) -> None:
        fenced = self.unreaped == self.fenced
        self.unreaped -= 1
        self.fenced -= fenced
        self.tell(Reaped("" if self.over or fenced else final, fenced))

    @precondition(lambda self: self.unreaped > self.fenced)
    @rule()
    def fence(self) -> None:
        """It is on its way out for good."""
        self.fenced += 1
        self.tell(Event.FENCED)

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
