"""Who else steps several environments at once, each as its documentation shows, ready to be timed.

Owns their set-up. Each takes actions for all its environments and hands back what came of them, in
its own form; each resets by itself. What comes with `[bench]` and isn't installed is named by
`missing`; nothing is left out in silence. Forking ones are opened before any that starts threads.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bench import envs
from bench.measure import ROOT

Step = Callable[[NDArray[np.int64]], Any]
ASYNC, ASYNC_SAME = "AsyncVectorEnv, default", "AsyncVectorEnv, same-step"
LIMIT = "two plain loops, one on each core"
ENVPOOL = {"cartpole": "CartPole-v1", "atari": "Pong-v5"}


def async_vector(name: str, count: int, stack: ExitStack, *, same_step: bool = False) -> Step:
    """Gymnasium's own, with shared memory and without copies."""
    modes = gymnasium.vector.AutoresetMode
    vector = gymnasium.vector.AsyncVectorEnv(
        [functools.partial(envs.make, name)] * count,
        shared_memory=True,
        copy=False,
        context="fork",
        autoreset_mode=modes.SAME_STEP if same_step else modes.NEXT_STEP,
    )
    stack.callback(vector.close)
    vector.reset(seed=0)
    return vector.step


def sync_vector(name: str, count: int, stack: ExitStack) -> Step:
    """Gymnasium's loop in this process: no isolation."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    makers = [functools.partial(envs.make, name)] * count
    vector = gymnasium.vector.SyncVectorEnv(makers, copy=False, autoreset_mode=mode)
    stack.callback(vector.close)
    vector.reset(seed=0)
    return vector.step


def stable_baselines(name: str, count: int, stack: ExitStack) -> Step:
    """Stable-Baselines3's SubprocVecEnv."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    vector = SubprocVecEnv([functools.partial(envs.make, name)] * count, start_method="fork")
    stack.callback(vector.close)
    vector.reset()
    return vector.step


def torchrl(name: str, count: int, stack: ExitStack) -> Step:
    """TorchRL's ParallelEnv."""
    import torch
    from torchrl.envs import GymWrapper, ParallelEnv

    def make() -> Any:
        return GymWrapper(envs.make(name), categorical_action_encoding=True)

    vector = ParallelEnv(count, make, mp_start_method="fork")
    stack.callback(vector.close)
    state = vector.reset()

    def step(actions: NDArray[np.int64]) -> Any:
        nonlocal state
        state["action"] = torch.from_numpy(actions)
        done, state = vector.step_and_maybe_reset(state)
        return done

    return step


def envpool(name: str, count: int, stack: ExitStack) -> Step:
    """EnvPool: its own environments in C++, on two threads of this process."""
    import envpool as pool

    threads = min(count, len(os.sched_getaffinity(0)))
    vector = pool.make(
        ENVPOOL[name], env_type="gymnasium", num_envs=count, num_threads=threads, seed=0
    )
    stack.callback(vector.close)
    vector.reset()
    return lambda actions: vector.step(actions.astype(np.int32))


def ray_actors(name: str, count: int, stack: ExitStack) -> Step:
    """An actor of Ray for each environment."""
    import ray

    ray.init(
        num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    stack.callback(ray.shutdown)

    class Actor:
        def __init__(self) -> None:
            self.env = envs.make(name)
            self.env.reset(seed=0)

        def step(self, action: np.int64) -> Any:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                obs, _ = self.env.reset()
            return obs, reward, terminated, truncated

    remote = ray.remote(num_cpus=1)(Actor)
    actors = [remote.remote() for _ in range(count)]

    def step(actions: NDArray[np.int64]) -> Any:
        pairs = zip(actors, actions, strict=True)
        rows = ray.get([actor.step.remote(action) for actor, action in pairs])
        return [np.stack(column) for column in zip(*rows, strict=True)]

    step(np.zeros(count, np.int64))
    return step


# label -> the package it comes with, and how it is opened; the order is that of opening.
PEERS: dict[str, tuple[str, Callable[[str, int, ExitStack], Step]]] = {
    ASYNC: ("gymnasium", async_vector),
    ASYNC_SAME: ("gymnasium", functools.partial(async_vector, same_step=True)),
    "SB3 SubprocVecEnv": ("stable_baselines3", stable_baselines),
    "TorchRL ParallelEnv": ("torchrl", torchrl),
    "EnvPool, no isolation": ("envpool", envpool),
    "Ray actors": ("ray", ray_actors),
}


def open_all(name: str, count: int, stack: ExitStack) -> tuple[dict[str, Step], str]:
    """Those that can step this environment, and a sentence on those that can't."""
    opened: dict[str, Step] = {}
    absent, unable = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs are not about what is measured
        for label, (package, build) in PEERS.items():
            if importlib.util.find_spec(package) is None:
                absent.append(f"{label} ({package} is not installed)")
            elif build is envpool and name not in ENVPOOL:
                unable.append(f"{label} (has no such environment)")
            else:
                opened[label] = build(name, count, stack)
    left_out = "; ".join(absent + unable)
    return opened, f" Left out: {left_out}." if left_out else ""


class PlainLoops:
    """What the cores could do at most: a process pinned to each, with nothing but an environment.

    `rate` is their steps a second together.
    """

    def __init__(self, name: str, stack: ExitStack) -> None:
        self._children = []
        for core in sorted(os.sched_getaffinity(0))[:2]:
            code = f"from bench import peers; peers.serve_loop({name!r}, {core})"
            child = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdin is not None and child.stdout is not None
            stack.callback(child.wait, 30)
            stack.callback(child.stdin.close)
            self._children.append((child.stdin, child.stdout))
        for _, out in self._children:
            assert out.readline() == "ready\n"

    def rate(self, seconds: float) -> float:
        """Run all loops at once for that long."""
        for ask, _ in self._children:
            ask.write(f"{seconds}\n")
            ask.flush()
        return sum(float(out.readline()) for _, out in self._children)


def serve_loop(name: str, core: int) -> None:
    """A child of PlainLoops: for each line of seconds on stdin, one of steps a second."""
    os.sched_setaffinity(0, {core})
    env = envs.make(name)
    actions = np.random.default_rng(1).integers(0, envs.ACTIONS[name], 1000)
    env.reset(seed=0)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, done, start = float(line), 0, time.perf_counter()
        while (took := time.perf_counter() - start) < seconds:
            for number in range(done, done + 10):
                _, _, terminated, truncated, _ = env.step(actions[number % 1000])
                if terminated or truncated:
                    env.reset()
            done += 10
        print(done / took, flush=True)
