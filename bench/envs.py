"""The environments that are measured with, each as settings that every candidate makes it from.

Owns their names and the one environment that is so cheap that what is measured is everything around
it. Knows nothing of who steps them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dsec.ipc.frames import EnvSettings
from dsec.runners.construct import make_env

FRAME = (64, 64, 3)


class Frames(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Observations of bytes, taken from a pool drawn once; camera-sized if nothing else is said."""

    def __init__(self, episode: int = 500, shape: tuple[int, ...] | list[int] = FRAME) -> None:
        self.observation_space = spaces.Box(0, 255, tuple(shape), np.uint8)
        self.action_space = spaces.Discrete(4)
        self.episode, self.age = episode, 0
        self.pool = np.random.default_rng(0).integers(0, 256, (16, *shape), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.pool[0], {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.pool[self.age % 16], 1.0, False, self.age >= self.episode, {}


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
            new = self.path.with_suffix(f".{os.getpid()}")  # whole or not at all
            new.write_text(str(time.time()))
            new.rename(self.path)
        return super().step(action)


SETTINGS = {
    "cartpole": EnvSettings(id="CartPole-v1"),
    "frames": EnvSettings(entry="bench.envs:Frames"),
    "atari": EnvSettings(
        id="ale_py:ALE/Pong-v5",
        kwargs={"frameskip": 1},
        wrappers=(
            {"entry": "AtariPreprocessing", "kwargs": {"frame_skip": 4, "screen_size": 84}},
            {"entry": "FrameStackObservation", "kwargs": {"stack_size": 4}},
        ),
    ),
}
ACTIONS = {"cartpole": 2, "frames": 4, "atari": 6}


def payload(nbytes: int) -> EnvSettings:
    """Frames of that many bytes."""
    return EnvSettings(entry="bench.envs:Frames", kwargs={"shape": [nbytes]})


def make(name: str) -> gymnasium.Env[Any, Any]:
    """One of them, as an env runner makes it."""
    return make_env(SETTINGS[name])
