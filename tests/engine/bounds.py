"""An environment with a keyword that JSON can't carry."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Bounded(gymnasium.Env[Any, Any]):
    def __init__(self, low: float) -> None:
        self.observation_space = gymnasium.spaces.Box(low, 1.0, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1), 0.0, False, False, {}
