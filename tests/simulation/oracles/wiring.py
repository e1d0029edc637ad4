"""G2 across incarnations: rings and cursors outlive their writers, no generation is reused."""

from __future__ import annotations

from typing import Any

from dsec.ipc.frames import Role
from tests.simulation.oracles import Oracle
from tests.simulation.runners import Runner
from tests.simulation.things import Memory, Record


class Wiring(Oracle):
    """Compares what each incarnation is given with what the first one was."""

    guarantee = "G2"

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.given: dict[tuple[str, int], Memory] = {}
        self.writers: dict[tuple[str, int], tuple[int, int]] = {}
        self.cursors: dict[str, int] = {}

    def on_attached(self, process: Any, wire: Any) -> None:
        if isinstance(process, Runner):
            found = dict(process.peers)
        else:
            track = process.tracks[wire.agent]
            found = {**track.peers, Role.RECORDER: track.own}
        for role, memory in found.items():
            first = self.given.setdefault((wire.agent, role), memory)
            if first is not memory:
                self.wrong(f"{process} was given another segment of {role.name} than the first")
            if memory.agent != wire.agent or memory.role != role:
                self.wrong(f"{process} was given {memory.name} as that of {role.name}")

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        key = memory.agent, memory.role
        writer, epoch = self.writers.get(key, (record.writer, record.epoch))
        self.writers[key] = record.writer, record.epoch
        if writer != record.writer and record.epoch <= epoch:
            self.wrong(f"{process} writes under generation {record.epoch} after {epoch}")

    def on_committed(self, process: Any, agent: str, row: tuple[int, ...]) -> None:
        memory = process.tracks[agent].own
        cursor = memory.cursors.get(Role.ENV, 0)
        if cursor < self.cursors.get(agent, 0):
            self.wrong(f"the recorder's cursor on {agent} went back to {cursor}")
        self.cursors[agent] = cursor
