"""From SIGSEGV to the next observation, beside what people do by hand, and what protection costs.

`python -m bench failover` measures all of it in about ten minutes; `python -m bench.failover PART…`
parts of it, for machines that are quiet for a short time only.

Owns the runs (one agent each, killed again and again by its own policy; or eight of them, of which
one is killed), the alternative (a fresh interpreter that imports, constructs, resets and replays
the episode's actions) and the pairs of runs with and without protection. Latency is taken where it
counts, in the policy: from just before the signal is sent to the moment at which the next
observation is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.measure import ROOT, Figures, Summary, percentile, report

COMMAND = Path(sys.executable).with_name("dsec-kernel")
RUN_MAX_S = 900.0
AGENTS = 8
ENDLESS = 10**12  # steps


@dataclass(frozen=True)
class World:
    """One environment, and how it is killed.

    Attributes:
        env: its configuration.
        module: what registers it.
        replayed: steps of an episode that the alternative replays.
        wanted: of p50 and p99, in milliseconds, and of the factor to the alternative.
        kills, every: how often, and in how many actions once.
        killer: the policy.
    """

    env: dict[str, Any]
    module: str
    replayed: int
    wanted: tuple[float, float, float]
    kills: int
    every: int
    killer: str = "bench.fatal:Killer"


WORLDS = {
    "CartPole-v1": World({"id": "CartPole-v1"}, "", 11, (3.0, 10.0, 50.0), 1000, 2000),
    "HalfCheetah-v5": World({"id": "HalfCheetah-v5"}, "", 500, (3.0, 10.0, 20.0), 300, 1500),
    "ALE/Pong-v5": World(
        {"id": "ale_py:ALE/Pong-v5"}, "ale_py", 400, (3.0, 10.0, 20.0), 200, 400,
        killer="bench.fatal_torch:Seeing",
    ),
    "LunarLander-v3": World({"id": "LunarLander-v3"}, "", 50, (40.0, 80.0, 20.0), 300, 1500),
    "LunarLander-v3 by fork": World(
        {"id": "LunarLander-v3"}, "", 50, (40.0, 80.0, 20.0), 200, 1500
    ),
}  # fmt: skip


def run(quick: bool) -> list[Figures]:
    """Measure every world that is installed, then the cost of protection and of a crash."""
    return [part(quick) for part in PARTS.values()]


def _world(name: str, quick: bool) -> Figures:
    """Kill one world's environment again and again."""
    figures = Figures(
        f"failover: {name}, SIGSEGV to the next valid observation",
        note="One agent, killed by its own policy; milliseconds as the policy sees them. By hand: a"
        " fresh interpreter, import, construct, reset, replay (median of 5).",
    )
    world, standby = WORLDS[name], "fork" if name.endswith("by fork") else "auto"
    try:
        by_hand = Summary([_by_hand(name, world) for _ in range(1 if quick else 5)])
    except subprocess.CalledProcessError:
        print(f"{name} is not installed here", file=sys.stderr)
        return figures
    took, summary = _killed(world, 12 if quick else world.kills, standby)
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    wanted50, wanted99, times = world.wanted
    failovers = summary["failovers_in_order"]
    figures.add(f"p50 of {len(took)}", p50, "ms", f"≤ {wanted50:g}")
    figures.add("p99", p99, "ms", f"≤ {wanted99:g}")
    figures.add("least", min(took), "ms")
    for what in ("detect", "restore", "replay", "fence", "total"):
        told = [each["ms"][what] for each in failovers if each["ms"][what] is not None]
        figures.add(f"in the supervisor: {what}, p50", percentile(told or [0.0], 0.5), "ms")
    replayed = [each["replayed"] for each in failovers]
    figures.add("replayed, p50", percentile(replayed, 0.5), "transitions")
    for level, count in Counter(each["level"] for each in failovers).items():
        figures.add(f"by {level}", count, "failovers")
    exact = sum(each["exact"] for each in failovers)
    figures.add("exact", 100 * exact / summary["failovers"], "%", "100")
    figures.add("lost", summary["lost"], "transitions", "0")
    figures.add("by hand", by_hand.median, "ms")
    figures.add("times faster", by_hand.median / p50, "", f"≥ {times:g}")
    return figures


