"""From SIGSEGV to the next observation, beside what people do by hand, and what protection costs.

Owns the runs (one agent each, killed again and again by its own policy), the alternative (a fresh
interpreter that imports, constructs, resets and replays the episode's actions) and the pairs of
runs with and without protection. Latency is taken where it counts, in the policy: from just before
the signal is sent to the moment at which the next observation is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import yaml

from bench.measure import ROOT, Figures, Summary, percentile

COMMAND = Path(sys.executable).with_name("dsec-kernel")
RUN_MAX_S = 900.0
WORLDS = {
    # name: (configuration of the environment, module that registers it, steps of an episode that
    # the alternative replays, what the project wants of p50 and p99)
    "CartPole-v1": ({"id": "CartPole-v1"}, "", 11, (3.0, 10.0)),
    "HalfCheetah-v5": ({"id": "HalfCheetah-v5"}, "", 500, (3.0, 10.0)),
    "ALE/Pong-v5": ({"id": "ale_py:ALE/Pong-v5"}, "ale_py", 400, (3.0, 10.0)),
    "LunarLander-v3": ({"id": "LunarLander-v3"}, "", 50, (40.0, 80.0)),
}


def run(quick: bool) -> list[Figures]:
    """Measure every world that is installed, then the cost of protection."""
    figures = Figures(
        "failover: SIGSEGV to the next valid observation",
        note="One agent, standby auto, killed by its own policy; milliseconds as the policy sees "
        "them. By hand: a fresh interpreter, import, construct, reset, replay (median of 5).",
    )
    kills = 12 if quick else 1000
    for name, (env, module, replayed, wanted) in WORLDS.items():
        try:
            by_hand = Summary([_by_hand(name, module, replayed) for _ in range(1 if quick else 5)])
        except subprocess.CalledProcessError:
            print(f"{name} is not installed here", file=sys.stderr)
            continue
        took, summary = _killed(env, kills, every=2000)
        p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
        figures.add(f"{name}, p50 of {len(took)}", p50, "ms", f"≤ {wanted[0]:g}")
        figures.add(f"{name}, p99", p99, "ms", f"≤ {wanted[1]:g}")
        figures.add(f"{name}, in the supervisor, p50", summary["failover_ms"]["p50"], "ms")
        exact = sum(each["exact"] for each in summary["failovers_in_order"])
        figures.add(f"{name}, exact", 100 * exact / summary["failovers"], "%", "100")
        figures.add(f"{name}, lost", summary["lost"], "transitions", "0")
        figures.add(f"{name}, by hand", by_hand.median, "ms")
        times = 50 if name == "CartPole-v1" else 20
        figures.add(f"{name}, times faster", by_hand.median / p50, "", f"≥ {times}")
    return [figures, _cost(quick)]


def _cost(quick: bool) -> Figures:
    """Protection as auto chooses it against none, in runs that alternate."""
    rounds, steps = (2, 20_000) if quick else (7, 200_000)
    speeds: dict[str, list[float]] = {"auto": [], "none": []}
    times: dict[str, list[float]] = {"auto": [], "none": []}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(rounds * 2):
            standby = ("auto", "none", "none", "auto")[index % 4]
            path = str(Path(folder) / str(index))
            meter = {"entry": "bench.fatal:Metered", "kwargs": {"path": path, "steps": steps}}
            env = {"id": "CartPole-v1", "wrappers": [meter]}
            speeds[standby].append(_run(env, steps, standby=standby)["steps_per_s"])
            times[standby].append(float(Path(path).read_text()))
    shares = [100 * (1 - a / n) for a, n in zip(speeds["auto"], speeds["none"], strict=True)]
    figures = Figures(
        "failover: what protection costs",
        note="CartPole, one agent, nothing killed; pairs of runs, one after the other. Processor "
        "time is the env runner's alone, from its first reset to its end.",
    )
    figures.add("standby none", Summary(speeds["none"]).median, "steps/s")
    figures.add("standby auto", Summary(speeds["auto"]).median, "steps/s")
    figures.add("cost, median of the pairs", Summary(shares).median, "%", "≤ 5")
    none, auto = Summary(times["none"]).median, Summary(times["auto"]).median
    figures.add("standby none, processor time of a step", none, "µs")
    figures.add("standby auto, processor time of a step", auto, "µs")
    figures.add("cost in processor time", 100 * (auto / none - 1), "%", "≤ 5")
    return figures


def _killed(env: dict[str, Any], kills: int, every: int) -> tuple[list[float], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "victim"
        told.write_text(" " * 10)
        env = env | {"wrappers": [{"entry": "bench.fatal:Mortal", "kwargs": {"path": str(told)}}]}
        killer = {"entry": "bench.fatal:Killer", "kwargs": {"path": str(told), "every": every}}
        summary = _run(env, (kills + 1) * every, policy=killer)
        took = [float(line) for line in Path(f"{told}.ms").read_text().split()]
    return took, summary


def _run(
    env: dict[str, Any], steps: int, standby: str = "auto", policy: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One run of the real command; its summary.json."""
    agent = {
        "name": "victim",
        "env": env,
        "policy": policy or {"entry": "dsec.policies:RandomPolicy"},
        "failover": {"standby": standby, "restarts": {"max": 10**6}},
    }
    document = {"run": {"seed": 7, "steps": steps}, "agents": [agent], "record": {"format": "none"}}
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "config.yaml", Path(folder) / "run"
        config.write_text(yaml.safe_dump(document))
        subprocess.run(
            [COMMAND, "run", config, "--out", out],
            cwd=ROOT, check=True, capture_output=True, timeout=RUN_MAX_S,
        )  # fmt: skip
        result: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return result


def _by_hand(name: str, module: str, replayed: int) -> float:
    """Milliseconds from the start of a fresh interpreter to where the episode was."""
    code = textwrap.dedent(f"""
        import time
        import gymnasium
        if {module!r}:
            import {module or "gymnasium"}
        env = gymnasium.make({name!r})
        env.reset(seed=7)
        env.action_space.seed(7)
        for _ in range({replayed}):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
        print(time.monotonic_ns(), flush=True)
    """)
    started = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=120
    )
    return (int(done.stdout.split()[-1]) - started) / 1e6
