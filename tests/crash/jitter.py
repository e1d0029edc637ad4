"""An environment whose steps take as long as chance has it: the machine's, not the agent's."""

from __future__ import annotations

import random
import select
from typing import Any

import gymnasium


class Jitter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step takes up to `most_ms` milliseconds longer."""

    def __init__(self, env: gymnasium.Env[Any, Any], most_ms: float) -> None:
        super().__init__(env)
        self.most_ms = most_ms

    def step(self, action: Any) -> Any:
        # Not to wait for anything: to take long is what it is for.
        select.select((), (), (), random.SystemRandom().random() * self.most_ms / 1e3)
        return self.env.step(action)
