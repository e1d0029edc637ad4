"""Policies that need no more than numpy, for examples, checks and environments under test.

The contract is `dsec.runners.contract.Policy`. This file may import numpy and Gymnasium and must
not be imported by the supervisor; policies with torch are in torch_policies.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

BLOCK_STEPS_MAX = 256
BLOCK_VALUES_MAX = 8192


class RandomPolicy:
    """Actions drawn from the action space, for each environment on its own.

    Discrete, MultiDiscrete, MultiBinary and bounded floating Box are drawn uniformly, many steps
    at a time, for one draw costs what a hundred do; everything else by the space's own `sample`.
    """

    zero_copy = True  # it never looks at an observation

    def __init__(
        self,
        *,
        observation_space: Space[Any],
        action_space: Space[Any],
        num_envs: int,
        seed: int,
    ) -> None:
        """Construct; the same seed gives the same actions."""
        del observation_space
        self._random = np.random.default_rng(seed)
        self._draw = _uniform(action_space, num_envs, self._random)
        self._space: Space[Any] | None = None
        if self._draw is None:
            self._space = batch_space(action_space, num_envs)
            self._space.seed(seed)
        self._block: NDArray[Any] = np.empty(0)
        self._rows: Iterator[Any] = iter(self._block)
        self._before = np.random.default_rng(0)  # as it was before the block
        self._state: dict[str, Any] = {"random": self._before}
        self._note()

    def act(self, obs: Any) -> Any:
        """Return random actions, whatever the observations."""
        del obs
        action = next(self._rows, None)
        return self._more() if action is None else action

    def _more(self) -> Any:
        """Draw a block; return its first actions."""
        if self._draw is None:
            assert self._space is not None, "made where nothing is drawn in blocks"
            return self._space.sample()
        self._note()
        self._block = self._draw()
        self._rows = iter(self._block)
        return next(self._rows)

    def _note(self) -> None:
        self._before.bit_generator.state = self._random.bit_generator.state

    def get_state(self) -> dict[str, Any]:
        """Where it is: the generator before the current block, and how much of that is left."""
        left = int(self._rows.__length_hint__())  # type: ignore[attr-defined]
        if not left:
            self._note()
        state = self._state  # the same one each time: what has not changed is not read again
        state["left"], state["space"] = left, self._space
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._space = state["space"]
        self._random.bit_generator.state = state["random"].bit_generator.state
        self._note()
        self._rows = iter(self._block[:0])
        if self._draw is not None and state["left"]:
            self._block = self._draw()
            self._rows = iter(self._block[len(self._block) - state["left"] :])


def _uniform(
    space: Space[Any], n: int, random: np.random.Generator
) -> Callable[[], NDArray[Any]] | None:
    """A function that draws a block of steps (steps, n, ...), or None for other spaces."""
    values = n * int(np.prod(space.shape or (), dtype=np.int64))
    steps = max(1, min(BLOCK_STEPS_MAX, BLOCK_VALUES_MAX // max(1, values)))
    shape = (steps, n, *(space.shape or ()))
    dtype = space.dtype
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            first = np.asarray(space.start, np.int64)
            count = space.n if isinstance(space, spaces.Discrete) else space.nvec
            return lambda: random.integers(first, first + count, shape).astype(dtype, copy=False)
        case spaces.MultiBinary():
            return lambda: random.integers(0, 2, shape, np.int8).astype(dtype, copy=False)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                bounded = bool(np.isfinite(high - low).all())
            if bounded:
                return lambda: random.uniform(low, high, shape).astype(dtype, copy=False)
    return None
