"""G3, before it is needed: who keeps its state by a standby has one again after each failover."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dsec.ipc.frames import Role
from tests.simulation.env import EnvRunner
from tests.simulation.oracles import Oracle
from tests.simulation.things import Memory, Record

GRACE_S = 2.5  # to wait for a turn, to fork, and to construct, thrice
LOST_MAX = 2  # spares; who loses more waits longer for each


class Standby(Oracle):
    """Looks for the standby while its agent steps and nothing has gone wrong for a while."""

    guarantee = "G3"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.lost: Counter[str] = Counter()
        self.served: dict[str, float] = {}
        self.unprotected: set[str] = set()

    def on_note(self, event: str, facts: dict[str, Any]) -> None:
        if event == "standby_lost":
            self.lost[facts["name"].rpartition(".")[0]] += 1

    def on_sent(self, process: Any, frame: Any) -> None:
        said = getattr(frame, "protection", None)
        if (
            said is not None
            and isinstance(process, EnvRunner)
            and said.level == "none"
            and not said.differs
        ):
            self.unprotected.add(process.agent.name)

    def on_serves(self, process: Any) -> None:
        self.served[process.agent.name] = self.world.machine.now()

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        world, name = self.world, memory.agent
        if memory.role != Role.ENV or process.draining or not world.whole:
            return
        agent, now = world.agents[name], world.machine.now()
        spec = next(each for each in world.spec.agents if each.name == name)
        calm = now - max(world.calm_since, self.served.get(name, now)) > GRACE_S
        wanted = agent.level in ("state", "replay", "fork") and spec.restarts_max
        if not (calm and wanted) or name in self.unprotected or self.lost[name] > LOST_MAX:
            return
        if world.supervisor.reason:
            return
        for each in world.machine.processes.values():
            if isinstance(each, EnvRunner) and each.agent is agent and each is not process:
                return
        self.wrong(f"{name} steps, and has had no standby for {GRACE_S:g} s")
