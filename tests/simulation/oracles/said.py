"""G4: a step that was lost is said to be, and none is said to be lost for nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from dsec.ipc import frames
from dsec.ipc.frames import Role
from dsec.report import RunReport
from tests.simulation.oracles import Oracle
from tests.simulation.runners import Runner
from tests.simulation.things import INFRA, Memory, Record


class Said(Oracle):
    """Counts records that say so, failovers that do, and what was kept and not handed on."""

    guarantee = "G4"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.lost: Counter[str] = Counter()
        self.inexact: Counter[str] = Counter()
        self.kept: set[str] = set()
        self.handed: dict[int, bool] = defaultdict(bool)

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        self.lost[memory.agent] += bool(record.flags & INFRA)

    def on_sent(self, process: Any, frame: Any) -> None:
        whole = isinstance(frame, frames.Kept) and frame.size == 8192
        if whole and isinstance(process, Runner) and process.serving:
            self.kept.add(process.name)
        if not isinstance(process, Runner):
            return
        if isinstance(frame, frames.TakenOver) and process.role is Role.ENV:
            self.inexact[process.agent.name] += not frame.exact
        if isinstance(frame, frames.Kept) and frame.protection and frame.protection.differs:
            self.inexact[process.agent.name] += 1

    def on_got(self, process: Any, frame: Any, things: list[Any]) -> None:
        if isinstance(frame, frames.Takeover):
            self.handed[process.pid] = frame.kept >= 0
        elif isinstance(frame, frames.Resume):
            handed = self.handed[process.pid] or frame.kept >= 0
            if process.name in self.kept and not handed:
                self.wrong(f"{process} did not get what its predecessor had kept")

    def on_failover(self, failover: Any) -> None:
        if not failover.death.cause:
            self.wrong(f"a failover of {failover.agent} has no cause")

    def end(self, report: RunReport) -> None:
        for name, count in self.lost.items():
            if count > self.inexact[name]:
                self.wrong(f"{name}: {count} steps are lost, {self.inexact[name]} were said to be")
