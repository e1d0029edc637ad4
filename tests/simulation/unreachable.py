"""Cells of the state tables that no history reaches, and why that is so.

A table has an outcome for every cell, for a late or doubled event must change nothing; but some of
them are kept from happening before they get there. What is neither reached nor explained here is
listed by the harness: either a class of faults is missing, or a reason.
"""

from __future__ import annotations

from dsec.kernel.machine import AGENT, RUNNER, AgentEvent, AgentState, RunnerEvent, RunnerState

FRAMES = ("HELLO", "HELLO_ENV", "CONSTRUCTED", "READY", "DONE", "CRASHING", "TAKEN_OVER", "RETIRED")
EXITS = ("EXIT_OK", "EXIT_KILLED", "EXIT_BAD")
ORDERS = {"WIRE": "HOLDING", "RESUME": "TAKEN"}
BEFORE = ("WAITING", "STARTING", "WIRING", "RUNNING")
# By agent's event: the only states in which it can be said, and why.
SAID_IN = {
    "ADMIT": (("WAITING",), "waves hand out each agent once"),
    "CONSTRUCTED": (("STARTING",), "runners hold once, and a successor's does not count"),
    "READY": (("WIRING",), "waves release each agent once"),
    "AWAY": (("RUNNING", "DRAINING", "OUTLIVED"), "said when nobody was away, from Go to the end"),
}


def why(table: str, state: str, event: str) -> str:
    """Why this cell can't be reached; empty if it can."""
    if table == "runner":
        return _of_runner(state, event)
    if table == "agent":
        return _of_agent(state, event)
    return _of_plan(table, state, event)


def _of_runner(state: str, event: str) -> str:
    _, actions = RUNNER[RunnerState[state]][RunnerEvent[event]]
    if event in FRAMES and "kill" in actions:
        return "a frame that may not come now is told as VIOLATION"
    if event in ("FORKED", "FORK_FAILED") and state not in ("FORKING", "FENCED"):
        return "the answer of a zygote about a process that is known is dropped"
    if state == "FORKING" and event in (*EXITS, "OVERDUE"):
        return "nobody watches a process, or sets it a deadline, before it is known"
    if event in ORDERS and state != ORDERS[event]:
        return f"is only ordered of who is {ORDERS[event]}"
    return ""


def _of_agent(state: str, event: str) -> str:
    states, reason = SAID_IN.get(event, ((state,), ""))
    if state not in states:
        return reason
    if event == "BACK" and state in BEFORE:
        return "follows AWAY"
    if event == "FINISHED" and not AGENT[AgentState[state]][AgentEvent[event]][1]:
        return "is only said while it settles"
    if state == "WAITING" and event == "GONE":
        return "it has no runner yet"
    return ""


def _of_plan(table: str, state: str, event: str) -> str:
    if table == "seat":
        answers = {"READY": "COMING", "RESTED": "RESTING"}
        if event in answers and state in ("UP", "RESTING", "COMING") and state != answers[event]:
            return "its successor, or its rest, is over by then"
        if event in ("LOST", "LOST_CLOSE", "RETIRED") and state in ("RESTING", "DOOMED"):
            return "nobody has the seat, or is to have it, who could be lost"
        if event == "RETIRED" and state in ("COMING", "TAKING", "TAKEN"):
            return "only who serves steps aside"
    elif (state, event) == ("NONE", "STANDBY_LOST"):
        return "there is none"
    return ""
