"""An environment that changes its mind: for runs that are to differ, and for replays of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Drift(gymnasium.Env[np.ndarray, np.int64]):
    """A walk that follows from its seed, until `order` (a file) says what to do at step `at`:
    `drift`, `crash`, `hang` or `raise`. Episodes are 20 steps long."""

    def __init__(self, order: str, at: int = 7) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._order, self._at, self._steps = order, at, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        self._place = self.np_random.normal(size=3).astype(np.float32)
        return self._place.copy(), {"clock": time.time()}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        order = Path(self._order).read_text() if self._steps == self._at else ""
        self._steps += 1
        self._age += 1
        self._place = self._place + self.np_random.normal(size=3).astype(np.float32)
        self._place[0] += 1.0 if action else -1.0
        match order:
            case "drift":
                self._place[1] = np.nextafter(self._place[1], np.float32(np.inf))
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                signal.pause()
            case "raise":
                raise ValueError("the order was to raise")
        return self._place.copy(), float(action), self._age >= 20, False, {"clock": time.time()}
