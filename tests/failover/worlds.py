"""Real environments as users make them, and how two of them are compared bit for bit.

Owns the list of what codecs are tried on. `same_future` is the oracle: it knows nothing of codecs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ale_py  # noqa: F401  (importing it registers its environments)
import gymnasium
import minigrid  # noqa: F401
import numpy as np
from gymnasium import wrappers

Env = gymnasium.Env[Any, Any]


def made(name: str, **options: Any) -> Callable[[], Env]:
    """A constructor for a registered environment, without the passive checker."""
    return lambda: gymnasium.make(name, disable_env_checker=True, **options)


def stacked() -> Env:
    """TimeLimit(100), frame stack, normalisation and statistics over a continuous task."""
    env: Any = wrappers.TimeLimit(made("Pendulum-v1")(), 100)
    env = wrappers.FlattenObservation(wrappers.FrameStackObservation(env, 4))
    env = wrappers.NormalizeReward(wrappers.NormalizeObservation(env))
    return wrappers.RecordEpisodeStatistics(env)


def atari(game: str) -> Env:
    """As one trains on it: preprocessing, sticky actions, four frames."""
    env = made(game, frameskip=1, repeat_action_probability=0.25)()
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env), 4)


CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
TEXT = ("FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1")
MUJOCO = ("HalfCheetah-v5", "Ant-v5", "Humanoid-v5")
BOX2D = ("LunarLander-v3", "BipedalWalker-v3")

WORLDS: dict[str, Callable[[], Env]] = {
    **{name: made(name) for name in (*CLASSIC, *TEXT, *MUJOCO)},
    "MiniGrid-DoorKey-5x5-v0": made("MiniGrid-DoorKey-5x5-v0"),
    "ALE/Pong-v5": made("ALE/Pong-v5"),
    "ALE/Breakout-v5": made("ALE/Breakout-v5"),
    "Pong, not sticky": made("ALE/Pong-v5", repeat_action_probability=0.0),
    "Pong, very sticky": made("ALE/Pong-v5", repeat_action_probability=0.9, frameskip=1),
    "CartPole, as made": lambda: gymnasium.make("CartPole-v1"),
    "Pong, preprocessed": lambda: atari("ALE/Pong-v5"),
    "Breakout, preprocessed": lambda: atari("ALE/Breakout-v5"),
    "five wrappers": stacked,
}


def exactly(value: Any) -> Any:
    """A value in a form in which == means bit for bit, types included."""
    if isinstance(value, np.ndarray | np.generic):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: exactly(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [exactly(each) for each in value]
    return (type(value).__name__, value.hex() if isinstance(value, float) else value)


def future(env: Env, actions: list[Any], reset_at: int = -1) -> list[Any]:
    """What the environment does on these actions, resets included."""
    seen: list[Any] = []
    for number, action in enumerate(actions):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            obs, reward, terminated, truncated, _ = env.step(action)
            seen.append(exactly([obs, float(reward), bool(terminated), bool(truncated)]))
            if terminated or truncated or number == reset_at:
                seen.append(exactly(env.reset()[0]))
    return seen


def actions_for(env: Env, count: int, seed: int = 0) -> list[Any]:
    """Random actions that leave the environment's own generators alone."""
    space = wrappers_free_copy(env.action_space)
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def wrappers_free_copy(space: Any) -> Any:
    """A copy of a space with a generator of its own."""
    from copy import deepcopy

    return deepcopy(space)
