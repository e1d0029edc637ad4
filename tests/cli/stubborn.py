"""Environments for test_run.py that do not end when they are asked to, or at the wrong time."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import gymnasium
import numpy as np


class Stubborn(gymnasium.Env[Any, Any]):
    """Never returns from its third step."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**keywords)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 3:
            self.misbehave()
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def misbehave(self) -> None:
        sys.stderr.write("stuck\n")
        sys.stderr.flush()
        threading.Event().wait()


class Raises(Stubborn):
    """Divides by zero in its third step."""

    def misbehave(self) -> None:
        _ = 1 // (self.steps - 3)


class Unborn(gymnasium.Env[Any, Any]):
    """Never comes out of its constructor, and says so."""

    def __init__(self) -> None:
        sys.stderr.write("stuck\n")
        sys.stderr.flush()
        signal.pause()
