"""Whole agents, by the real command, against the plain loop of Gymnasium and torch in one process.

Owns the plain loops and the two configurations. All play CartPole with the same small network and
the same categorical sampling on one torch thread. The plain loop is ordinary torch; since the
policy class that the agents use is quicker than that, the plain loop is shown with that class as
well, so that nobody takes its speed for the kernel's. The agents pay for everything that they are
there for: three processes each, rings, supervision and a recorded journal. Start-up is left out on
both sides: the kernel counts from the first agent's Go to the last one's end, the loops from their
first reset.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from bench.measure import ROOT, Result, interleave
from dsec.torch_policies import TorchMLPPolicy

POLICY_KWARGS: dict[str, Any] = {"hidden": [64, 64]}
POLICY = {"entry": "dsec.torch_policies:TorchMLPPolicy", "kwargs": POLICY_KWARGS}
COMMAND = Path(sys.executable).with_name("dsec-kernel")
PLAIN = "plain loop"
Rates = tuple[float, float]  # steps a second, episodes a second


def policy_of(env: gymnasium.Env[Any, Any], num_envs: int) -> TorchMLPPolicy:
    """The policy that the agents have, for the loops in one process."""
    return TorchMLPPolicy(
        observation_space=env.observation_space,
        action_space=env.action_space,
        num_envs=num_envs,
        seed=0,
        **POLICY_KWARGS,
    )


class OrdinaryPolicy:
    """The same network and distribution as most people write them, without their mistakes: no
    gradients, one thread, a generator of its own."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        wide, narrow = POLICY_KWARGS["hidden"]
        self.network = torch.nn.Sequential(
            torch.nn.Linear(4, wide),
            torch.nn.Tanh(),
            torch.nn.Linear(wide, narrow),
            torch.nn.Tanh(),
            torch.nn.Linear(narrow, 2),
        )
        self.random = torch.Generator().manual_seed(0)

    @torch.inference_mode()
    def act(self, obs: NDArray[np.float32]) -> Any:
        """One action for one observation."""
        chances = torch.softmax(self.network(torch.from_numpy(obs)), -1)
        return torch.multinomial(chances, 1, generator=self.random).numpy()


def plain_loop(seconds: float, ordinary: bool) -> Rates:
    """One environment, one forward for each step, as tutorials write it."""
    env = gymnasium.make("CartPole-v1")
    policy = OrdinaryPolicy() if ordinary else policy_of(env, 1)
    steps = episodes = 0
    start = time.perf_counter()
    obs, _ = env.reset(seed=0)
    while time.perf_counter() - start < seconds:
        for _ in range(100):
            obs, _, terminated, truncated, _ = env.step(policy.act(obs)[0])
            if terminated or truncated:
                episodes += 1
                obs, _ = env.reset()
        steps += 100
    took = time.perf_counter() - start
    env.close()
    return steps / took, episodes / took


def vector_loop(seconds: float, width: int) -> Rates:
    """The same with Gymnasium's SyncVectorEnv and one forward for all its environments."""
    modes = gymnasium.vector.AutoresetMode
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * width, autoreset_mode=modes.SAME_STEP
    )
    policy = policy_of(envs.envs[0], width)
    steps = episodes = 0
    start = time.perf_counter()
    obs, _ = envs.reset(seed=0)
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            obs, _, terminated, truncated, _ = envs.step(policy.act(obs))
            episodes += int(np.count_nonzero(terminated | truncated))
        steps += 20 * width
    took = time.perf_counter() - start
    envs.close()
    return steps / took, episodes / took


def in_process(code: str) -> Rates:
    """Measure in a fresh process, so that both sides start equal."""
    line = f"from bench import run; print(run.{code})"
    out = subprocess.run(
        [sys.executable, "-c", line], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    steps, episodes = json.loads(out.strip().replace("(", "[").replace(")", "]"))
    return steps, episodes


def by_kernel(
    count: int, num_envs: int, steps: int, record: str, policy: dict[str, Any] = POLICY
) -> Rates:
    """One run of the real command; the figures are those of its summary."""
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as folder:
        config: dict[str, Any] = {
            "run": {"name": "bench", "seed": 1, "steps": steps},
            "agents": [
                {
                    "name": "cartpole",
                    "count": count,
                    "env": {"id": "CartPole-v1", "num_envs": num_envs},
                    "policy": policy,
                }
            ],
            "record": {"format": record},
        }
        path = Path(folder, "config.yaml")
        path.write_text(yaml.safe_dump(config))
        argv = [str(COMMAND), "run", str(path), "--json", "--out", str(Path(folder, "run"))]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-4000:]}")
        summary = json.loads(done.stdout.strip().splitlines()[-1])
    return summary["steps_per_s"], summary["episodes_per_s"]


def compare(count: int, num_envs: int, wanted: float, quick: bool, *, vector: bool) -> list[Result]:
    """Steps and episodes of the same rounds, as two results."""
    seconds, rounds = (1.0, 2) if quick else (5.0, 5)
    steps = (20_000 if quick else 150_000) * (1 if num_envs == 1 else 5)
    label = f"{count} agents x num_envs {num_envs}"
    measured: dict[str, Callable[[], Rates]] = {
        PLAIN: lambda: in_process(f"plain_loop({seconds}, True)"),
        "plain loop with the agents' policy class": lambda: in_process(
            f"plain_loop({seconds}, False)"
        ),
        label: lambda: by_kernel(count, num_envs, steps, "parquet"),
        f"{label}, nothing recorded": lambda: by_kernel(count, num_envs, steps, "none"),
    }
    if vector:
        measured[f"SyncVectorEnv of {num_envs}, one process"] = lambda: in_process(
            f"vector_loop({seconds}, {num_envs})"
        )
    kept: dict[str, list[Rates]] = {name: [] for name in measured}

    def keep(name: str) -> float:
        kept[name].append(measured[name]())
        return kept[name][-1][0]

    trials = {name: (lambda n=name: keep(n)) for name in measured}
    samples = interleave(trials, rounds)
    episodes = {name: [rate[1] for rate in rates[-rounds:]] for name, rates in kept.items()}
    note = f"{steps:,} steps in each run of the kernel; start-up and conversion are left out."
    title = f"CartPole with a small torch policy, {label}"
    target = {label: wanted}
    return [
        Result(title, "steps/s", samples, PLAIN, target=target, note=note),
        Result(title, "episodes/s", episodes, PLAIN, target=target),
    ]


def run(quick: bool) -> list[Result]:
    """Many narrow agents, then few wide ones."""
    return [
        *compare(8, 1, 1.5, quick, vector=False),
        *compare(2, 32, 5.6, quick, vector=True),
    ]