def _cost(quick: bool) -> Figures:
    """Protection as auto chooses it against none, in runs that alternate."""
    rounds, steps = (2, 20_000) if quick else (7, 150_000)
    speeds, times = _pairs({"id": "CartPole-v1"}, rounds, steps)
    figures = Figures(
        "failover: what protection costs",
        note="CartPole, one agent, nothing killed; pairs of runs, one after the other, each without"
        " its first fifth. Processor time is the env runner's alone, from its first reset to its"
        " end, the trial of the codec included.",
    )
    _add_cost(figures, speeds, 5)
    none, auto = Summary(times["none"]).median, Summary(times["auto"]).median
    figures.add("standby none, processor time of a step", none, "µs")
    figures.add("standby auto, processor time of a step", auto, "µs")
    figures.add("cost in processor time", 100 * (auto / none - 1), "%")
    return figures


def _cost_of_slow_steps(quick: bool) -> Figures:
    """The same where a step takes a millisecond."""
    rounds, steps = (2, 1_000) if quick else (7, 5_000)
    slowed = {"entry": "bench.fatal:Slowed", "kwargs": {"seconds": 0.001}}
    speeds, _ = _pairs({"id": "CartPole-v1", "wrappers": [slowed]}, rounds, steps)
    figures = Figures(
        "failover: what protection costs where a step takes 1 ms",
        note="As above, with a millisecond of computing in each step.",
    )
    _add_cost(figures, speeds, 1)
    return figures


def _add_cost(figures: Figures, speeds: dict[str, list[float]], wanted: float) -> None:
    shares = [100 * (1 - a / n) for a, n in zip(speeds["auto"], speeds["none"], strict=True)]
    figures.add("standby none", Summary(speeds["none"]).median, "steps/s")
    figures.add("standby auto", Summary(speeds["auto"]).median, "steps/s")
    figures.add("cost, median of the pairs", Summary(shares).median, "%", f"≤ {wanted:g}")
    figures.add("least and most of them", min(shares), f"% to {max(shares):.3g} %")


