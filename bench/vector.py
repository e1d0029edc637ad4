"""Isolated environments in lockstep, beside what people would use instead.

Owns the comparisons and what is wanted of them. All get the same actions, drawn beforehand; ours
is `dsec.vector.make_vec`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from bench import bare, envs, peers
from bench.measure import Result, interleave, paced
from dsec.ipc.frames import EnvSettings
from dsec.vector import make_vec

LANES = 8
NOTE = (
    "AsyncVectorEnv has shared memory and makes no copies. Its default autoreset spends a step on"
    " each reset, which is counted as a step here; ours resets in the same step."
)
OURS = "isolated env runners"


def isolated(settings: EnvSettings, count: int, stack: ExitStack, width: int = 1) -> peers.Step:
    """Ours as people make it, but that nothing is kept for a failover: peers have none. Its arrays
    are written over at each step, as AsyncVectorEnv's are here."""
    made = make_vec(
        settings.id or settings.entry,
        count,
        envs_per_process=width,
        autoreset_mode="SameStep",
        copy=False,
        env_kwargs=settings.kwargs,
        wrappers=settings.wrappers,
        resource_profile="unprotected",
        seed=0,
    )
    stack.callback(made.close)
    made.reset(seed=0)
    return made.step


def timed(step: peers.Step, name: str, count: int, seconds: float) -> Callable[[], float]:
    """A trial of one candidate: environment steps a second."""
    drawn = np.random.default_rng(1).integers(0, envs.ACTIONS[name], (1000, count))
    return lambda: paced(lambda number: step(drawn[number % 1000]), count, seconds)


def beside_peers(title: str, name: str, wanted: float, quick: bool) -> Result:
    """Eight environments, each in a process of its own, against everybody else."""
    seconds, rounds = (0.3, 3) if quick else (1.0, 9)
    with ExitStack() as stack:
        bound = bare.BareForks(name, LANES, stack)
        steps, left_out = peers.open_all(name, LANES, stack)
        limit = name == "atari"
        loops = peers.PlainLoops(name, stack) if limit else None
        mine = isolated(envs.SETTINGS[name], LANES, stack)
        trials = {label: timed(step, name, LANES, seconds) for label, step in steps.items()}
        trials[OURS] = timed(mine, name, LANES, seconds)
        trials[bare.BARE] = timed(bound.step, name, LANES, seconds)
        if loops is not None:
            trials[peers.LIMIT] = lambda: loops.rate(seconds)
        samples = interleave(trials, rounds)
    note = NOTE + left_out
    if limit:
        share = np.median(np.array(samples[OURS]) / np.array(samples[peers.LIMIT]))
        note += (
            f" Ours reached {share:.0%} of the two plain loops, which are what idle cores can do at"
            " most (wanted: 90 %, if not the ratio)."
        )
    return Result(title, "steps/s", samples, peers.ASYNC, target={OURS: wanted}, note=note)


def wide(quick: bool) -> Result:
    """Few processes with many environments each: where isolation costs least."""
    seconds, rounds = (0.3, 3) if quick else (1.0, 9)
    lanes, width = 2, 8
    count, ours = lanes * width, f"{lanes} isolated env runners of {width}"
    baseline = f"SyncVectorEnv of {count}, no isolation"
    with ExitStack() as stack:
        steps = {
            baseline: peers.sync_vector("cartpole", count, stack),
            f"AsyncVectorEnv of {count}": peers.async_vector("cartpole", count, stack),
        }
        steps[ours] = isolated(envs.SETTINGS["cartpole"], count, stack, width)
        trials = {label: timed(step, "cartpole", count, seconds) for label, step in steps.items()}
        samples = interleave(trials, rounds)
    title = f"{count} x CartPole-v1, {width} in each of {lanes} runners"
    return Result(title, "steps/s", samples, baseline, target={ours: 1.3}, note=NOTE)


def run(quick: bool) -> list[Result]:
    """CartPole narrow and wide, frames, Atari."""
    results = [
        beside_peers(f"{LANES} x CartPole-v1 in lockstep", "cartpole", 8.0, quick),
        wide(quick),
        beside_peers(f"{LANES} x 64x64x3 frames in lockstep", "frames", 12.0, quick),
    ]
    if all(importlib.util.find_spec(module) for module in ("ale_py", "cv2")):
        title = f"{LANES} x ALE Pong, 84x84x4, in lockstep"
        results.append(beside_peers(title, "atari", 1.8, quick))
    else:
        results[-1].note += ' Atari is left out: it needs pip install "dsec-kernel[envs]".'
    return results
