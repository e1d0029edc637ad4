"""G1: an agent that no fault has hit ends as it should, whatever happens to the others; and one
that has ended has no process any more.
"""

from __future__ import annotations

from typing import Any

from dsec.report import RunReport
from tests.simulation.oracles import Oracle
from tests.simulation.runners import Runner


class Alone(Oracle):
    """Looks at who was never touched."""

    guarantee = "G1"

    def on_agent(self, name: str, state: str) -> None:
        if state not in ("done", "quarantined"):
            return
        for each in self.world.machine.processes.values():
            own = isinstance(each, Runner) and each.agent.name == name and each.writes
            # A clone sleeps until it sees that its channel has ended.
            if own and getattr(each, "snapshot", None) is None:
                self.wrong(f"{name} is {state}, and {each} lives")
        if state == "quarantined" and self.world.supervisor.agents[name].report.death is None:
            self.wrong(f"{name} is quarantined without a death")

    def on_note(self, event: str, facts: dict[str, Any]) -> None:
        untouched = facts.get("agent") not in self.world.touched and self.world.whole
        if event == "drain_timeout" and untouched:
            self.wrong(f"{facts['agent']} was not touched, and did not drain")

    def end(self, report: RunReport) -> None:
        whole = self.world.whole and not report.failure and not report.drained
        for name, agent in report.agents.items():
            if agent.state not in ("done", "quarantined"):
                self.wrong(f"the run is over, and {name} is {agent.state}")
            if not whole or name in self.world.touched or self.world.spec.dry:
                continue
            if agent.state != "done" or agent.failovers or agent.death:
                self.wrong(f"{name} was not touched, and is {agent.state}: {agent.death}")
