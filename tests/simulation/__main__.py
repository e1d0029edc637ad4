"""`python -m tests.simulation`: replay a seed, run many, or hunt the planted mutants.

python -m tests.simulation --seed 7 --trace      one seed, told line by line
python -m tests.simulation --seeds 0:10000 --jobs 2
python -m tests.simulation --mutants --jobs 2    every mutant, and the seeds it takes
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import Any

from tests.simulation.coverage import TABLES, Coverage
from tests.simulation.hunt import SEEDS_MAX, Found, hunt, load
from tests.simulation.run import simulate
from tests.simulation.unreachable import why

CHUNK = 50


def say(*words: object) -> None:
    """One line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def replay(seed: int, mutant: str, trace: bool) -> int:
    """One seed, with the reasons why it fails."""
    if mutant:
        with load()[mutant]():
            outcome = simulate(seed, trace=trace)
    else:
        outcome = simulate(seed, trace=trace)
    for line in outcome.trace:
        say(line)
    say(f"seed {seed}: {outcome.virtual_s:.3f} s virtual, {outcome.steps} events")
    say(f"faults: {', '.join(outcome.faults) or 'none'}")
    for name, agent in outcome.report.agents.items() if outcome.report is not None else ():
        say(f"{name}: {agent.state}, {agent.failovers} failovers, {agent.recycled} recycled")
    for violation in outcome.violations:
        say(f"VIOLATION {violation}")
    return len(outcome.violations) > 0


def chunk(begin: int, end: int) -> tuple[Any, ...]:
    """Some seeds in a process of their own."""
    coverage, faults, failed, virtual_s, failovers = Coverage(), Counter[str](), [], 0.0, 0
    began = time.process_time()
    with coverage.watching():
        for seed in range(begin, end):
            outcome = simulate(seed)
            virtual_s += outcome.virtual_s
            faults.update(outcome.faults)
            if outcome.report is not None:
                failovers += len(outcome.report.failovers)
            if outcome.violations:
                failed.append((seed, outcome.violations[0]))
    return coverage.reached, faults, failed, virtual_s, failovers, time.process_time() - began


def bulk(begin: int, end: int, jobs: int) -> int:
    """Many seeds; ends with figures, coverage and what failed."""
    coverage, faults, failed = Coverage(), Counter[str](), list[tuple[int, str]]()
    virtual_s, failovers, cpu_s, wall = 0.0, 0, 0.0, time.perf_counter()
    begins = range(begin, end, CHUNK)
    ends = [min(each + CHUNK, end) for each in begins]
    with ProcessPoolExecutor(jobs) as pool:
        for done in pool.map(chunk, begins, ends):
            coverage.add(done[0])
            faults.update(done[1])
            failed += done[2]
            virtual_s, failovers, cpu_s = virtual_s + done[3], failovers + done[4], cpu_s + done[5]
    wall, count = time.perf_counter() - wall, end - begin
    say(f"{count} seeds, {sum(faults.values())} faults, {failovers} failovers in {wall:.0f} s")
    say(f"{count / wall:.1f} seeds/s on {jobs} processes ({count / cpu_s:.1f} a processor second)")
    say(f"virtual time {virtual_s:.0f} s: {virtual_s / wall:.0f} times the time that it took")
    say(", ".join(f"{name} {number}" for name, number in faults.most_common()))
    for table, cells in TABLES.items():
        missing = coverage.missing(table)
        unknown = [cell for cell in missing if not why(table, *cell)]
        say(f"{table}: {len(cells) - len(missing)} of {len(cells)} cells reached;"
            f" {len(missing) - len(unknown)} can't be, {len(unknown)} were not")  # fmt: skip
        for state, event in unknown:
            say(f"  not reached: {state} {event}")
        wrong = [cell for cell in coverage.reached[table] if why(table, *cell)]
        for state, event in wrong:
            say(f"  reached, and said not to be reachable: {state} {event}")
    for seed, violation in failed:
        say(f"FAILED seed {seed}: {violation}")
    return len(failed) > 0


def hunted(name: str, rounds: int, seeds_max: int) -> Found:
    """One mutant, in a process of its own."""
    return hunt(name, [each * 100_000 for each in range(rounds)], seeds_max)


def hunt_all(jobs: int, rounds: int, seeds_max: int) -> int:
    """Every mutant."""
    missed = 0
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(hunted, load(), repeat(rounds), repeat(seeds_max)):
            missed += len(found.seeds) < rounds
            counts = ", ".join(map(str, found.seeds)) or "not found"
            say(f"{found.name:<32} {found.mean:8.1f} seeds ({counts})  {found.oracle}")
    say(f"{len(load())} mutants, {missed} not found every time")
    return missed > 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed")
    parser.add_argument("--trace", action="store_true", help="tell everything that happens")
    parser.add_argument("--mutant", default="", help="replay the seed with this planted bug")
    parser.add_argument("--seeds", default="", metavar="A:B", help="run all seeds from A to B")
    parser.add_argument("--mutants", action="store_true", help="hunt every planted bug")
    parser.add_argument("--rounds", type=int, default=3, help="hunts for each mutant")
    parser.add_argument("--seeds-max", type=int, default=SEEDS_MAX, help="of one hunt")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    if given.seed is not None:
        return replay(given.seed, given.mutant, given.trace)
    if given.mutants:
        return hunt_all(given.jobs, given.rounds, given.seeds_max)
    begin, _, end = (given.seeds or "0:1000").partition(":")
    return bulk(int(begin), int(end), given.jobs)


if __name__ == "__main__":
    sys.exit(main())
