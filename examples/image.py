"""Frames of 64 x 64 x 3 bytes, as fast as they can be drawn.

Owns the environment for examples/image.yaml: a ball that bounces through the frame, and a paddle
below. Run it for a look at what image observations cost, and at what they take in a recording.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SIDE = 64


class Catch(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Catch the ball with the paddle: 1 for a catch, and the end for a miss.

    Observation: uint8 (64, 64, 3). Action: 0 stay, 1 left, 2 right.
    """

    def __init__(self, paddle: int = 16, steps_max: int = 500) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space: spaces.Discrete = spaces.Discrete(3)
        self._width, self._steps_max = paddle, steps_max
        self._ball, self._speed = np.zeros(2), np.zeros(2)
        self._left = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self._ball = np.array([4.0, self.np_random.uniform(4, SIDE - 4)])
        self._speed = np.array([2.0, self.np_random.uniform(-1.5, 1.5)])
        self._left, self._steps = (SIDE - self._width) // 2, 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        move = (0, -2, 2)[int(action)]
        self._left = min(max(self._left + move, 0), SIDE - self._width)
        self._ball += self._speed
        if not 2 <= self._ball[1] <= SIDE - 3:
            self._speed[1] *= -1
        if self._ball[0] < 2:
            self._speed[0] = abs(self._speed[0])
        reward, missed = 0.0, False
        if self._ball[0] >= SIDE - 4:
            caught = self._left <= self._ball[1] < self._left + self._width
            reward, missed = float(caught), not caught
            self._speed[0] = -abs(self._speed[0])
        return self._draw(), reward, missed, self._steps >= self._steps_max, {}

    def _draw(self) -> NDArray[np.uint8]:
        frame = np.full((SIDE, SIDE, 3), 16, np.uint8)
        row, column = np.clip(self._ball.astype(int), 1, SIDE - 2)
        frame[row - 1 : row + 2, column - 1 : column + 2] = (250, 220, 60)
        frame[-3:, self._left : self._left + self._width] = (80, 160, 250)
        return frame
