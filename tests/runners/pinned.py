"""A policy of torch that unpins what a run has pinned, and asks for what it may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Unpinning:
    """Sets threads and algorithms in its constructor; acts by what it finds when it acts.

    Args:
        forbidden: use an operation of which there is no deterministic kind.
    """

    def __init__(self, *, num_envs: int, forbidden: bool = False, **_: Any) -> None:
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = True
        self.num_envs, self.forbidden = num_envs, forbidden

    def act(self, obs: Any) -> Any:
        if self.forbidden:
            torch.zeros(2, 2).put_(torch.tensor([0, 0]), torch.ones(2))
        # What an uninitialised tensor holds is chance, unless it is filled.
        unpinned = not torch.isnan(torch.empty(1000)).all() or torch.get_num_threads() > 1
        return np.full(self.num_envs, int(unpinned))
