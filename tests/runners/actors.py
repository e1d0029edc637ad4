"""Policies and rewards whose every answer depends on all that came before."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from tests.runners.worlds import Actor, checksum

HERE = "tests.runners.actors"


class Averaging(Actor):
    """Learns: what it does depends on every reward there was, and on draws of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._random = np.random.default_rng(self.seed)
        self._space = batch_space(self.action_space, self.num_envs)
        self._space.seed(self.seed)
        self._mean = 0.0
        self._learned = -1

    def act(self, obs: Any) -> Any:
        for _ in range(int(abs(self._mean) * 7) % 3):
            self._space.sample()
        return self._space.sample()

    def learn(self, t: Any) -> None:
        assert t.seq == self._learned + 1, "each transition once, in order"
        self._learned = t.seq
        self._mean += (float(t.reward.sum()) + self._random.random() - self._mean) / (t.seq + 1)


class Clumsy(Actor):
    """Takes half of a state, and then fails."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._chosen = 0

    def act(self, obs: Any) -> Any:
        return np.full(self.num_envs, self._chosen)

    def get_state(self) -> int:
        return 1

    def set_state(self, state: int) -> None:
        self._chosen = state
        raise ValueError("dropped it")


class Smoothing(Actor):
    """A reward with a memory."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._past: list[float] = []

    def compute(self, t: Any) -> Any:
        self._past = [*self._past[-9:], float(t.env_reward.sum()) + checksum(t.obs) * 1e-3]
        return np.full(self.num_envs, sum(self._past) / len(self._past))
