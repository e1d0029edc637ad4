"""What one call costs when processes take turns on one core, as the runners of many agents do.

Owns the explanation of a figure of bench run: an agent's step needs its env runner and its policy
runner one after the other, so with more runners than cores each call begins on a core where
somebody else has just run, with other memory in the caches and the TLB. Nothing of dsec is
measured here; a token goes round through pipes, and its own way is measured, too.

How many take turns matters in steps: an x86 core running Linux keeps the TLB entries of the last
six address spaces; with more of them every turn starts without any. `huge` shows what is left
when a process has its private memory in pages of 2 MiB, collapsed after it was constructed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bench.measure import ROOT, Result, interleave
from bench.run import policy_of

SIZES = (1, 2, 4, 5, 6, 8)
HUGE_PAGE = 2 << 20
MADV_COLLAPSE = 25  # Linux 6.1 and later


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


def collapse() -> tuple[int, int]:
    """Put what private memory of this process can be into huge pages.

    Returns:
        How many such pages that made, and of how many.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    made = tried = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, *rest = line.split()
        if access != "rw-p" or (len(rest) > 3 and rest[3] != "[heap]"):
            continue
        start, end = (int(each, 16) for each in where.split("-"))
        for at in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
            tried += 1
            at_c, length = ctypes.c_void_p(at), ctypes.c_size_t(HUGE_PAGE)
            made += madvise(at_c, length, MADV_COLLAPSE) == 0
    return made, tried


def take_turns(kind: str, size: int, rounds: int, huge: bool) -> float:
    """Microseconds of processor time a call, with `size` forked processes on one core.

    The time of one of them, system calls for the token with it; what others take is not counted.
    """
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
    if huge and not collapse()[0]:
        raise RuntimeError("no huge page could be made of private memory (Linux 6.1, THP?)")
    for _ in range(200):
        call()
    read, write = pipes[mine][0], pipes[(mine + 1) % size][1]
    start = time.process_time()
    if mine == 0:
        os.write(write, b"x")
    for _ in range(rounds):
        os.read(read, 1)
        call()
        os.write(write, b"x")
    took = (time.process_time() - start) / rounds * 1e6
    if mine != 0:
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    return took


def in_process(kind: str, size: int, rounds: int, huge: bool) -> float:
    """Measure in a fresh process."""
    line = f"from bench import turns; print(turns.take_turns({kind!r}, {size}, {rounds}, {huge}))"
    argv = [sys.executable, "-c", line]
    limits = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=limits, check=True, capture_output=True, text=True, timeout=120
    )
    return float(done.stdout)


def run(quick: bool) -> list[Result]:
    """The call alone, and among up to 8 processes."""
    calls, rounds = (500, 2) if quick else (3000, 5)
    results = []
    for kind, label, pages in (
        ("none", "nothing but the token", (False,)),
        ("step", "a step of CartPole", (False, True)),
        ("act", "an act of the small torch policy", (False, True)),
    ):
        trials = {
            f"{size} taking turns{', huge' if huge else ''}": (
                lambda s=size, k=kind, h=huge: in_process(k, s, calls, h)
            )
            for size in SIZES
            for huge in pages
        }
        results.append(
            Result(
                name=f"Processes taking turns on one core: {label}",
                unit="µs of processor time a call",
                samples=interleave(trials, rounds, warm_up=0),
                baseline=f"{SIZES[0]} taking turns",
                better="lower",
            )
        )
    return results
