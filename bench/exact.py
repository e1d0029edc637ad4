"""Whether a run whose runners are killed all the time ends with what it would have ended with.

`python -m bench exact` asks it of six worlds; `python -m bench.exact WORLD --kills N --seconds S`
of one, in pieces of any length, because a thousand kills of each take hours on a small machine.
Each world is run twice by the real command with the same seed: once in peace, once while the
assassin (assassin.py) kills environments, policies and rewards at random instants.
Then every transition of the two recordings is compared, and where the policy saved its weights,
those, too.

Owns the worlds and the comparison. A failover that was not exact is counted by its reason and is a
failure, even where nothing came of it: dsec called it inexact itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.assassin import BESIDE, ROLES, Assassin, marked
from bench.measure import ROOT, Figures
from dsec.recording import Recording
from dsec.runners.journal import FILE_NAME

COMMAND = Path(sys.executable).with_name("dsec-kernel")
RUN_MAX_S = 3600.0
MARK = "DSEC_BENCH_RUN"
RANDOM = {"entry": "dsec.policies:RandomPolicy"}


@dataclass(frozen=True)
class World:
    """One family of environments.

    Attributes:
        agent: its entry of the configuration.
        steps: transitions of a run of it.
        weights: the keyword of the policy that names a file to save its weights in.
    """

    agent: dict[str, Any]
    steps: int
    weights: str = ""


WORLDS = {
    "classic": World({"env": {"id": "CartPole-v1"}, "policy": RANDOM}, 150_000),
    "box2d": World(
        {"env": {"id": "LunarLander-v3"}, "policy": RANDOM, "failover": {"standby": "fork"}}, 30_000
    ),
    "atari": World({"env": {"id": "ale_py:ALE/Pong-v5"}, "policy": RANDOM}, 15_000),
    "mujoco": World({"env": {"id": "HalfCheetah-v5"}, "policy": RANDOM}, 40_000),
    "wrappers": World(
        {
            "env": {
                "id": "Acrobot-v1",
                "wrappers": [
                    {"entry": "TimeLimit", "kwargs": {"max_episode_steps": 100}},
                    {"entry": "FrameStackObservation", "kwargs": {"stack_size": 4}},
                    {"entry": "NormalizeObservation"},
                    {"entry": "NormalizeReward"},
                ],
            },
            "policy": RANDOM,
        },
        40_000,
    ),
    "ppo": World(
        {
            "env": {"id": "CartPole-v1", "num_envs": 8},
            "policy": {"entry": "examples.ppo:PPO", "kwargs": {"train_steps": 100_000}},
        },
        124_000,
        weights="save",
    ),
}


@dataclass
class Outcome:
    """What a world's runs came to.

    Attributes:
        kills: signals that found a runner of a role.
        failovers: what the runs' summaries tell of, by role.
        inexact: failovers that were not exact, by reason.
        given_up: deaths that ended an agent, or the recorder.
        different: what differed between a run and its peaceful twin; empty if nothing did.
        lost: transitions that the recorder missed, or that are missing, doubled or torn.
        leaked: processes that outlived their run.
    """

    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    failovers: Counter[str] = field(default_factory=Counter)
    inexact: Counter[str] = field(default_factory=Counter)
    given_up: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    lost: int = 0
    leaked: int = 0

    @property
    def sound(self) -> bool:
        """Nothing happened to the data, nor was anything said to have happened."""
        return not (self.given_up or self.different or self.inexact or self.lost or self.leaked)


def run(quick: bool) -> list[Figures]:
    """Every world that is installed here."""
    figures = Figures(
        "exact: runs whose runners are killed at random instants, beside runs in peace",
        note="SIGKILL or SIGSEGV to environments, policies and rewards.",
    )
    for name in WORLDS:
        outcome = measure(name, kills=10 if quick else 200, seconds=60 if quick else 600)
        figures.add(f"{name}, kills", outcome.kills.total(), "")
        figures.add(f"{name}, failovers", outcome.failovers.total(), "")
        figures.add(f"{name}, agents given up", len(outcome.given_up), "", "0")
        figures.add(f"{name}, not exact", outcome.inexact.total(), "", "0")
        figures.add(f"{name}, runs that differ", len(outcome.different), "", "0")
        figures.add(f"{name}, lost, doubled or torn", outcome.lost, "transitions", "0")
        figures.add(f"{name}, left behind", outcome.leaked, "processes", "0")
    return [figures]


def measure(
    name: str,
    *,
    kills: int,
    seconds: float,
    seed: int = 1,
    gap_s: float = 0.6,
    steps: int = 0,
    targets: Sequence[str] = ROLES,
) -> Outcome:
    """Run a world in pairs until there were `kills` kills, or `seconds` are over."""
    world, outcome = WORLDS[name], Outcome()
    began = time.monotonic()
    while outcome.kills.total() < kills and outcome.seconds < seconds:
        left = kills - outcome.kills.total()
        with tempfile.TemporaryDirectory(prefix="dsec-exact-") as folder:
            this = seed + outcome.runs
            _pair(world, Path(folder), outcome, this, left, gap_s, steps, targets)
        outcome.seconds = time.monotonic() - began
    return outcome


def _pair(
    world: World,
    folder: Path,
    outcome: Outcome,
    seed: int,
    kills: int,
    gap_s: float,
    steps: int,
    targets: Sequence[str],
) -> None:
    """One run in peace and one under attack."""
    peace, war = folder / "peace", folder / "war"
    _run(world, peace, seed, steps)
    summary, assassin, leaked = _run(world, war, seed, steps, kills, gap_s, targets)
    outcome.runs += 1
    for death in summary["deaths_in_order"]:
        outcome.given_up.append(f"{death['role']}: {death['cause']}")
    outcome.steps += summary["steps"]
    outcome.leaked += leaked
    outcome.lost += summary["lost"]
    if assassin is not None:
        outcome.kills += assassin.kills
    for each in summary["failovers_in_order"]:
        outcome.failovers[each["role"]] += 1
        if not each["exact"]:
            outcome.inexact[f"{each['role']}: {each['why']}"] += 1
    if difference := compare(peace, war):
        outcome.different.append(f"seed {seed}: {difference}")


def _run(
    world: World,
    out: Path,
    seed: int,
    steps: int,
    kills: int = 0,
    gap_s: float = 0.0,
    targets: Sequence[str] = (),
) -> tuple[dict[str, Any], Assassin | None, int]:
    """One run of the real command: its summary, who killed in it, and how many were left."""
    agent = json.loads(json.dumps(world.agent)) | {"name": "agent"}
    agent["failover"] = {**agent.get("failover", {}), "restarts": {"max": 10**6}}
    if world.weights:
        agent["policy"]["kwargs"][world.weights] = str(out.with_suffix(".pt"))
    document = {"run": {"seed": seed, "steps": steps or world.steps}, "agents": [agent]}
    config, log = out.with_suffix(".yaml"), out.with_suffix(".log")
    config.write_text(yaml.safe_dump(document))
    mark = uuid.uuid4().hex
    with log.open("wb") as streams:
        process = subprocess.Popen(
            [COMMAND, "run", config, "--out", out],
            cwd=ROOT, env={**os.environ, MARK: mark}, stdout=streams, stderr=streams,
        )  # fmt: skip
        assassin = None
        if kills:
            assassin = Assassin(
                process.pid, out / FILE_NAME, seed=seed, gap_s=gap_s, most=kills, targets=targets
            )
            assassin.start()
        try:
            code = process.wait(RUN_MAX_S)
        finally:
            if assassin is not None:
                assassin.stop()
            process.kill()
    if code and assassin is None:
        raise RuntimeError(f"exit code {code}\n{log.read_text(errors='replace')[-4000:]}")
    left = len(marked(MARK, mark))
    return json.loads((out / "summary.json").read_text()), assassin, left


def compare(one: Path, other: Path) -> str:
    """What differs first between two runs; empty if nothing does."""
    with Recording.open(one) as left, Recording.open(other) as right:
        names = [agent.name for agent in left.agents]
        if names != [agent.name for agent in right.agents]:
            return "the agents"
        for agent in left.agents:
            for env in range(agent.num_envs):
                if found := _first(left, right, agent.name, env):
                    return f"{agent.name}, environment {env}: {found}"
    weights = [run.with_suffix(".pt") for run in (one, other)]
    if any(path.exists() for path in weights) and not same_weights(*weights):
        return "the weights"
    return ""


def _first(left: Recording, right: Recording, agent: str, env: int) -> str:
    mine, theirs = (each.transitions(agent, env=env) for each in (left, right))
    for name in ("seq", "obs", "action", "reward", "end"):
        a, b = getattr(mine, name), getattr(theirs, name)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name} has {len(a)} and {len(b)} entries of {a.dtype} and {b.dtype}"
        if a.tobytes() != b.tobytes():
            unlike = [i for i in range(len(a)) if a[i].tobytes() != b[i].tobytes()]
            at = unlike[0]
            return f"{name} {at} (and {len(unlike) - 1} later ones)"
    return ""


def same_weights(one: Path, other: Path) -> bool:
    """Whether two files of torch hold the same tensors, bit for bit."""
    import torch  # not everybody who compares recordings has it

    a, b = (torch.load(path, weights_only=True) for path in (one, other))
    if a.keys() != b.keys():
        return False
    return all(
        a[key].dtype == b[key].dtype
        and np.array_equal(a[key].numpy().view(np.uint8), b[key].numpy().view(np.uint8))
        for key in a
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one world, print what came of it as JSON; 1 if it was not exact."""
    parser = argparse.ArgumentParser(prog="python -m bench.exact", description=__doc__)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--kills", type=int, default=200, help="signals to send in all")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no pair after this")
    parser.add_argument("--seed", type=int, default=1, help="of the first pair; then the next ones")
    parser.add_argument("--gap", type=float, default=0.6, help="mean seconds between two kills")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="kill spares, clones and successors, too: at level fork a clone that is killed in the "
        "millisecond after its predecessor leaves nothing to go on from, and the episode ends "
        "there, as said",
    )
    parser.add_argument("--steps", type=int, default=0, help="of each run")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no run is left behind
    outcome = measure(
        options.world, kills=options.kills, seconds=options.seconds, seed=options.seed,
        gap_s=options.gap, steps=options.steps,
        targets=(*ROLES, BESIDE) if options.beside else ROLES,
    )  # fmt: skip
    print(json.dumps({"world": options.world, **vars(outcome), "sound": outcome.sound}))
    return 0 if outcome.sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
