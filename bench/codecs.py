"""What it costs to capture and to restore an environment, beside pickle, deepcopy and a fork.

Owns the environments and the candidates. A restore is not offered by deepcopy and fork in this
form, so what is compared is the capture; the codec's restore stands beside it. Whether they are
faithful is no question of time, and only the codec has been checked: a pickle of an Atari or a
MuJoCo environment is fast because it leaves the state out.
"""

from __future__ import annotations

import copy
import os
import pickle
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium

from bench.measure import Result, interleave
from dsec.failover.codecs import codec_named, examine

ROUNDS, ROUNDS_QUICK = 20, 3
CALLS, CALLS_SLOW = 25, 3
NAMES = (
    "CartPole-v1",
    "FrozenLake-v1",
    "MiniGrid-DoorKey-5x5-v0",
    "ALE/Pong-v5",
    "HalfCheetah-v5",
    "LunarLander-v3",
)


def run(quick: bool) -> list[Result]:
    """One table for each environment, in microseconds; smaller is better."""
    for module in ("ale_py", "minigrid"):
        __import__(module)
    return [_measure(name, ROUNDS_QUICK if quick else ROUNDS) for name in NAMES]


def _timed(
    call: Callable[[], object], before: Callable[[], object], calls: int = CALLS
) -> Callable[[], float]:
    """The median of a few calls in a row: a fork makes all pages dear for whoever comes next."""

    def trial() -> float:
        took = []
        for _ in range(calls):
            before()
            started = time.perf_counter()
            call()
            took.append((time.perf_counter() - started) * 1e6)
        return median(took)

    return trial


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _measure(name: str, rounds: int) -> Result:
    env: Any = gymnasium.make(name)
    env.reset(seed=1)
    env.action_space.seed(1)

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()

    step()
    found = examine(env, seed=1)
    for _ in range(50):
        step()
    candidates = {
        "pickle.dumps": _timed(lambda: pickle.dumps(env, pickle.HIGHEST_PROTOCOL), step),
        "a step": _timed(step, lambda: None),
        "fork and reap": _timed(_fork, step, CALLS_SLOW),
    }
    if _works(lambda: copy.deepcopy(env)):
        candidates["copy.deepcopy"] = _timed(lambda: copy.deepcopy(env), step, CALLS_SLOW)
    if not _works(lambda: pickle.dumps(env)):
        del candidates["pickle.dumps"]
    note = "; ".join(found.notes)
    if found.codec is not None:
        codec, kept = found.codec, [found.codec.capture()]
        spare = codec_named(codec.name, gymnasium.make(name))
        candidates["codec: capture"] = _timed(lambda: kept.__setitem__(0, codec.capture()), step)
        candidates["codec: restore"] = _timed(lambda: spare.restore(kept[0]), step)
        note = f"codec {codec.name}, {len(kept[0]):,} bytes, found faithful. {note}".strip()
    samples = interleave(candidates, rounds, warm_up=1)
    env.close()
    return Result(f"codecs, {name}", "µs", samples, "fork and reap", better="lower", note=note)


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:
        return False
    return True
