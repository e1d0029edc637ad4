"""Three hunters and a hare on a small torus: an environment of PettingZoo's parallel API.

Owns the rules. `pip install "dsec-kernel[multi]"` brings PettingZoo. It knows nothing of dsec:
multi_agent.yaml wraps it in `dsec.multi:ParallelEnv`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

Observations = dict[str, NDArray[np.float32]]
MOVES = np.array([(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)])


class Hunt(ParallelEnv[str, NDArray[np.float32], int]):
    """Whoever catches the hare shares in it; a hunter is tired after `stamina` steps and leaves.

    Everybody sees where all others are, as seen from its own place.
    """

    metadata = {"name": "hunt_v0", "render_modes": []}  # noqa: RUF012  (PettingZoo has it so)

    def __init__(self, size: int = 9, hunters: int = 3, stamina: int = 60) -> None:
        self.size, self.stamina = size, stamina
        self.possible_agents = [*(f"hunter_{i}" for i in range(hunters)), "hare"]
        self.agents: list[str] = []
        self.random = np.random.default_rng()
        self.places = np.zeros((hunters + 1, 2), np.int64)
        self.seen = spaces.Box(-0.5, 0.5, (self.places.size,), np.float32)
        self.moves = {name: spaces.Discrete(len(MOVES)) for name in self.possible_agents}
        self.steps = 0

    def observation_space(self, agent: str) -> spaces.Box:
        """Everybody's place, from its own, as a share of the way round."""
        del agent
        return self.seen

    def action_space(self, agent: str) -> spaces.Discrete:
        """Stay, or one step in one of four directions."""
        return self.moves[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, dict[str, Any]]]:
        """Put everybody somewhere."""
        del options
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.places = self.random.integers(0, self.size, self.places.shape)
        self.steps = 0
        return self._see(self.agents), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[
        Observations, dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:  # fmt: skip
        """Everybody moves at once; the hare slips now and then."""
        acting, hare = list(self.agents), len(self.possible_agents) - 1
        for name, action in actions.items():
            self.places[self.possible_agents.index(name)] += MOVES[action]
        if self.random.random() < 0.1:
            self.places[hare] += MOVES[self.random.integers(len(MOVES))]
        self.places %= self.size
        self.steps += 1
        caught = [
            name
            for name in acting
            if name != "hare"
            and (self.places[self.possible_agents.index(name)] == self.places[hare]).all()
        ]
        rewards = {name: 1.0 / len(caught) if name in caught else 0.0 for name in acting}
        rewards["hare"] = -1.0 if caught else 0.01
        tired = {
            name: name != "hare" and self.steps >= self.stamina - 5 * i
            for i, name in enumerate(self.possible_agents)
        }
        hunting = [name for name in acting if name != "hare" and not tired[name]]
        over = bool(caught) or not hunting
        ended = {name: bool(caught) or tired[name] for name in acting}
        cut = {name: over and not ended[name] for name in acting}
        self.agents = [] if over else [name for name in acting if not ended[name]]
        return self._see(acting), rewards, ended, cut, {name: {} for name in acting}

    def _see(self, who: list[str]) -> Observations:
        half = self.size // 2
        seen = {}
        for name in who:
            apart = self.places - self.places[self.possible_agents.index(name)]
            apart = (apart + half) % self.size - half
            seen[name] = (apart / self.size).astype(np.float32).ravel()
        return seen


class Learner:
    """Tabular Q-learning of where to go, by the quadrant in which the last one, the hare, is.

    Several hunters may share it: then the order in which it sees them matters, and is fixed.
    """

    def __init__(
        self, *, observation_space: Any, action_space: Any, num_envs: int, seed: int,
        rate: float = 0.1, discount: float = 0.95, chance: float = 0.1,
    ) -> None:  # fmt: skip
        del observation_space, num_envs
        self.random = np.random.default_rng(seed)
        self.values = np.zeros((9, int(action_space.n)))
        self.rate, self.discount, self.chance = rate, discount, chance
        self.caught = 0.0

    def act(self, obs: NDArray[np.float32]) -> NDArray[np.int64]:
        """The best known way, or, now and then, any."""
        best = self.values[self._where(obs)].argmax(-1)
        n, count = len(best), self.values.shape[1]
        anywhere = self.random.integers(0, count, n)
        return np.where(self.random.random(n) < self.chance, anywhere, best)

    def learn(self, transitions: Any) -> None:
        """One after the other: what the first one learned the second one knows."""
        here, there = self._where(transitions.obs), self._where(transitions.next_obs)
        for i in np.flatnonzero(~transitions.infra):
            after = 0.0 if transitions.terminated[i] else self.values[there[i]].max()
            target = transitions.reward[i] + self.discount * after
            cell = here[i], int(transitions.action[i])
            self.values[cell] += self.rate * (target - self.values[cell])
            self.caught += float(transitions.reward[i])

    def metrics(self) -> dict[str, float]:
        """What the hunters got."""
        return {"caught": self.caught}

    def _where(self, obs: NDArray[np.float32]) -> NDArray[np.int64]:
        quadrant = np.sign(obs[:, -2:]).astype(np.int64) + 1
        return quadrant[:, 0] * 3 + quadrant[:, 1]
