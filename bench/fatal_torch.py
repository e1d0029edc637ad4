"""The killing policy of `bench failover` with torch in it: a network that looks at each frame.

Owns the network. Loaded only in children of a run, which have torch in their image then.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.fatal import Killer

SIDE = 21  # pixels of the picture that the network sees


class Seeing(Killer):
    """Draws its actions from what a small network makes of the frame."""

    zero_copy = False

    def __init__(self, *, seed: int, action_space: Any, **spec: Any) -> None:
        super().__init__(seed=seed, action_space=action_space, **spec)
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.network = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(SIDE),
            torch.nn.Flatten(),
            torch.nn.Linear(3 * SIDE * SIDE, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, int(action_space.n)),
        )
        self.draws = torch.Generator().manual_seed(seed)

    def act(self, obs: Any) -> Any:
        """Look, draw, and kill when it is time."""
        super().act(obs)
        with torch.no_grad():
            frames = torch.from_numpy(obs).permute(0, 3, 1, 2).float() / 255
            chances = self.network(frames).softmax(-1)
        return torch.multinomial(chances, 1, generator=self.draws)[:, 0].numpy()
