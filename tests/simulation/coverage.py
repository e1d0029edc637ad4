"""Which cells of the state tables a simulation has reached: the runner's, the agent's, the plan's.

The tables and the plan are watched from outside, at the one function of each through which
everything passes. A cell is reached when its event happened in its state, whatever followed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

from dsec.failover import plan
from dsec.kernel.agent import Agent
from dsec.kernel.machine import AgentEvent, AgentState, RunnerEvent, RunnerState
from dsec.kernel.runner import Runner

Cell = tuple[str, str]
SEAT_EVENTS = (
    "LOST",
    "LOST_CLOSE",
    "RETIRED",
    "REAPED",
    "FINAL",
    "PROTECTED",
    *plan.Event.__members__,
)
TABLES: Mapping[str, tuple[Cell, ...]] = {
    "runner": tuple(product(RunnerState.__members__, RunnerEvent.__members__)),
    "agent": tuple(product(AgentState.__members__, AgentEvent.__members__)),
    "seat": tuple(product(plan.State.__members__, SEAT_EVENTS)),
    "standby": tuple(product(plan.Standby.__members__, SEAT_EVENTS)),
}


def seat_event(event: Any) -> str:
    """The name under which an event of the plan is counted."""
    match event:
        case plan.Lost(planned=True):
            return "RETIRED"
        case plan.Lost(phase=plan.Phase.CLOSE):
            return "LOST_CLOSE"
        case plan.Lost():
            return "LOST"
        case plan.Reaped():
            return "FINAL" if event.final else "REAPED"
        case plan.Protected():
            return "PROTECTED"
    return str(event.name)


class Coverage:
    """Cells by table, and how often each was reached."""

    def __init__(self) -> None:
        self.reached: dict[str, Counter[Cell]] = {name: Counter() for name in TABLES}

    def add(self, other: Mapping[str, Mapping[Cell, int]]) -> None:
        """Count those of another process, too."""
        for name, cells in other.items():
            self.reached[name].update(cells)

    def missing(self, table: str) -> list[Cell]:
        """Cells that were not reached."""
        return [cell for cell in TABLES[table] if cell not in self.reached[table]]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what happens meanwhile."""
        runner, agent, decide = Runner.apply, Agent.apply, plan.decide
        reached = self.reached

        def of_runner(self: Runner, event: RunnerEvent) -> None:
            reached["runner"][self.state.name, event.name] += 1
            runner(self, event)

        def of_agent(self: Agent, event: AgentEvent) -> None:
            reached["agent"][self.state.name, event.name] += 1
            agent(self, event)

        def of_seat(where: plan.Plan, role: Any, event: Any, *rest: float) -> Any:
            seat, name = where.seats[role], seat_event(event)
            reached["seat"][seat.state.name, name] += 1
            reached["standby"][seat.standby.name, name] += 1
            return decide(where, role, event, *rest)

        with (
            mock.patch.object(Runner, "apply", of_runner),
            mock.patch.object(Agent, "apply", of_agent),
            mock.patch.object(plan, "decide", of_seat),
        ):
            yield
