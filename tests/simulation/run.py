"""One seed, from its beginning to its end: the world, the faults, the oracles, the outcome."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dsec.report import RunReport
from tests.simulation.faults import Swarm, around, of_runners
from tests.simulation.loop import BEGIN_S, Stuck
from tests.simulation.oracles import Oracle
from tests.simulation.oracles.alone import Alone
from tests.simulation.oracles.budget import Budget
from tests.simulation.oracles.fence import Fence
from tests.simulation.oracles.identical import Identical
from tests.simulation.oracles.nothing_left import NothingLeft
from tests.simulation.oracles.progress import Progress
from tests.simulation.oracles.said import Said
from tests.simulation.oracles.standby import Standby
from tests.simulation.oracles.transitions import Transitions
from tests.simulation.oracles.wiring import Wiring
from tests.simulation.world import World

ORACLES: tuple[type[Oracle], ...] = (
    Transitions, Identical, Said, Fence, Wiring, Budget, Standby, Alone, Progress, NothingLeft,
)  # fmt: skip
CLASSES = (around, of_runners)  # importing them registers their faults
UNTIL_S = 600.0
STEPS_MAX = 400_000


@dataclass
class Outcome:
    """What came of one seed."""

    seed: int
    virtual_s: float
    real_s: float
    steps: int
    faults: Sequence[str]
    violations: Sequence[str]
    report: RunReport | None = None
    trace: Sequence[str] = field(default_factory=list)


def simulate(
    seed: int,
    *,
    trace: bool = False,
    kinds: Sequence[str] | None = None,
    until_s: float = UNTIL_S,
    watch: Callable[[World], object] = lambda world: None,
) -> Outcome:
    """Run one seed.

    Args:
        trace: keep what happens.
        kinds: of faults, in place of those that the seed draws.
        until_s: when a run that is not over counts as one that never ends.
        watch: makes somebody who sees what happens, and may do something.
    """
    began = time.perf_counter()
    random.seed(seed)  # the kernel's jitter
    world = World(seed, trace=trace)
    oracles = [oracle(world) for oracle in ORACLES]
    swarm = Swarm(world, kinds)
    watch(world)
    loop, report = world.machine.loop, None
    swarm.begin()
    try:
        report = loop.run(world.supervisor.run(), until_s, STEPS_MAX)
    except Stuck as stuck:
        world.found("progress", str(stuck))
    except Exception as error:
        world.found("kernel", f"{type(error).__name__}: {error}")
    else:
        loop.stopped_until = 0.0
        for oracle in oracles:
            oracle.end(report)
    for error in loop.errors:
        world.found("kernel", f"{type(error).__name__}: {error}")
    return Outcome(
        seed,
        loop.now - BEGIN_S,
        time.perf_counter() - began,
        loop.steps,
        swarm.done,
        world.violations,
        report,
        world.machine.trace or (),
    )
