"""G8: when a run is over there is no process, no descriptor, no mapping and no watcher left."""

from __future__ import annotations

from dsec.report import RunReport
from tests.simulation.oracles import Oracle


class NothingLeft(Oracle):
    """Looks once, at the end."""

    guarantee = "G8"

    def end(self, report: RunReport) -> None:
        machine = self.world.machine
        if machine.processes:
            left = ", ".join(f"{each} {each.letter}" for each in machine.processes.values())
            self.wrong(f"processes are left: {left}")
        if machine.open_fds:
            kinds = sorted(thing.kind for thing in machine.open_fds.values())
            self.wrong(f"descriptors are left: {', '.join(kinds)}")
        if machine.loop.readers:
            self.wrong(f"{len(machine.loop.readers)} descriptors are still waited for")
        if mapped := [each.name for each in machine.memories if each.maps]:
            self.wrong(f"pages of {', '.join(mapped)} are still mapped")
