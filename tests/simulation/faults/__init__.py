"""What goes wrong, and when: each seed draws some classes of faults and gives them weights.

Swarm testing: with all classes at once most runs end early and alike; with a few of them, each seed
goes deep into another corner. A fault is done to somebody who is there at that moment; one that
finds nobody is not done. Faults end after a while, so that what must follow can be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.simulation.runners import Runner

if TYPE_CHECKING:
    from tests.simulation.world import World

Fault = Callable[["World"], bool]
FAULTS: dict[str, Fault] = {}
RARE: set[str] = set()  # those that end a run: drawn seldom, or nothing else would be seen


def fault(name: str, *, rare: bool = False) -> Callable[[Fault], Fault]:
    """Register a class of faults. It returns whether it was done."""

    def register(call: Fault) -> Fault:
        FAULTS[name] = call
        if rare:
            RARE.add(name)
        return call

    return register


def victim(world: World, *kinds: type[Runner], serving: bool = False) -> Runner | None:
    """A runner that lives."""
    living = [
        each
        for each in world.living(*(kinds or (Runner,)))
        if isinstance(each, Runner) and not each.hung and (each.serving or not serving)
    ]
    if not living:
        return None
    found = world.chance.choice(living)
    world.touch(found)
    return found


class Swarm:
    """The faults of one seed."""

    def __init__(self, world: World, kinds: Sequence[str] | None = None) -> None:
        chance = world.chance
        self.world, self.done = world, list[str]()
        if kinds is None:
            kinds = [n for n in FAULTS if chance.random() < (0.05 if n in RARE else 0.3)]
        self.kinds = {name: chance.random() ** 2 + 0.02 for name in kinds}
        self.left = chance.choice((0, 1, 2, 4, 8, 16))
        self.mean_s = chance.choice((0.005, 0.05, 0.3))
        self.first_s = chance.choice((0.0, 0.5, 0.9, 1.5))

    def begin(self) -> None:
        """The first one is due."""
        self.world.machine.loop.after(self.first_s + self._pause_s(), self._next)

    def _pause_s(self) -> float:
        return self.world.chance.expovariate(1.0 / self.mean_s)

    def _next(self) -> None:
        world = self.world
        if self.left <= 0 or not self.kinds or world.over:
            return
        name = world.chance.choices([*self.kinds], [*self.kinds.values()])[0]
        world.machine.tell("fault", name)
        if FAULTS[name](world):
            self.left -= 1
            self.done.append(name)
            world.calm_since = world.machine.now()
        world.machine.loop.after(self._pause_s(), self._next)
