"""Environments and actors for what is unusual in records: huge ones, and values against the rules.

Named in Start frames as `tests.runners.odd_worlds:Name`, like those of worlds.py.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.runners.worlds import Line

HERE = "tests.runners.odd_worlds"


class Sloppy(gymnasium.Env[Any, Any]):
    """Breaks its own rules from step AT on, in environment `which` (-1: in all)."""

    AT = 3
    made = 0

    def __init__(self, deed: str, which: int = -1) -> None:
        self.observation_space = spaces.Dict(
            {"at": spaces.Box(-1, 1, (2,), np.float32), "say": spaces.Text(9)}
        )
        self.action_space = spaces.Discrete(3)
        self._index = Sloppy.made
        Sloppy.made += 1
        self._deed = deed if which in (-1, self._index) else ""
        self._buffer = np.zeros(2, np.float32)
        self._age = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        return {"at": np.zeros(2, np.float32), "say": "begin"}, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[Any, Any]]:
        self._age += 1
        obs: Any = {"at": np.full(2, self._age / 20, np.float32), "say": f"step {self._age}"}
        if self._age <= self.AT:
            return obs, 0.0, False, False, {}
        reward: Any = float(self._age)
        info: dict[Any, Any] = {}
        match self._deed:
            case "nan":
                obs["at"][0] = np.nan
            case "out of bounds":
                obs["at"] *= 1000
            case "float64":
                obs["at"] = np.array([0.1, 1 / 3])
            case "list":
                obs["at"] = [0.25, 0.5]
            case "int":
                obs["at"] = np.array([1, 0])
            case "bool":
                obs["at"], reward = np.array([True, False]), True
            case "one buffer":
                self._buffer += 0.01
                obs["at"] = self._buffer
            case "long text":
                obs["say"] = "longer than nine, and with an \u00e9"
            case "shape":
                obs["at"] = np.zeros(3, np.float32)
            case "complex":
                obs["at"] = np.zeros(2, complex)
            case "text for numbers":
                obs["at"] = np.array(["a", "b"])
            case "none":
                obs["at"] = None
            case "missing":
                del obs["say"]
            case "unknown":
                obs["more"] = 1
            case "no dict":
                obs = obs["at"]
            case "number for text":
                obs["say"] = 7
            case "reward none":
                reward = None
            case "reward text":
                reward = "much"
            case "reward pair":
                reward = np.array([1.0, 2.0])
            case "info object":
                info = {"deep": [object()]}
            case "info key":
                info = {(1, 2): 3}
            case "info lambda":
                info = {"f": lambda: None}
        return obs, reward, False, False, info


class OddReward(Line):
    """Returns a reward of a numpy type."""

    def __init__(self, value: Any, dtype: str) -> None:
        array = np.array(value, dtype)
        super().__init__(reward=array if array.shape else array[()])


class Huge(gymnasium.Env[Any, Any]):
    """Texts, sequences, infos and actions of sizes that no ring holds, one after the other."""

    def __init__(self, length: int = 4) -> None:
        box = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = spaces.Dict(
            {"text": spaces.Text(1 << 20, min_length=0), "rows": spaces.Sequence(box)}
        )
        self.action_space = spaces.Sequence(spaces.Discrete(5), stack=True)
        self._length, self._age = length, 0

    def _obs(self) -> Any:
        rows = self.np_random.random(((0, 1, 10_000)[self._age % 3], 3)).astype(np.float32)
        text = "ab"[self._age % 2] * (1, 1 << 20)[self._age % 2]
        return {"rows": tuple(rows), "text": text}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._age += 1
        info = {"image": np.full(5_000_000, self._age, np.uint8)} if self._age == 2 else {}
        reward = float(np.sum(action)) + len(action)
        return self._obs(), reward, self._age == self._length, False, info


class Filming(gymnasium.Env[Any, Any]):
    """Small observations, each with a film of half a megabyte in its info."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._age += 1
        film = np.full(1 << 19, self._age % 251, np.uint8)
        obs = self.np_random.random(2, np.float32)
        return obs, float(action), False, self._age == 100, {"film": film}


class Verbose(Line):
    """Raises with a message that nobody wants to read."""

    def step(self, action: Any) -> Any:
        raise ValueError("much too long, " * 4_000_000)


class Answering:
    """Acts properly three times, and then as told: the value of a Python expression."""

    def __init__(self, *, num_envs: int, answer: str, **_: Any) -> None:
        self._n, self._answer, self._calls = num_envs, answer, 0

    def act(self, obs: Any) -> Any:
        self._calls += 1
        return np.zeros(self._n, np.int64) if self._calls <= 3 else eval(self._answer)


class Shouting:
    """Acts on texts and sequences with stacks of up to 30,000 numbers; learns if told to."""

    def __init__(self, *, num_envs: int, **_: Any) -> None:
        self._n, self._seen = num_envs, {"letters": 0.0, "rows": 0.0}

    def act(self, obs: Any) -> Any:
        for text, rows in zip(obs["text"], obs["rows"], strict=True):
            self._seen["letters"] += len(text)
            self._seen["rows"] += len(rows)
        return tuple(np.arange(3 * len(rows)) % 5 for rows in obs["rows"])

    def metrics(self) -> dict[str, float]:
        return self._seen


class ShoutingLearner(Shouting):
    def learn(self, t: Any) -> None:
        assert all(len(a) == 3 * len(rows) for a, rows in zip(t.action, t.obs["rows"], strict=True))
        self._seen["letters"] += sum(map(len, t.next_obs["text"])) * 1e-9
        self._seen["rows"] += sum("image" in info for info in t.infos) * 1e-3


class Measured:
    """A reward that needs observations, actions and infos whole."""

    def __init__(self, **_: Any) -> None: ...

    def compute(self, t: Any) -> Any:
        return np.array(
            [
                sum(len(part[i]) for part in t.next_obs.values())
                + len(t.action[i])
                + sum(image.size for key, image in t.infos[i].items() if key == "image")
                for i in range(len(t.env_reward))
            ],
            np.float64,
        )
