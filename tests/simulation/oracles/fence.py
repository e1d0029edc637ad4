"""G5: who is told to resume is alone, for no earlier incarnation of its seat can write any more."""

from __future__ import annotations

from typing import Any

from dsec.ipc import frames
from tests.simulation.oracles import Oracle
from tests.simulation.runners import Runner
from tests.simulation.things import Memory, Record


class Fence(Oracle):
    """Looks at the processes themselves, at the moment at which Resume is read."""

    guarantee = "G5"

    def on_got(self, process: Any, frame: Any, things: list[Any]) -> None:
        if not isinstance(frame, frames.Resume):
            return
        for other in self.world.machine.processes.values():
            rival = isinstance(other, Runner) and other is not process
            if rival and other.name == process.name and other.wrote:
                self.wrong(f"{process} was resumed while {other} could still write")

    def on_published(self, process: Any, memory: Memory, record: Record) -> None:
        if process.dead:
            self.wrong(f"{process} wrote after its death")