def _pairs(
    env: dict[str, Any], rounds: int, steps: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Steps a second, and processor time of a step in microseconds, with `auto` and `none`."""
    speeds: dict[str, list[float]] = {"auto": [], "none": []}
    times: dict[str, list[float]] = {"auto": [], "none": []}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(rounds * 2):
            standby = ("auto", "none", "none", "auto")[index % 4]
            time_path, speed_path = (str(Path(folder) / f"{what}{index}") for what in ("t", "s"))
            meter = {"entry": "bench.fatal:Metered", "kwargs": {"path": time_path, "steps": steps}}
            metered = env | {"wrappers": [*env.get("wrappers", ()), meter]}
            paced = {"path": speed_path, "first": steps // 5}
            policy = {"entry": "bench.fatal:Paced", "kwargs": paced}
            _run([_agent(metered, policy, standby)], steps)
            speeds[standby].append(float(Path(speed_path).read_text()))
            times[standby].append(float(Path(time_path).read_text()))
    return speeds, times


def _others(quick: bool) -> Figures:
    """What a crash of one agent of eight costs the others, in the second that follows it."""
    crashes, gap_s = (3 if quick else 100), 2.2
    with tempfile.TemporaryDirectory() as folder:
        told, counted = Path(folder) / "victim", Path(folder) / "counted"
        killer = {"path": str(told), "every": 1 << 40, "seconds": gap_s}
        beside = {"entry": "bench.fatal:Bystander", "kwargs": {"path": str(counted)}}
        victim = {"entry": "bench.fatal:Killer", "kwargs": killer}
        agents = [_agent(_mortal({"id": "CartPole-v1"}, told), victim, "auto", "victim")]
        for index in range(1, AGENTS):
            agents.append(_agent({"id": "CartPole-v1"}, beside, "auto", f"beside{index}"))
        times = Path(f"{told}.ms")
        summary = _run(agents, ENDLESS, until=lambda: _lines(times) > crashes)
        lines = [line.split() for line in counted.read_text().splitlines()]
        killed = [float(line.split()[1]) for line in times.read_text().splitlines()]
    counts: Counter[int] = Counter()
    for tenth, count in lines:
        counts[int(tenth)] += int(count)
    last, costs = max(counts), []
    for at in (int(each * 10) + 1 for each in killed):  # the tenth that the crash is in is neither
        before, after = (sum(counts[at + i] for i in span) for span in (range(-11, -1), range(10)))
        if before and at + 10 < last:
            costs.append(100 * (1 - after / before))
    figures = Figures(
        f"failover: what a crash of one of {AGENTS} agents costs the others",
        note="CartPole, auto; steps of the seven others in the second after a crash of the eighth,"
        " against those in the second before. Also the making of the next spare is in it.",
    )
    figures.add(f"cost, median of {len(costs)} crashes", Summary(costs).median, "%", "≤ 3")
    figures.add("quartiles", percentile(costs, 0.25), f"% to {percentile(costs, 0.75):.3g} %")
    figures.add("steps of the seven", sum(counts.values()) / (len(counts) / 10), "steps/s")
    figures.add("failovers", summary["failovers"], "")
    return figures


PARTS: dict[str, Callable[[bool], Figures]] = {
    **{name: (lambda quick, name=name: _world(name, quick)) for name in WORLDS},
    "cost": _cost,
    "cost-1ms": _cost_of_slow_steps,
    "others": _others,
}


def _lines(path: Path) -> int:
    """How many lines a file has; none if it isn't there yet."""
    return path.read_text().count("\n") if path.exists() else 0


def _mortal(env: dict[str, Any], told: Path) -> dict[str, Any]:
    """The environment that writes down whose process it steps in."""
    told.write_text(" " * 10)
    return env | {"wrappers": [{"entry": "bench.fatal:Mortal", "kwargs": {"path": str(told)}}]}


def _killed(world: World, kills: int, standby: str) -> tuple[list[float], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "victim"
        killer = {"entry": world.killer, "kwargs": {"path": str(told), "every": world.every}}
        agent = _agent(_mortal(world.env, told), killer, standby)
        summary = _run([agent], (kills + 1) * world.every)
        took = [float(line.split()[0]) for line in Path(f"{told}.ms").read_text().splitlines()]
    return took, summary


def _agent(
    env: dict[str, Any], policy: dict[str, Any], standby: str, name: str = "victim"
) -> dict[str, Any]:
    failover = {"standby": standby, "restarts": {"max": 10**6}}
    return {"name": name, "env": env, "policy": policy, "failover": failover}


def _run(
    agents: list[dict[str, Any]], steps: int, until: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """One run of the real command, of so many steps or drained as soon as `until` says so; its
    summary.json."""
    document = {"run": {"seed": 7, "steps": steps}, "agents": agents, "record": {"format": "none"}}
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "config.yaml", Path(folder) / "run"
        config.write_text(yaml.safe_dump(document))
        with (Path(folder) / "log").open("w+b") as log:
            process = subprocess.Popen(
                [COMMAND, "run", config, "--out", out], cwd=ROOT, stdout=log, stderr=log
            )
            try:
                while until is not None and not until() and process.poll() is None:
                    time.sleep(0.1)
                if until is not None:
                    process.terminate()  # which drains it
                code = process.wait(RUN_MAX_S)
            finally:
                process.kill()
            log.seek(0)
            said = log.read().decode(errors="replace")[-2000:]
        if not (out / "summary.json").exists() or (code and until is None):
            raise RuntimeError(f"the run ended with {code}: {said}")
        result: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return result


def _by_hand(name: str, world: World) -> float:
    """Milliseconds from the start of a fresh interpreter to where the episode was."""
    code = textwrap.dedent(f"""
        import time
        import gymnasium
        if {world.module!r}:
            import {world.module or "gymnasium"}
        env = gymnasium.make({name.split()[0]!r})
        env.reset(seed=7)
        env.action_space.seed(7)
        for _ in range({world.replayed}):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
        print(time.monotonic_ns(), flush=True)
    """)
    started = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=120
    )
    return (int(done.stdout.split()[-1]) - started) / 1e6


def main() -> int:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=list(PARTS), metavar="PART")
    parser.add_argument("--quick", action="store_true", help="few kills: only a smoke test")
    options = parser.parse_args()
    print(report([PARTS[name](options.quick) for name in options.parts], as_json=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
