"""Environments made for measuring: so cheap that what is measured is everything around them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

FRAME = (64, 64, 3)


class Frames(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Camera-sized observations, 64 x 64 x 3 bytes, taken from a pool drawn once."""

    def __init__(self, episode: int = 500) -> None:
        self.observation_space = spaces.Box(0, 255, FRAME, np.uint8)
        self.action_space = spaces.Discrete(4)
        self.episode, self.age = episode, 0
        self.pool = np.random.default_rng(0).integers(0, 256, (16, *FRAME), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.pool[0], {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.pool[self.age % 16], 1.0, False, self.age >= self.episode, {}


def make_frames() -> Frames:
    """The entry that both sides of the comparison use."""
    return Frames()


class Drowsy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Steps at full speed first, then takes its time: an agent that lives and is idle."""

    def __init__(self, env: gymnasium.Env[Any, Any], awake: int = 100, rest_s: float = 2.0) -> None:
        super().__init__(env)
        self.awake, self.rest_s, self.steps = awake, rest_s, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > self.awake:
            time.sleep(self.rest_s)
        return super().step(action)


class Stamped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down when its first step began, in seconds of the clock on the wall."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: str) -> None:
        super().__init__(env)
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        if not self.path.exists():
            self.path.write_text(str(time.time()))
        return super().step(action)
