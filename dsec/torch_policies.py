"""Policies with torch, apart from policies.py so that the core works without it.

Name this module among an image's modules, or let the config's entry do so: a zygote that has
imported torch shares it with all policies forked from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray


class TorchMLPPolicy:
    """A small fixed network that samples its actions: to measure and to test with, not to learn.

    Box observations go in flat. Discrete actions are drawn from a categorical distribution, those
    of a Box from a normal one around the output, clipped to the bounds. Weights and samples
    depend on the seed alone.
    """

    zero_copy = True  # act copies them into the network's input

    def __init__(
        self,
        *,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        seed: int,
        hidden: Sequence[int] = (64, 64),
        deviation: float = 0.5,
    ) -> None:
        """Construct the network.

        Args:
            hidden: widths of the layers between.
            deviation: standard deviation of the actions of a Box.

        Raises:
            TypeError: spaces of other kinds.
        """
        if not isinstance(observation_space, spaces.Box):
            raise TypeError(f"observations of a Box are needed, not {observation_space}")
        torch.set_num_threads(1)  # runners share the processors; more threads would contend
        self._random = torch.Generator().manual_seed(seed)
        self._n = num_envs
        self._deviation = deviation
        self._space = action_space
        match action_space:
            case spaces.Discrete():
                outputs = int(action_space.n)
                self._start = int(action_space.start)
                self._choose: Callable[[torch.Tensor], NDArray[Any]] = self._categorical
            case spaces.Box() if np.issubdtype(action_space.dtype, np.floating):
                outputs = int(np.prod(action_space.shape))
                self._bounds = action_space.low, action_space.high
                self._choose = self._normal
            case _:
                raise TypeError(f"actions of a Discrete or floating Box, not {action_space}")
        self._x = torch.zeros(num_envs, int(np.prod(observation_space.shape)))
        self._input: NDArray[np.float32] = self._x.numpy()  # the same memory
        widths = (int(np.prod(observation_space.shape)), *hidden, outputs)
        self._layers = [self._layer(before, after) for before, after in pairwise(widths)]

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Sample one action for each environment from observations (n, ...)."""
        with torch.inference_mode():
            self._input[...] = obs.reshape(self._n, -1)
            x = self._x
            *between, (weight, bias) = self._layers
            for inner_weight, inner_bias in between:
                x = torch.addmm(inner_bias, x, inner_weight).tanh_()
            return self._choose(torch.addmm(bias, x, weight))

    def _layer(self, before: int, after: int) -> tuple[torch.Tensor, torch.Tensor]:
        bound = float(before) ** -0.5
        weight = torch.empty(before, after).uniform_(-bound, bound, generator=self._random)
        return weight, torch.zeros(after)

    def _categorical(self, logits: torch.Tensor) -> NDArray[Any]:
        # The largest logit plus Gumbel noise is a draw from their softmax, at a third of the cost
        # of torch.multinomial.
        noise = torch.empty_like(logits).exponential_(generator=self._random).log_()
        actions: NDArray[Any] = logits.sub_(noise).argmax(1).numpy()
        if self._start:
            actions += self._start
        return actions.astype(self._space.dtype, copy=False)

    def _normal(self, mean: torch.Tensor) -> NDArray[Any]:
        noise = torch.empty_like(mean).normal_(0.0, self._deviation, generator=self._random)
        shape = (self._n, *(self._space.shape or ()))
        drawn: NDArray[Any] = mean.add_(noise).numpy().reshape(shape)
        # Clipped in the space's own dtype: a bound may have no equal in float32.
        actions: NDArray[Any] = drawn.astype(self._space.dtype, copy=False).clip(*self._bounds)
        return actions
