"""G6: every wait has a limit: where nothing goes wrong any more, an agent gets on or ends."""

from __future__ import annotations

from typing import Any

from dsec.report import RunReport
from tests.simulation.oracles import Oracle
from tests.simulation.things import Memory, Record

# The longest that may come one after the other: a stopped runner is found after two looks, a
# successor may wait, be constructed and hang in its replay; then the same once more.
LIMIT_S = 45.0


class Progress(Oracle):
    """Measures pauses between records. That a run never ends at all is seen by its loop."""

    guarantee = "G6"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.last: dict[str, float] = {}

    def on_away(self, agent: str, role: Any) -> None:
        self.last[agent] = self.world.machine.now()

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        now, name = self.world.machine.now(), memory.agent
        since = max(self.last.get(name, now), self.world.calm_since)
        self.last[name] = now
        if self.world.whole and now - since > LIMIT_S:
            self.wrong(f"{name} stood still for {now - since:.1f} s")

    def end(self, report: RunReport) -> None:
        for death in report.deaths:
            known = death.signal > 0 or death.exit_code >= 0 or death.kind in ("spawn", "recycled")
            if not death.cause or not known:
                self.wrong(f"the death of {death.agent}.{death.role.name} has no cause: {death}")
