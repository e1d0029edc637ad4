"""The environment's own reward, and a function of a transition: rewards without a state."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from dsec.runners.contract import Transitions
from dsec.runners.failure import kind_of
from dsec.runners.lookup import resolve


class EnvReward:
    """The environment's own reward, unchanged. The default.

    `passthrough` tells the reward runner that it may copy the environment's numbers without
    building a `Transitions` for each.
    """

    passthrough = True

    def __init__(
        self,
        *,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        seed: int,
    ) -> None:
        """Takes what every reward is constructed with, needs none of it, and takes nothing else: a
        keyword that has no effect would be a mistake in the config that nobody is told of."""
        del observation_space, action_space, num_envs, seed

    def compute(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return the environment's rewards, float64 (n,)."""
        return transitions.env_reward


class FunctionReward:
    """A function of a transition, named in the config.

    `reward: {entry: "dsec.reward:FunctionReward", kwargs: {entry: "my_pkg.rewards:shaped"}}` calls
    `shaped(transitions)`, which returns float64 (n,).
    """

    def __init__(
        self,
        *,
        entry: str,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        seed: int,
    ) -> None:
        """Find the function.

        Raises:
            UserCodeError: `entry` names nothing.
            TypeError: it names something that can't be called.
        """
        del observation_space, action_space, num_envs, seed
        function = resolve(entry, where="reward.kwargs.entry")
        if not callable(function):
            raise TypeError(f'"{entry}" is {kind_of(function)}, not a function')
        self._function = function

    def compute(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return what the function returns."""
        result: NDArray[np.float64] = self._function(transitions)
        return result
