"""A policy that is a torch module, for the tests of weights."""

from __future__ import annotations

from typing import Any

import torch


class Net(torch.nn.Module):
    """Acts by one layer, and keeps a part of it in bfloat16, which numpy has not."""

    def __init__(self, *, seed: int, **_given: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = torch.nn.Linear(4, 2)
        self.brief = torch.nn.Parameter(torch.randn(2, dtype=torch.bfloat16))

    def act(self, obs: Any) -> Any:
        with torch.no_grad():
            return (self.layer(torch.from_numpy(obs)) + self.brief).argmax(1).numpy()
