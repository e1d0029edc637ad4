"""An environment whose steps take as long as chance has it: the machine's, not the agent's."""

from __future__ import annotations

import random
import select
from pathlib import Path
from typing import Any

import gymnasium


class Jitter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each step takes up to `most_ms` milliseconds longer, until there is a file `until`."""

    def __init__(self, env: gymnasium.Env[Any, Any], most_ms: float, until: str = "") -> None:
        super().__init__(env)
        self.most_ms, self.until = most_ms, until

    def step(self, action: Any) -> Any:
        if not self.until or not Path(self.until).exists():
            # Not to wait for anything: to take long is what it is for.
            select.select((), (), (), random.SystemRandom().random() * self.most_ms / 1e3)
        return self.env.step(action)
