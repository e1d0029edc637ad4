"""TrajectoryBuffer with floats: bytes, error, and the loss that PPO computes from a batch of them.

Owns what belongs to bench buffer and not to frames. Trajectories are of real MuJoCo episodes, or of
CartPole where that is missing.
"""

from __future__ import annotations

import importlib.util

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from bench.measure import Figures
from dsec.buffer import TrajectoryBuffer

WORLDS = ("HalfCheetah-v5", "Ant-v5") if importlib.util.find_spec("mujoco") else ("CartPole-v1",)


def episodes(
    world: str, count: int
) -> tuple[NDArray[np.float32], list[tuple[object, float, bool]]]:
    """Observations, float32 (count, n), and the action, reward and end of each step."""
    env = gymnasium.make(world)
    env.action_space.seed(0)
    obs, rest = [], []
    now, _ = env.reset(seed=0)
    for _ in range(count):
        obs.append(np.asarray(now, np.float32))
        action = env.action_space.sample()
        now, reward, terminated, truncated, _ = env.step(action)
        rest.append((action, float(reward), terminated or truncated))
        if terminated or truncated:
            now, _ = env.reset()
    env.close()
    return np.array(obs), rest


def loss(obs: torch.Tensor, actions: torch.Tensor, returns: torch.Tensor) -> float:
    """PPO's loss of a network drawn once: clipped surrogate against slightly older weights, value
    and entropy, as CleanRL writes it."""
    generator = torch.Generator().manual_seed(0)
    width, out = obs.shape[1], actions.shape[1]

    def layer(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / rows**0.5

    body, mean, value = layer(width, 64), layer(64, out), layer(64, 1)
    hidden = torch.tanh(obs @ body)
    policy = torch.distributions.Normal(hidden @ mean, 1.0)
    older = torch.distributions.Normal(hidden @ (mean * 0.99), 1.0)
    ratio = (policy.log_prob(actions) - older.log_prob(actions)).sum(1).exp()
    guess = (hidden @ value).squeeze(1)
    scaled = (returns - returns.mean()) / (returns.std() + 1e-8)
    advantage = scaled - guess.detach()
    clipped = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    return float(clipped + 0.5 * ((guess - scaled) ** 2).mean() - 0.01 * policy.entropy().mean())


def run(quick: bool) -> list[Figures]:
    """One table for each world."""
    return [one(world, 2000 if quick else 20_000) for world in WORLDS]


def one(world: str, count: int) -> Figures:
    """Bytes, error and loss."""
    obs, rest = episodes(world, count)
    buffer = TrajectoryBuffer(count, compressed_steps=None, burst_memory_prealloc_mb=0, seed=0)
    for row, (action, reward, done) in zip(obs, rest, strict=True):
        buffer.push(torch.from_numpy(row), action, reward, done)
    usage, batch = buffer.usage(), buffer.sample_batch(4096)
    held = np.asarray(batch.obs)
    plain = obs[batch.step]
    spread = obs.max(axis=0) - obs.min(axis=0)
    error = np.abs(held - plain) / np.where(spread > 0, spread, 1)
    scale = np.maximum(np.abs(plain).max(axis=0), 1e-8)
    of = [torch.from_numpy(np.ascontiguousarray(each, np.float32)) for each in (held, plain)]
    actions = torch.from_numpy(np.asarray(batch.action, np.float32).reshape(len(plain), -1))
    returns = batch.returns.float()
    ours, exact = (loss(each / torch.from_numpy(scale), actions, returns) for each in of)
    whole = count * (buffer.footprint(obs[0], rest[0][0]).plain // count + 8 + 1)
    found = Figures(f"{count:,} steps of {world}, float32 {obs.shape[1:]}")
    observed = usage.stored - count * np.asarray(rest[0][0]).nbytes
    found.add("chunks of observations, of a list of tensors", observed / usage.plain, "", "≤ 0.31")
    found.add("all of it, of lists of observations, actions, rewards", usage.total / whole, "")
    found.add("largest error, of the element's range", float(error.max()) * 100, "%", "≤ 0.3 %")
    found.add("PPO's loss", ours, "")
    found.add("the same of exact observations", exact, "")
    found.add("difference", abs(ours - exact) / abs(exact) * 100, "%", "float tolerance")
    return found
