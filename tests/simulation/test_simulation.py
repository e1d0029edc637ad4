"""The whole kernel under simulated faults: some seeds, some mutants; `make simulate` runs all."""

from __future__ import annotations

import pytest

from tests.simulation.coverage import Coverage
from tests.simulation.hunt import hunt, load
from tests.simulation.run import simulate

SEEDS = range(150)
QUICK = {  # mutant -> a seed that shows it; the hunt finds them all by itself
    "resume_before_fence": 0,
    "one_restart_too_many": 0,
    "exit_not_told": 0,
    "pidfd_leaks": 0,
}


@pytest.mark.slow
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8")
def test_no_seed_breaks_a_guarantee() -> None:
    coverage = Coverage()
    failovers = faults = 0
    with coverage.watching():
        for seed in SEEDS:
            outcome = simulate(seed)
            assert not outcome.violations, f"python -m tests.simulation --seed {seed} --trace"
            assert outcome.report is not None
            failovers += len(outcome.report.failovers)
            faults += len(outcome.faults)
    assert faults > len(SEEDS) and failovers > len(SEEDS) // 5, "or nothing was tested"
    assert sum(map(len, coverage.reached.values())) > 180


def test_a_seed_is_the_same_each_time() -> None:
    first, second = simulate(11, trace=True), simulate(11, trace=True)
    assert first.faults and len(first.trace) > 100
    assert [*map(_bare, first.trace)] == [*map(_bare, second.trace)]


def _bare(line: str) -> str:
    """A line without addresses of objects."""
    return " ".join(word for word in line.split() if "0x" not in word)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    found = hunt(name, [QUICK[name]], seeds_max=100)
    assert found.seeds, f"{name} was not found"


def test_there_are_twenty_mutants_and_they_leave_nothing_behind() -> None:
    assert len(load()) >= 20
    for each in load().values():
        with each():
            pass
    assert not simulate(3).violations
