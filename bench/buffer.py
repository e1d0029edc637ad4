"""TrajectoryBuffer beside a list of tensors and beside sb3-extra-buffers: memory, speed, exactness.

Owns the comparisons. Frames are of real Atari episodes played at random; all candidates get the
same ones, and what ours hands out is compared with them bit for bit. The peer's codecs are all
tried and the best of them for each table is what ours is compared with.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from bench import envs
from bench.measure import Figures, Result, interleave
from dsec.buffer import TrajectoryBuffer

BATCH = 64
OURS = "TrajectoryBuffer"
# Those of the peer's `fast` extra and its default; their levels are its own defaults.
METHODS = ("rle", "rle-jit", "zstd", "lz4-frame", "igzip3")


def frames(count: int) -> NDArray[np.uint8]:
    """Single frames of Pong, uint8 (count, 84, 84), as AtariPreprocessing makes them."""
    settings = envs.SETTINGS["atari"]
    env = envs.make_env(
        type(settings)(id=settings.id, kwargs=settings.kwargs, wrappers=settings.wrappers[:1])
    )
    env.action_space.seed(0)
    out = np.empty((count, 84, 84), np.uint8)
    out[0], _ = env.reset(seed=0)
    for i in range(1, count):
        out[i], _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            out[i], _ = env.reset()
    env.close()
    return out


def filled(source: NDArray[np.uint8], stack: int, length: int) -> TrajectoryBuffer:
    """Ours, with `length` steps of frames, or of stacks of them."""
    buffer = TrajectoryBuffer(length, compressed_steps=None, seed=1)
    for t in range(length):
        buffer.push(stacked(source, t, stack), t % 6, 0.0, False)
    return buffer


def stacked(source: NDArray[np.uint8], t: int, stack: int) -> NDArray[np.uint8]:
    """Observation t: the latest `stack` frames, the newest last."""
    return source[t : t + stack] if stack > 1 else source[t]


def lossless(buffer: TrajectoryBuffer, source: NDArray[np.uint8], stack: int) -> bool:
    """Whether a thousand observations that are drawn are bit for bit what was pushed."""
    batch = buffer.sample_batch(1000)
    return all(
        np.array_equal(obs, stacked(source, t, stack))
        and np.array_equal(following, stacked(source, t + 1, stack))
        for t, obs, following in zip(batch.step, batch.obs, batch.next_obs, strict=True)
    )


def memory(source: NDArray[np.uint8], lengths: list[int]) -> Figures:
    """Bytes beside those of a list of uint8 tensors."""
    found = Figures(
        "Atari frames: bytes beside a list of uint8 tensors",
        note="All that counts against the threshold: whole observations, waiting ones, blocks of "
        "compressed ones, preallocated ones, rewards and tables. `chunks` is what the compressed "
        "ones take in those blocks.",
    )
    for length in lengths:
        for stack in (1, 4):
            buffer = filled(source, stack, length)
            usage, kind = buffer.usage(), "84x84" if stack == 1 else "84x84x4"
            name = f"{length:,} x {kind}"
            found.add(f"{name}, of the list", usage.total / usage.plain, "", "≤ 0.10")
            found.add(f"{name}, chunks alone", usage.stored / usage.plain, "")
            same = lossless(buffer, source, stack)
            found.add(f"{name}, equal bit for bit (1 is yes)", float(same), "", "1")
    return found


def peer(source: NDArray[np.uint8], stack: int, length: int, method: str) -> Any:
    """sb3-extra-buffers' replay buffer with the same transitions."""
    from sb3_extra_buffers.compressed import CompressedReplayBuffer, find_buffer_dtypes

    shape = (stack, 84, 84)
    buffer = CompressedReplayBuffer(
        length,
        gymnasium.spaces.Box(0, 255, shape, np.uint8),
        gymnasium.spaces.Discrete(6),
        device="cpu",
        dtypes=find_buffer_dtypes(shape, np.uint8, method.rstrip("0123456789")),
        compression_method=method,
    )
    nothing, zero = np.zeros(1), [{}]
    for t in range(length):
        now, after = (source[i : i + stack][None] for i in (t, t + 1))
        buffer.add(now, after, np.array([[t % 6]]), nothing, nothing, zero)
    return buffer


def sampling(source: NDArray[np.uint8], stack: int, length: int, rounds: int) -> Result:
    """Transitions a second: batches of 64, observation and next observation, as torch tensors."""
    import torch

    ours = TrajectoryBuffer(length, compressed_steps=None, seed=1)
    for t in range(length):
        ours.push(torch.from_numpy(stacked(source, t, stack)), t % 6, 0.0, False)
    trials: dict[str, Callable[[], float]] = {}
    for method in METHODS:
        theirs = peer(source, stack, length, method)
        trials[f"sb3-extra-buffers, {method}"] = lambda it=theirs: rate(  # type: ignore[misc]
            lambda: it.sample(BATCH)
        )
    trials[OURS] = lambda: rate(lambda: ours.sample_batch(BATCH))
    samples = interleave(trials, rounds)
    best = max(list(trials)[:-1], key=lambda name: float(np.median(samples[name])))
    kind = "84x84 frames" if stack == 1 else "84x84x4 frame stacks"
    return Result(
        f"sampling {BATCH} of {length:,} {kind}",
        "transitions/s",
        samples,
        best,
        target={OURS: 3.0},
        note="Ratios are to the quickest codec of sb3-extra-buffers. All hand out observation and "
        "next observation as tensors.",
    )


def rate(sample: Callable[[], Any], batches: int = 30) -> float:
    """Transitions a second over so many batches."""
    start = time.perf_counter()
    for _ in range(batches):
        sample()
    return batches * BATCH / (time.perf_counter() - start)


def run(quick: bool) -> list[Result | Figures]:
    """Memory, sampling, floats and what PPO makes of them."""
    from bench import buffer_floats

    lengths, size, rounds = ([1000], 1000, 3) if quick else ([1000, 100_000], 10_000, 9)
    results: list[Result | Figures] = []
    if all(importlib.util.find_spec(name) for name in ("ale_py", "cv2")):
        source = frames(max(lengths) + 4)
        results.append(memory(source, lengths))
        if importlib.util.find_spec("sb3_extra_buffers"):
            results += [sampling(source, stack, size, rounds) for stack in (4, 1)]
        else:
            results[-1].note += (
                " Left out: sb3-extra-buffers (not installed; its wheel brings folders called tests"
                " and examples along, which hide ours, so it is not in [bench])."
            )
    return [*results, *buffer_floats.run(quick)]
