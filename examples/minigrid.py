"""A policy that reads what it is asked for: MiniGrid's missions beside its 7 x 7 view.

Owns the walk to the object that a mission such as "go to the red ball" names. The environment is
MiniGrid's own and needs no code here, examples/minigrid.yaml names it. Missions come in a space of
MiniGrid's own; to other processes they are a Text, one string for each environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

OBJECTS = {"key": 5, "ball": 6, "box": 7}
COLORS = {"red": 0, "green": 1, "blue": 2, "purple": 3, "yellow": 4, "grey": 5}
EMPTY = 1
LEFT, RIGHT, FORWARD = 0, 1, 2
HERE = np.array([3, 6])  # where the agent stands in its own view: bottom middle, looking up


class Seeker:
    """Turns towards the object that the mission names, walks to it, and searches while unseen.

    Args:
        stray: share of steps done at random, by which it gets around what stands in its way.
    """

    def __init__(
        self,
        *,
        observation_space: Any,
        action_space: Any,
        num_envs: int,
        seed: int,
        stray: float = 0.1,
    ) -> None:
        del observation_space, action_space, num_envs
        self.random, self.stray = np.random.default_rng(seed), stray
        self.seen = self.acted = 0

    def act(self, obs: dict[str, Any]) -> NDArray[np.int64]:
        """One action for each environment: `image` is uint8 (n, 7, 7, 3), `mission` n texts."""
        pairs = zip(obs["image"], obs["mission"], strict=True)
        return np.array([self.choose(view, mission) for view, mission in pairs], np.int64)

    def choose(self, view: NDArray[np.uint8], mission: str) -> int:
        """Left, right or forward; the view's axes are (across, away, what)."""
        color, kind = mission.split()[-2:]
        there = np.argwhere((view[:, :, 0] == OBJECTS[kind]) & (view[:, :, 1] == COLORS[color]))
        self.acted += 1
        self.seen += len(there) > 0
        free = view[3, 5, 0] == EMPTY
        if self.random.random() < self.stray or not len(there):
            return FORWARD if free and self.random.random() < 0.6 else int(self.random.integers(2))
        nearest = there[np.abs(there - HERE).sum(axis=1).argmin()]
        across, away = nearest - HERE
        if free and away < 0:
            return FORWARD
        return LEFT if across < 0 else RIGHT

    def metrics(self) -> dict[str, float]:
        """How often the object was in view."""
        return {"in_view": self.seen / max(1, self.acted)}
