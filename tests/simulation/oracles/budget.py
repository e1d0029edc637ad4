"""G7: restarts are bounded: never more than the budget, and no end before it is spent.

A loss of a seat is told by the kernel (away); that it was followed by a successor is seen where
that one is told to take over. A step that was fatal twice is not tried a third time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from dsec.failover.plan import POISON_DEATHS
from dsec.ipc import frames
from dsec.ipc.frames import Role
from tests.simulation.oracles import Oracle


class Budget(Oracle):
    """Counts losses and successors in every period."""

    guarantee = "G7"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.lost: dict[str, list[float]] = defaultdict(list)
        self.open: dict[tuple[str, int], float] = {}
        self.replaced: dict[str, list[float]] = defaultdict(list)
        self.retired: set[tuple[str, int]] = set()
        self.tried: Counter[tuple[str, int]] = Counter()
        self.specs = {each.name: each for each in world.spec.agents}

    def on_sent(self, process: Any, frame: Any) -> None:
        if isinstance(frame, frames.Retired):
            self.retired.add((process.agent.name, process.role))

    def on_away(self, agent: str, role: Role) -> None:
        if (agent, role) in self.retired:
            self.retired.discard((agent, role))
            self.open.pop((agent, role), None)
            return
        self.open[agent, role] = self.world.machine.now()
        self.lost[agent].append(self.world.machine.now())

    def on_got(self, process: Any, frame: Any, things: list[Any]) -> None:
        if not isinstance(frame, frames.Takeover):
            return
        name = process.agent.name
        lost = self.open.pop((name, process.role), None)
        if lost is None:
            return
        replaced, spec = self.replaced[name], self.specs[name]
        replaced.append(lost)
        for first in replaced:
            within = sum(first <= each < first + spec.restarts_period_s for each in replaced)
            if within > spec.restarts_max:
                self.wrong(f"{name}: {within} restarts in {spec.restarts_period_s:g} s")
                return

    def on_poisoned(self, process: Any) -> None:
        key = process.agent.name, process.view
        self.tried[key] += 1
        if self.tried[key] > POISON_DEATHS:
            self.wrong(f"{process} tried record {process.view}, which was fatal before, again")

    def on_death(self, death: Any) -> None:
        if "restarts in" not in death.cause or death.agent not in self.specs:
            return
        # What was refused is one of its losses, though not the last: others may have followed.
        spec, lost = self.specs[death.agent], self.lost[death.agent]
        most = max(
            (sum(at - spec.restarts_period_s < each <= at for each in lost) for at in lost),
            default=0,
        )
        if most <= spec.restarts_max:
            self.wrong(f"{death.agent} was given up after {most} losses: {death.cause}")
