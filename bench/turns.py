"""What one call costs when processes take turns on one core, as the runners of many agents do.

Owns the explanation of a figure of bench run: an agent's step needs its env runner and its policy
runner one after the other, so with more runners than cores each call begins on a core where
somebody else has just run, with other memory in the caches and the TLB. Nothing of dsec is
measured here; a token goes round through pipes, and its own way is measured, too.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bench.measure import ROOT, Result, interleave
from bench.run import policy_of

SIZES = (1, 2, 8)


def call_of(kind: str) -> Callable[[], Any]:
    """One step of CartPole, one act of the torch policy, or nothing."""
    env = gymnasium.make("CartPole-v1")
    if kind == "act":
        policy, obs = policy_of(env, 1), np.zeros((1, 4), np.float32)
        return lambda: policy.act(obs)
    if kind == "step":
        env.reset(seed=0)

        def step() -> None:
            _, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                env.reset()

        return step
    return lambda: None


def take_turns(kind: str, size: int, rounds: int) -> float:
    """Microseconds from one call to the next, with `size` forked processes on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    call = call_of(kind)
    gc.freeze()
    pipes = [os.pipe() for _ in range(size)]
    mine, children = 0, []
    for number in range(1, size):
        if (child := os.fork()) == 0:
            mine, children = number, []
            break
        children.append(child)
    for _ in range(200):
        call()
    read, write = pipes[mine][0], pipes[(mine + 1) % size][1]
    start = time.perf_counter()
    if mine == 0:
        os.write(write, b"x")
    for _ in range(rounds):
        os.read(read, 1)
        call()
        os.write(write, b"x")
    took = (time.perf_counter() - start) / rounds / size * 1e6
    if mine != 0:
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    return took


def in_process(kind: str, size: int, rounds: int) -> float:
    """Measure in a fresh process."""
    line = f"from bench import turns; print(turns.take_turns({kind!r}, {size}, {rounds}))"
    argv = [sys.executable, "-c", line]
    limits = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=limits, check=True, capture_output=True, text=True, timeout=120
    )
    return float(done.stdout)


def run(quick: bool) -> list[Result]:
    """The call alone, and among 2 and 8 processes."""
    calls, rounds = (500, 2) if quick else (3000, 5)
    results = []
    for kind, label in (
        ("none", "nothing but the token"),
        ("step", "a step of CartPole"),
        ("act", "an act of the small torch policy"),
    ):
        trials = {
            f"{size} taking turns": (lambda s=size, k=kind: in_process(k, s, calls))
            for size in SIZES
        }
        results.append(
            Result(
                name=f"Processes taking turns on one core: {label}",
                unit="µs a call",
                samples=interleave(trials, rounds),
                baseline=f"{SIZES[0]} taking turns",
                better="lower",
            )
        )
    return results
