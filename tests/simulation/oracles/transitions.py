"""G2: nothing that was published or committed is lost, doubled, reordered or torn."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from dsec.ipc.frames import Role
from dsec.report import RunReport
from tests.simulation.oracles import Oracle
from tests.simulation.things import END, INFRA, Memory, Record


class Transitions(Oracle):
    """A shadow of each ring, written when a record is published, and never changed."""

    guarantee = "G2"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.rings: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.committed: dict[str, int] = defaultdict(int)

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        ring = self.rings[memory.agent, memory.role]
        if record.seq != len(ring):
            what = "again" if record.seq < len(ring) else "too early"
            self.wrong(f"{process} published record {record.seq} {what}, after {len(ring) - 1}")
            return
        if ring and ring[-1].flags & END:
            self.wrong(f"{process} published record {record.seq} after the end")
        ring.append(record)

    def on_committed(self, process: Any, agent: str, row: tuple[int, ...]) -> None:
        n, seen, action, reward, led, flags = row
        expected, self.committed[agent] = self.committed[agent], self.committed[agent] + 1
        if n != expected:
            self.wrong(f"{agent}: transition {n} was committed in the place of {expected}")
            return
        envs, actions, rewards = (self.rings[agent, role] for role in Role if role < 3)
        now = (envs[n].value, actions[n].value, rewards[n].value, envs[n + 1].value)
        if now != (seen, action, reward, led) or flags != envs[n + 1].flags:
            self.wrong(f"{agent}: transition {n} is not what had been published")

    def end(self, report: RunReport) -> None:
        for name, agent in report.agents.items():
            journal = self.world.machine.journals[name]
            if agent.state != "done" or not journal.clean:
                continue
            envs = self.rings[name, Role.ENV]
            if not envs or not envs[-1].flags & END:
                self.wrong(f"{name} is done, and its stream has no end")
            elif len(journal.rows) != len(envs) - 1:
                self.wrong(f"{name}: {len(journal.rows)} of {len(envs) - 1} transitions are there")
            steps = sum(not row[5] & INFRA for row in journal.rows)
            if not report.drained and not report.failure and steps != self.world.agents[name].steps:
                self.wrong(f"{name} is done after {steps} steps")
