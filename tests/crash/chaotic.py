"""A policy that learns from each reward, and a reward with a memory: what they do later tells
whether a successor has all that they had."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsec.policies import RandomPolicy
from dsec.runners.contract import Transitions


class Learner(RandomPolicy):
    """Turns its action round while what it got lately is more than nothing."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.lately = 0.0

    def act(self, obs: Any) -> Any:
        action = super().act(obs)
        return 1 - action if self.lately > 0 else action

    def learn(self, transitions: Transitions) -> None:
        self.lately = 0.9 * self.lately + float(transitions.reward[0])

    def get_state(self) -> dict[str, Any]:
        """What it inherits says where its draws are, and nothing of this."""
        return {"drawn": super().get_state(), "lately": self.lately}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state["drawn"])
        self.lately = state["lately"]


class Halved:
    """Half of the reward, and of the one before it a quarter."""

    def __init__(self, **spec: Any) -> None:
        self.before = 0.0

    def compute(self, transitions: Transitions) -> np.ndarray:
        reward = transitions.env_reward / 2 + self.before / 4
        self.before = float(transitions.env_reward[0])
        return reward
