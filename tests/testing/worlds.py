"""Environments with what a check is to find: nothing, or a flaw that the constructor names."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_dice = random.Random(os.urandom(8))  # of the process, and nobody's seed


class World(gymnasium.Env[np.ndarray, np.int64]):
    """A random walk of 20 steps an episode, with the flaws that are asked for."""

    def __init__(self, *flaws: str, **more: str) -> None:
        self.flaws = {*flaws, *more.values()}
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.age = self.steps = 0
        self.kept: list[Any] = []
        self.place = np.zeros(2, np.float32)
        if "broken" in self.flaws:
            raise OSError("the simulator's licence is gone")
        if "thread" in self.flaws:
            threading.Thread(target=threading.Event().wait, daemon=True, name="ticker").start()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        self.place = self.np_random.normal(size=2).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        self.steps += 1
        self.place = self.place + self.np_random.normal(size=2).astype(np.float32)
        self.place[0] += 1.0 if action else -1.0
        if "chance" in self.flaws and self.steps == 7:
            self.place[1] += _dice.random() + 1.0
        if "hash" in self.flaws:
            self.place[1] += hash("dsec") & 0xFFFF
        if "memory" in self.flaws:
            self.kept.append(bytearray(os.urandom(2048)))
        if "descriptors" in self.flaws and self.steps % 50 == 0:
            self.kept.append(os.open("/proc/self/status", os.O_RDONLY))
        if "dies" in self.flaws and self.steps == 30:
            os._exit(9)
        return self.place.copy(), float(self.place[0]), self.age >= 20, False, {}
