"""The oracles: each file holds one guarantee against what it sees of a simulated world.

An oracle is told of events by methods `on_<event>`, and asked once more at the end. It knows the
world and the guarantee, and nothing of how the kernel keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsec.report import RunReport
    from tests.simulation.world import World


class Oracle:
    """One guarantee, watched."""

    guarantee = ""

    def __init__(self, world: World) -> None:
        self.world = world
        world.machine.watched_by(self)

    def wrong(self, what: str) -> None:
        """The guarantee does not hold."""
        self.world.found(type(self).__module__.rpartition(".")[2], what)

    def end(self, report: RunReport) -> None:
        """The run is over."""
