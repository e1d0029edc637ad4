"""G3: what an environment and a policy say is what they would have said without any fault.

The world model is a pure function, so each record can be computed from those before it, whoever
wrote them. Only a record that says so (G4) begins anew, and a policy whose state is not kept.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from dsec.ipc.frames import Role
from tests.simulation.env import first_state
from tests.simulation.oracles import Oracle
from tests.simulation.runners import mix
from tests.simulation.things import END, INFRA, Memory, Record


class Identical(Oracle):
    """Computes each record beside the runner that publishes it."""

    guarantee = "G3"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.said: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.minds = {name: mix(agent.seed, 2) for name, agent in world.agents.items()}

    def on_serves(self, process: Any) -> None:
        if process.role is Role.POLICY and not process.agent.actors_kept:
            self.minds[process.agent.name] = mix(process.agent.seed, 2)

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        name, n, said = memory.agent, record.seq, self.said[memory.agent, memory.role]
        if n != len(said):
            return  # which is another guarantee
        said.append(record.value)
        agent = self.world.agents[name]
        if memory.role == Role.ENV:
            if not n or record.flags & INFRA:
                due = first_state(agent, n)
            else:
                due = mix(said[n - 1], self.said[name, Role.POLICY][n - 1])
        elif record.flags & END or memory.role != Role.POLICY:
            return
        else:
            seen = self.said[name, Role.ENV][n]
            self.minds[name] = mix(self.minds[name], seen)
            due = mix(self.minds[name], seen, 3)
        if due != record.value:
            self.wrong(f"{process}: record {n} is not what it would be without a fault")
