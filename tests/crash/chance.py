"""An agent whose every role draws from the global generators of its process, and from no other."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

HERE = __name__


class Dice(gymnasium.Env[Any, Any]):
    """Observations from numpy's legacy generator, rewards and ends from Python's."""

    observation_space = spaces.Box(-9.0, 9.0, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.random.randn(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs = np.array([np.random.randn(), float(action)])
        return obs, random.gauss(0.0, 1.0), random.random() < 0.02, False, {}


class Gambler:
    """Actions from both: Python's, numpy's."""

    def __init__(self, *, num_envs: int, **settings: Any) -> None:
        del settings
        self._n = num_envs

    def act(self, obs: Any) -> Any:
        return np.full(self._n, int(random.random() + np.random.random()))


class Taxed:
    """Takes as much of each reward as chance has it."""

    def __init__(self, **settings: Any) -> None:
        del settings

    def compute(self, transition: Any) -> Any:
        return transition.reward * random.random() - np.random.random()
