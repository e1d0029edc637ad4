"""Every cell of the two lifecycle tables, and what must hold in any history of events."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.table import diagram
from dsec.kernel import agent, runner
from dsec.kernel.machine import (
    AGENT,
    RUNNER,
    AgentEvent,
    AgentState,
    RunnerEvent,
    RunnerState,
)

RS, RE = RunnerState, RunnerEvent
GS, GE = AgentState, AgentEvent

FRAMES = {RE.HELLO, RE.HELLO_ENV, RE.CONSTRUCTED, RE.READY, RE.DONE, RE.TAKEN_OVER, RE.RETIRED}
EXITS = {RE.EXIT_OK, RE.EXIT_KILLED, RE.EXIT_BAD}
LIVING = set(RS) - {RS.FORKING, RS.FAULTY, RS.FENCED, RS.GONE}
DYING = {RS.FAULTY, RS.FENCED}

# The way of a runner to whom nothing happens, and of the others' replies that bring it on.
ONWARD = {
    (RS.FORKING, RE.FORKED): (RS.BOOTING, ("watch",)),
    (RS.BOOTING, RE.HELLO): (RS.HOLDING, ("start", "hold")),
    (RS.BOOTING, RE.HELLO_ENV): (RS.CONSTRUCTING, ("start",)),
    (RS.CONSTRUCTING, RE.CONSTRUCTED): (RS.HOLDING, ("hold",)),
    (RS.HOLDING, RE.WIRE): (RS.WIRING, ("wire",)),
    (RS.HOLDING, RE.TAKEOVER): (RS.TAKING, ("takeover",)),
    (RS.HOLDING, RE.EXCUSE): (RS.RUNNING, ("drain",)),
    (RS.TAKING, RE.TAKEN_OVER): (RS.TAKEN, ("taken",)),
    (RS.TAKEN, RE.RESUME): (RS.RUNNING, ("resume",)),
    (RS.WIRING, RE.READY): (RS.READY, ("ready",)),
    (RS.READY, RE.GO): (RS.RUNNING, ("go",)),
    (RS.READY, RE.DRAIN): (RS.RUNNING, ("drain",)),
    (RS.RUNNING, RE.DRAIN): (RS.RUNNING, ("drain",)),
    (RS.RUNNING, RE.DONE): (RS.CLOSING, ("expect_close",)),
    (RS.RUNNING, RE.RETIRED): (RS.FAULTY, ("expect_close", "lost")),
    (RS.CLOSING, RE.EXIT_OK): (RS.GONE, ("leave",)),
    (RS.CLOSING, RE.HANGUP): (RS.CLOSING, ()),
}
DEAD = (RS.GONE, ("fault", "leave"))
KILLED = (RS.GONE, ("lost", "fault", "leave"))
LEFT = (RS.GONE, ("leave",))


def expected(state: RunnerState, event: RunnerEvent) -> tuple[RunnerState, tuple[str, ...]]:
    """The table in other words: by kinds of states and events."""
    if (state, event) in ONWARD:
        return ONWARD[state, event]
    if state in LIVING:
        if event in FRAMES or event is RE.VIOLATION:
            return RS.FAULTY, ("kill", "lost")
        if event in EXITS:
            return KILLED
        kinds = {
            RE.FAILED: (RS.FAULTY, ("expect_exit", "lost")),
            RE.CRASHING: (RS.FAULTY, ("expect_crash", "lost")),
            RE.HANGUP: (state, ("expect_exit",)),
            RE.OVERDUE: (RS.FAULTY, ("dump", "lost")),
            RE.FENCE: (RS.FENCED, ("kill",)),
        }
        return kinds.get(event, (state, ()))
    if state is RS.FORKING and event is RE.FENCE:
        return RS.FENCED, ()
    if state is RS.FORKING and event is RE.FORK_FAILED:
        return KILLED
    if state is RS.FAULTY and event in {RE.OVERDUE, RE.FENCE}:
        return RS.FAULTY, ("kill",)
    if state is RS.FAULTY and event in EXITS:
        return DEAD
    if state is RS.FENCED:
        if event is RE.FORKED:
            return RS.FENCED, ("watch", "kill")
        if event is RE.EXIT_BAD:
            return DEAD
        if event in EXITS or event is RE.FORK_FAILED:
            return LEFT
    return state, ()


CELLS = list(itertools.product(RunnerState, RunnerEvent))


@pytest.mark.parametrize(("state", "event"), CELLS, ids=lambda each: each.name)
def test_every_cell_of_the_runner_table(state: RunnerState, event: RunnerEvent) -> None:
    assert RUNNER[state][event] == expected(state, event)


AGENT_CELLS = {
    (GS.WAITING, GE.ADMIT): (GS.STARTING, ("fork",)),
    (GS.WAITING, GE.DRAIN): (GS.DONE, ("close",)),
    (GS.WAITING, GE.FENCE): (GS.DONE, ("close",)),
    (GS.WAITING, GE.FAULT): (GS.QUARANTINED, ("close",)),
    (GS.STARTING, GE.CONSTRUCTED): (GS.WIRING, ("wire",)),
    (GS.STARTING, GE.DRAIN): (GS.STOPPING, ("fence",)),
    (GS.STARTING, GE.FENCE): (GS.STOPPING, ("fence",)),
    (GS.STARTING, GE.FAULT): (GS.FENCING, ("fence",)),
    (GS.WIRING, GE.READY): (GS.RUNNING, ("go",)),
    (GS.WIRING, GE.DRAIN): (GS.STOPPING, ("fence",)),
    (GS.WIRING, GE.FENCE): (GS.STOPPING, ("fence",)),
    (GS.WIRING, GE.FAULT): (GS.FENCING, ("fence",)),
    (GS.RUNNING, GE.AWAY): (GS.RECOVERING, ()),
    (GS.RECOVERING, GE.BACK): (GS.RUNNING, ()),
    (GS.RECOVERING, GE.DRAIN): (GS.DRAINING, ("drain",)),
    (GS.RECOVERING, GE.FENCE): (GS.STOPPING, ("fence",)),
    (GS.RECOVERING, GE.FAULT): (GS.FENCING, ("cut",)),
    (GS.RECOVERING, GE.FAULT_LATE): (GS.OUTLIVED, ("await",)),
    (GS.RECOVERING, GE.GONE): (GS.SETTLING, ("settle",)),
    (GS.RUNNING, GE.DRAIN): (GS.DRAINING, ("drain",)),
    (GS.RUNNING, GE.FENCE): (GS.STOPPING, ("fence",)),
    (GS.RUNNING, GE.FAULT): (GS.FENCING, ("cut",)),
    (GS.RUNNING, GE.GONE): (GS.SETTLING, ("settle",)),
    (GS.WAITING, GE.FAULT_LATE): (GS.QUARANTINED, ("close",)),
    (GS.STARTING, GE.FAULT_LATE): (GS.FENCING, ("fence",)),
    (GS.WIRING, GE.FAULT_LATE): (GS.FENCING, ("fence",)),
    (GS.RUNNING, GE.FAULT_LATE): (GS.OUTLIVED, ("await",)),
    (GS.DRAINING, GE.FAULT_LATE): (GS.OUTLIVED, ("await",)),
    (GS.OUTLIVED, GE.FENCE): (GS.FENCING, ("fence",)),
    (GS.OUTLIVED, GE.FAULT): (GS.FENCING, ("fence",)),
    (GS.OUTLIVED, GE.GONE): (GS.SETTLING, ("settle",)),
    (GS.DRAINING, GE.FENCE): (GS.STOPPING, ("fence",)),
    (GS.DRAINING, GE.FAULT): (GS.FENCING, ("cut",)),
    (GS.DRAINING, GE.GONE): (GS.SETTLING, ("settle",)),
    (GS.STOPPING, GE.FENCE): (GS.STOPPING, ("fence",)),
    (GS.STOPPING, GE.GONE): (GS.SETTLING, ("abandon",)),
    (GS.FENCING, GE.FENCE): (GS.FENCING, ("fence",)),
    (GS.FENCING, GE.GONE): (GS.ABANDONING, ("abandon",)),
    (GS.SETTLING, GE.FINISHED): (GS.DONE, ("close",)),
    (GS.SETTLING, GE.FENCE): (GS.DONE, ("close",)),
    (GS.SETTLING, GE.FAULT): (GS.ABANDONING, ("abandon",)),
    (GS.ABANDONING, GE.FINISHED): (GS.QUARANTINED, ("close",)),
    (GS.ABANDONING, GE.FENCE): (GS.QUARANTINED, ("close",)),
}


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(AgentState, AgentEvent)), ids=lambda each: each.name
)
def test_every_cell_of_the_agent_table(state: AgentState, event: AgentEvent) -> None:
    assert AGENT[state][event] == AGENT_CELLS.get((state, event), (state, ()))


@given(st.lists(st.sampled_from(RunnerEvent)))
def test_a_runner_leaves_once_and_is_gone_for_good(events: list[RunnerEvent]) -> None:
    state, done = RS.FORKING, []
    for event in events:
        state, actions = RUNNER[state][event]
        assert state is RS.GONE or "leave" not in actions
        done += actions
    assert done.count("leave") == (state is RS.GONE)
    assert done.count("fault") <= 1
    assert done.count("go") + done.count("resume") <= 1
    assert done.count("lost") <= 1
    # Nobody goes on for one that was fenced, although it may be found to have died by itself.
    assert done.count("fault") <= done.count("lost") or {RunnerEvent.FENCE, "kill"} & {
        *events,
        *done,
    }


@pytest.mark.guarantee("G5")
@given(st.lists(st.sampled_from(RunnerEvent)))
def test_a_fenced_or_faulty_runner_is_never_given_anything_to_do(events: list[RunnerEvent]) -> None:
    state = RS.FORKING
    for event in events:
        before = state
        state, actions = RUNNER[state][event]
        if before in DYING:
            assert state in DYING | {RS.GONE}
            assert set(actions) <= {"watch", "kill", "fault", "leave"}


@pytest.mark.parametrize("state", RunnerState, ids=lambda each: each.name)
def test_from_every_state_a_fence_and_an_exit_end_it(state: RunnerState) -> None:
    fenced, _ = RUNNER[state][RE.FENCE]
    for event in (*EXITS, RE.FORK_FAILED) if state is RS.FORKING else EXITS:
        gone = RUNNER[fenced][event][0]
        assert gone is RS.GONE


@given(st.lists(st.sampled_from(AgentEvent)))
def test_an_agent_ends_once_and_by_a_fault_only_if_there_was_one(events: list[AgentEvent]) -> None:
    state, closed, faults = GS.WAITING, 0, 0
    for event in events:
        faults += event in {GE.FAULT, GE.FAULT_LATE}
        state, actions = AGENT[state][event]
        closed += "close" in actions
        assert closed == (state in {GS.DONE, GS.QUARANTINED})
    assert state is not GS.QUARANTINED or faults


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("state", AgentState, ids=lambda each: each.name)
def test_from_every_state_fence_gone_and_finished_end_an_agent(state: AgentState) -> None:
    for event in (GE.FENCE, GE.GONE, GE.FINISHED):
        state = AGENT[state][event][0]
    assert state in {GS.DONE, GS.QUARANTINED}


def test_each_action_is_one_that_the_shell_knows() -> None:
    for table, shell in ((RUNNER, runner), (AGENT, agent)):
        code = inspect.getsource(shell)
        named = {
            action for row in table.values() for _, actions in row.values() for action in actions
        }
        assert {action for action in named if f'"{action}"' not in code} == set()


def test_the_diagram_shows_every_way_from_state_to_state() -> None:
    text = diagram(AGENT)
    assert text.startswith("stateDiagram-v2\n")
    assert "    RUNNING --> DRAINING: DRAIN\n" in text
    assert "    SETTLING --> DONE: FENCE, FINISHED\n" in text
    arrows = {(state, to) for state, row in AGENT.items() for to, _ in row.values() if to != state}
    assert all(f"{state.name} --> {to.name}: " in text for state, to in arrows)


def test_the_tables_know_nothing_of_the_world() -> None:
    source = Path(inspect.getsourcefile(diagram) or "").read_text()
    for word in ("import os", "import time", "import asyncio", "import socket"):
        assert word not in source
