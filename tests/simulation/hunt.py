"""The hunt for planted mutants, and how many seeds it takes to find each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation import mutants
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import simulate

SEEDS_MAX = 1500
UNTIL_S = 150.0  # virtual: what never ends is seen soon enough


def load() -> dict[str, mutants.Mutant]:
    """All mutants, by name."""
    from tests.simulation.mutants import kernel, plan, world  # noqa: F401  (they register)

    return MUTANTS


@dataclass
class Found:
    """How a mutant was found: after how many seeds each time, and by which oracle first."""

    name: str
    seeds: list[int]
    oracle: str

    @property
    def mean(self) -> float:
        """Seeds that it takes."""
        return sum(self.seeds) / len(self.seeds) if self.seeds else float("inf")


def hunt(name: str, begins: Iterable[int] = (0,), seeds_max: int = SEEDS_MAX) -> Found:
    """Look for one mutant, from each of these seeds on."""
    found = Found(name, [], "")
    with load()[name]():
        for begin in begins:
            for seed in range(begin, begin + seeds_max):
                outcome = simulate(seed, until_s=UNTIL_S)
                if outcome.violations:
                    found.seeds.append(seed - begin + 1)
                    found.oracle = found.oracle or outcome.violations[0]
                    break
    return found
