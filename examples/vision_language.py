"""A small world for agents that see and read: a frame, and an instruction of any length.

Owns the environment and a policy for examples/vision_language.yaml. In the frame are blocks of a
few colours; the instruction, in words, says which of them to touch, and in which order. It takes as
many words as there are blocks left, so no two observations need be of one size. The policy reads
the first word and looks for that colour: it needs no learning, and shows how frames (arrays with
a leading axis of environments) and texts (a tuple, one text for each environment) arrive.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 80, 230)}
CELL = 8
GRID = 8


class TouchInOrder(gymnasium.Env[dict[str, Any], np.int64]):
    """Touch the blocks in the order of the instruction; each right touch is worth 1.

    Observation: `frame` uint8 (64, 64, 3), and `instruction`, a Text of up to `blocks` phrases.
    Action: the cell to touch, row by row.
    """

    def __init__(self, blocks: int = 6, steps_max: int = 40) -> None:
        self.observation_space = spaces.Dict(
            {
                "frame": spaces.Box(0, 255, (GRID * CELL, GRID * CELL, 3), np.uint8),
                "instruction": spaces.Text(
                    24 * blocks + 4, min_length=0, charset="abcdefghijklmnopqrstuvwxyz ,."
                ),
            }
        )
        self.action_space: spaces.Discrete = spaces.Discrete(GRID * GRID)
        self._count, self._steps_max = blocks, steps_max
        self._blocks: list[tuple[int, str]] = []
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        cells = self.np_random.choice(GRID * GRID, self._count, replace=False)
        names = self.np_random.choice(list(COLOURS), self._count)
        self._blocks = [(int(c), str(name)) for c, name in zip(cells, names, strict=True)]
        self._steps = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._steps += 1
        wanted = self._blocks[0][1]
        touched = next((block for block in self._blocks if block[0] == action), None)
        reward = 0.0
        if touched is not None and touched[1] == wanted:
            self._blocks.remove(touched)
            self._blocks.sort(key=lambda block: block[1] != wanted)
            reward = 1.0
        return self._observe(), reward, not self._blocks, self._steps >= self._steps_max, {}

    def _observe(self) -> dict[str, Any]:
        frame = np.full((GRID * CELL, GRID * CELL, 3), 20, np.uint8)
        for cell, colour in self._blocks:
            top, left = divmod(cell, GRID)
            frame[top * CELL : (top + 1) * CELL, left * CELL : (left + 1) * CELL] = COLOURS[colour]
        words = ", then ".join(f"a {colour} block" for _, colour in self._blocks)
        return {"frame": frame, "instruction": f"{words}." if words else ""}


class Reader:
    """Touches a block of the colour that the instruction names first; strays now and then."""

    def __init__(
        self,
        *,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        num_envs: int,
        seed: int,
        stray: float = 0.1,
    ) -> None:
        del observation_space, action_space
        self._random = np.random.default_rng(seed)
        self._stray = stray
        self._words = 0

    def act(self, obs: dict[str, Any]) -> NDArray[np.int64]:
        """Choose a cell for each environment: frames (n, 64, 64, 3), instructions a tuple of n."""
        actions = self._random.integers(GRID * GRID, size=len(obs["frame"]))
        for i, text in enumerate(obs["instruction"]):
            self._words += len(text.split())
            if text and self._random.random() >= self._stray:
                middles = obs["frame"][i, CELL // 2 :: CELL, CELL // 2 :: CELL]
                there = (middles == COLOURS[text.split()[1]]).all(axis=-1)
                actions[i] = int(np.flatnonzero(there)[0])
        return actions

    def metrics(self) -> dict[str, float]:
        """Say how much it has read."""
        return {"words": float(self._words)}
