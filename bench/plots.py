"""Pictures for the documents: steps a second against the number of agents, and against payload.

Owns which points are measured, and the two pictures, docs/steps_by_agents.svg and
docs/steps_by_payload.svg, which it writes anew each time. matplotlib comes with `[bench]`. A point
is the median of its trials; the whiskers reach from the least to the most.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np

from bench import envs, peers
from bench.measure import ROOT, Result, interleave, machine, paced
from bench.run import by_kernel
from bench.vector import isolated
from dsec.ipc.frames import EnvSettings
from dsec.runners.construct import make_env

AGENTS = (1, 2, 4, 8, 16, 32)
PAYLOADS = (64, 1 << 10, 1 << 14, 1 << 18, 1 << 20)
LANES = 4
STEPS_OF_A_RUN = 12_000
OURS, THEIRS, WHOLE = "isolated env runners", "AsyncVectorEnv", "whole agents (dsec-kernel run)"
Series = Mapping[str, Mapping[int, Sequence[float]]]


def trial(step: peers.Step, count: int, choices: int, seconds: float) -> Callable[[], float]:
    """A trial of one candidate with `count` environments."""
    drawn = np.random.default_rng(1).integers(0, choices, (200, count))
    return lambda: paced(lambda number: step(drawn[number % 200]), count, seconds, grain=5)


def measure(settings: EnvSettings, count: int, choices: int, quick: bool) -> dict[str, list[float]]:
    """Ours and AsyncVectorEnv with `count` environments."""
    seconds, rounds = (0.2, 1) if quick else (0.5, 5)
    modes = gymnasium.vector.AutoresetMode
    with ExitStack() as stack:
        vector = gymnasium.vector.AsyncVectorEnv(
            [functools.partial(make_env, settings)] * count,
            copy=False,
            context="fork",
            autoreset_mode=modes.SAME_STEP,
        )
        stack.callback(vector.close)
        vector.reset(seed=0)
        mine = isolated(settings, count, stack)
        trials = {
            OURS: trial(mine, count, choices, seconds),
            THEIRS: trial(vector.step, count, choices, seconds),
        }
        return interleave(trials, rounds)


def by_agents(quick: bool) -> dict[str, dict[int, list[float]]]:
    """CartPole with more and more agents."""
    found: dict[str, dict[int, list[float]]] = {OURS: {}, THEIRS: {}, WHOLE: {}}
    for count in AGENTS[:3] if quick else AGENTS:
        for label, samples in measure(envs.SETTINGS["cartpole"], count, 2, quick).items():
            found[label][count] = samples
        steps = max(STEPS_OF_A_RUN // (10 if quick else 1), 100 * count)
        found[WHOLE][count] = [
            by_kernel(count, 1, steps, "none", policy={"entry": "dsec.policies:RandomPolicy"})[0]
            for _ in range(1 if quick else 2)
        ]
    return found


def by_payload(quick: bool) -> dict[str, dict[int, list[float]]]:
    """The same four environments with larger and larger observations."""
    found: dict[str, dict[int, list[float]]] = {OURS: {}, THEIRS: {}}
    for nbytes in PAYLOADS[:2] if quick else PAYLOADS:
        for label, samples in measure(envs.payload(nbytes), LANES, 4, quick).items():
            found[label][nbytes] = samples
    return found


def draw(name: str, title: str, xlabel: str, series: Series, under: str) -> None:
    """Write docs/NAME.svg."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = name  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (label, points), marker in zip(series.items(), "os^", strict=False):
        x = list(points)
        middle = [float(np.median(points[each])) for each in x]
        below = [m - min(points[each]) for each, m in zip(x, middle, strict=True)]
        above = [max(points[each]) - m for each, m in zip(x, middle, strict=True)]
        axes.errorbar(x, middle, yerr=(below, above), marker=marker, capsize=3, label=label)
    axes.set(title=title, xlabel=xlabel, ylabel="environment steps per second", xscale="log")
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    ticks = list(next(iter(series.values())))
    axes.set_xticks(ticks, [size_of(each) if "size" in xlabel else str(each) for each in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.supxlabel(under, fontsize=7, color="0.35")
    figure.savefig(ROOT / "docs" / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def size_of(nbytes: int) -> str:
    """`64 B`, `16 KiB`."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


def result(name: str, what: str, series: Series) -> list[Result]:
    """The points as tables, one for each."""
    tables = []
    for point in next(iter(series.values())):
        samples: dict[str, Any] = {
            label: list(points[point])
            for label, points in series.items()
            if len(points[point]) == len(series[THEIRS][point])
        }
        tables.append(Result(f"{name}, {what} {point}", "steps/s", samples, THEIRS))
    return tables


def run(quick: bool) -> list[Result]:
    """Measure and draw. With `quick` there are few points, and no picture is written."""
    agents, payloads = by_agents(quick), by_payload(quick)
    if quick:
        print("quick: no picture is written", file=sys.stderr)
    else:
        facts = machine()
        under = "; ".join(facts[key] for key in ("machine", "load", "command"))
        draw("steps_by_agents", "CartPole-v1, one environment an agent", "agents", agents, under)
        title = f"{LANES} environments that hand out bytes, in lockstep"
        draw("steps_by_payload", title, "size of an observation", payloads, under)
    return [
        *result("CartPole-v1", "agents:", agents),
        *result(f"{LANES} environments", "bytes:", payloads),
    ]
