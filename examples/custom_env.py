"""An environment, a policy, a reward and a wrapper of one's own, for examples/custom_env.yaml.

Owns nothing that dsec needs: it shows how little user code has to offer. The environment is a plain
`gymnasium.Env` with a composite observation; the other three are plain classes. Nothing here is
imported by the supervisor: the configuration names it as text and only the agent's own processes
load it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dsec.runners.contract import Transitions

MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])  # north, south, west, east


class Warehouse(gymnasium.Env[dict[str, Any], np.int64]):
    """A robot fetches a parcel and brings it to the door, around puddles if it is wise.

    Args:
        size: the floor is size x size tiles.
        puddles: how many tiles are wet.
    """

    def __init__(self, size: int = 6, puddles: int = 5) -> None:
        assert size >= 2 and 0 <= puddles < size * size - 3
        self.size, self.puddles = size, puddles
        tile = spaces.Box(0, size - 1, shape=(2,), dtype=np.int64)
        self.observation_space = spaces.Dict(
            {
                "robot": tile,
                "parcel": tile,
                "door": tile,
                "carrying": spaces.Discrete(2),
                "wet": spaces.MultiBinary((size, size)),
            }
        )
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lay out a new floor. Every draw comes from `self.np_random`, so a seed fixes it."""
        super().reset(seed=seed)
        tiles = self.np_random.permutation(self.size * self.size)
        places = np.stack(np.unravel_index(tiles, (self.size, self.size)), axis=1)
        self.robot, self.parcel, self.door = places[:3].copy()
        self.wet = np.zeros((self.size, self.size), dtype=np.int8)
        self.wet[tuple(places[3 : 3 + self.puddles].T)] = 1
        self.carrying = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Move one tile. The reward is 1 for the delivery; the objectives are told separately."""
        self.robot = np.clip(self.robot + MOVES[action], 0, self.size - 1)
        if np.array_equal(self.robot, self.parcel):
            self.carrying = 1
        delivered = bool(self.carrying and np.array_equal(self.robot, self.door))
        slipped = bool(self.wet[tuple(self.robot)])
        objectives = {"task": float(delivered), "safety": -float(slipped)}
        return self._observe(), float(delivered), delivered, False, {"objectives": objectives}

    def _observe(self) -> dict[str, Any]:
        return {
            "robot": self.robot.copy(),
            "parcel": self.parcel.copy(),
            "door": self.door.copy(),
            "carrying": self.carrying,
            "wet": self.wet.copy(),
        }


def make(size: int = 6, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """What `env: {entry: "examples.custom_env:make", kwargs: {…}}` calls."""
    return Warehouse(size, **kwargs)


class StepCost(gymnasium.RewardWrapper[Any, Any]):
    """Every step costs a little, so that the shortest way is the best one."""

    def __init__(self, env: gymnasium.Env[Any, Any], cost: float = 0.01) -> None:
        super().__init__(env)
        self.cost = cost

    def reward(self, reward: Any) -> float:
        """The environment's reward without the cost of the step."""
        return float(reward) - self.cost


class Courier:
    """Walks to the parcel, then to the door; now and then it strays.

    Observations of a Dict space come as a dict of arrays with one row for each of the agent's
    `num_envs` environments.
    """

    def __init__(
        self,
        *,
        observation_space: Any,
        action_space: Any,
        num_envs: int,
        seed: int,
        stray: float = 0.1,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.actions, self.stray = int(action_space.n), stray

    def act(self, obs: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
        """One move for each environment: int64 (n,)."""
        goal = np.where(obs["carrying"][:, None], obs["door"], obs["parcel"])
        rows, columns = (goal - obs["robot"]).T
        vertical = np.where(rows < 0, 0, 1)
        horizontal = np.where(columns < 0, 2, 3)
        action = np.where(np.abs(rows) >= np.abs(columns), vertical, horizontal)
        strays = self.random.random(len(action)) < self.stray
        return np.where(strays, self.random.integers(self.actions, size=len(action)), action)


class WeightedObjectives:
    """Adds to the environment's reward what it reports in `info["objectives"]`, by weight."""

    def __init__(
        self,
        *,
        observation_space: Any,
        action_space: Any,
        num_envs: int,
        seed: int,
        weights: dict[str, float],
    ) -> None:
        self.weights = weights
        self.totals = dict.fromkeys(weights, 0.0)

    def compute(self, transitions: Transitions) -> NDArray[np.float64]:
        """float64 (n,): the environment's reward plus the weighted objectives."""
        found = transitions.reward.copy()
        for i, info in enumerate(transitions.infos):
            if transitions.infra[i]:
                continue  # the environment was lost with its process: no step, and no objectives
            objectives = info["objectives"]
            found[i] += sum(weight * objectives[name] for name, weight in self.weights.items())
            for name in self.totals:
                self.totals[name] += objectives[name]
        return found

    def metrics(self) -> dict[str, float]:
        """The unweighted sums, shown in the run's summary."""
        return {f"total_{name}": total for name, total in self.totals.items()}
