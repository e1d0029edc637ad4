"""How everything here is measured: rounds of interleaved trials, ratios within a round.

Owns trials, statistics and their presentation; knows nothing of what is measured. Two programs
compared minutes apart on a busy machine say nothing about each other. So every candidate runs once
in each round, in an order that rotates, and a ratio is taken between neighbours of one round.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def percentile(samples: Sequence[float], q: float) -> float:
    """The q-quantile (0..1) by linear interpolation."""
    ordered = sorted(samples)
    where = q * (len(ordered) - 1)
    low = int(where)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (where - low)


@dataclass(slots=True)
class Summary:
    """Samples of one quantity."""

    samples: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def as_dict(self) -> dict[str, float]:
        return {
            "min": min(self.samples),
            "median": self.median,
            "p99": percentile(self.samples, 0.99),
            "max": max(self.samples),
            "n": len(self.samples),
        }


@dataclass(slots=True)
class Result:
    """What one benchmark found.

    Attributes:
        unit: of the samples, for example `steps/s`.
        samples: by candidate, one for each round.
        baseline: the candidate that ratios are taken against.
        target: the ratio that the project wants of a candidate; a statement, never an assertion.
        note: what was measured and what was left out, in words.
    """

    name: str
    unit: str
    samples: dict[str, list[float]]
    baseline: str
    better: str = "higher"
    target: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def ratios(self, candidate: str) -> Summary:
        """How many times better than the baseline, round by round."""
        pairs = zip(self.samples[candidate], self.samples[self.baseline], strict=True)
        higher = self.better == "higher"
        return Summary([mine / other if higher else other / mine for mine, other in pairs])

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "baseline": self.baseline,
            "better": self.better,
            "note": self.note,
            "candidates": {
                name: Summary(samples).as_dict()
                | {"ratio": self.ratios(name).as_dict(), "target": self.target.get(name)}
                for name, samples in self.samples.items()
            },
        }

    def table(self) -> str:
        """The result as Markdown, which RESULTS.md takes as it is."""
        lines = [f"**{self.name}** ({self.unit}, {len(self.samples[self.baseline])} rounds)", ""]
        if self.note:
            lines += [self.note, ""]
        lines += [
            "| | min | median | p99 | ratio (min / median / p99) | wanted |",
            "|---|---|---|---|---|---|",
        ]
        for name, samples in self.samples.items():
            found, ratio = Summary(samples).as_dict(), self.ratios(name).as_dict()
            times = (
                "1"
                if name == self.baseline
                else f"{ratio['min']:.2f} / **{ratio['median']:.2f}** / {ratio['p99']:.2f}"
            )
            wanted = f"≥ {self.target[name]:g}" if name in self.target else ""
            numbers = " | ".join(short(found[key]) for key in ("min", "median", "p99"))
            lines.append(f"| {name} | {numbers} | {times} | {wanted} |")
        return "\n".join(lines)


@dataclass(slots=True)
class Figures:
    """What was measured once, each figure by itself and beside what the project wants of it.

    Attributes:
        rows: name, figure, unit and what is wanted, in words (a statement, never an assertion).
    """

    name: str
    rows: list[tuple[str, float, str, str]] = field(default_factory=list)
    note: str = ""

    def add(self, name: str, figure: float, unit: str, wanted: str = "") -> None:
        self.rows.append((name, figure, unit, wanted))

    def as_dict(self) -> dict[str, Any]:
        rows = [
            dict(zip(("name", "figure", "unit", "wanted"), row, strict=True)) for row in self.rows
        ]
        return {"name": self.name, "note": self.note, "figures": rows}

    def table(self) -> str:
        """The figures as Markdown."""
        lines = [f"**{self.name}**", "", *([self.note, ""] if self.note else [])]
        lines += ["| | figure | wanted |", "|---|---|---|"]
        for name, figure, unit, wanted in self.rows:
            lines.append(f"| {name} | {short(figure)} {unit} | {wanted} |")
        return "\n".join(lines)


def short(number: float) -> str:
    """`67,300` or `0.0123`: three or more significant digits, whatever the size."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def paced(step: Callable[[int], Any], count: int, seconds: float, grain: int = 20) -> float:
    """Environment steps a second, over about that many seconds.

    Args:
        step: called with 0, 1, 2, …; steps `count` environments each time.
        grain: calls between two looks at the clock.
    """
    done, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        for number in range(done, done + grain):
            step(number)
        done += grain
    return done * count / took


def interleave(
    candidates: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Run every candidate once a round, in an order that rotates; the first rounds don't count."""
    names = list(candidates)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            sample = candidates[name]()
            if number >= 0:
                samples[name].append(sample)
    return samples


def machine() -> dict[str, str]:
    """What the figures belong to."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    packages = []
    for name in ("numpy", "gymnasium", "torch", "uvloop"):
        try:
            packages.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            packages.append(f"no {name}")
    return {
        "machine": f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        + ", ".join(packages),
        "load": f"{os.getloadavg()[0]:.0f} processes at once in the last minute, these included",
        "commit": commit(),
        "command": shlex.join(["python", "-m", _module(), *sys.argv[1:]]),
    }


def _module() -> str:
    """`bench`, or the part of it that is run by itself."""
    stem = Path(sys.argv[0]).stem
    return "bench" if stem == "__main__" else f"bench.{stem}"


def commit() -> str:
    """The commit checked out, with `+changes` if the tree differs from it."""
    try:
        name = subprocess.run(
            ["git", "describe", "--always", "--dirty=+changes", "--abbrev=12", "--exclude=*"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name


def report(results: Sequence[Result | Figures], *, as_json: bool) -> str:
    """All results with the machine, as Markdown or as one JSON object."""
    where = machine()
    if as_json:
        return json.dumps(where | {"results": [each.as_dict() for each in results]})
    head = "\n".join(f"- {key}: {value}" for key, value in where.items())
    return head + "\n\n" + "\n\n".join(each.table() for each in results)
