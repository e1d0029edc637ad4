"""Environments that the tests of sandboxes and vectors share: what they are made of is plain."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Cart(CartPoleEnv):
    """CartPole that says who it is, and may be asked for what goes wrong."""

    gauge: Any = 1

    def pid(self) -> int:
        return os.getpid()

    def boom(self) -> None:
        ctypes.string_at(0)

    def refuse(self, what: str, *, loud: bool = False) -> None:
        raise ValueError(f"{what}!" if loud else what)

    def odd(self) -> object:
        return object()

    def add(self, a: float, b: float) -> float:
        """Add."""
        return a + b


class Trap(gymnasium.Env[Any, Any]):
    """Does `what` in step `at`: the first time only if `path` is given, which is made then."""

    def __init__(self, what: str, at: int, path: str = "") -> None:
        self.observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.what, self.at, self.path = what, at, path
        self.steps, self.total = 0, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.what == "reset":
            self._spring()
        self.steps, self.total = 0, float(self.np_random.integers(100))
        return self._look(), {"options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.at and self.what != "reset":
            self._spring()
        self.total += float(action) + float(self.np_random.random())
        return self._look(), self.total, False, False, {"steps": self.steps}

    def _look(self) -> Any:
        return np.array([self.steps, self.total])

    def _spring(self) -> None:
        if self.path:
            if Path(self.path).exists():
                if self.what == "hang then raise":
                    raise ValueError("trapped")
                return
            Path(self.path).touch()
        match self.what:
            case "segv" | "reset":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "hang" | "hang then raise":
                while True:
                    pass
            case "raise":
                raise ValueError("trapped")


class Sampled(gymnasium.Env[Any, Any]):
    """Observations drawn from any space, infos of many kinds, episodes of a few steps; whether an
    episode terminates or is truncated, and what it tells, its own generator says."""

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.left, self.resets = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(1, 5))
        self.resets += 1  # which a seed does not undo: an extra reset would be seen
        told = {"resets": self.resets, "options": str(options)}
        return self.observation_space.sample(), told if self.left % 2 else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        told = np.sum(spaces.flatten(self.action_space, action), dtype=np.float64)
        self.left -= 1
        number = self.np_random.random()
        ended = self.left <= 0
        info: dict[str, Any] = {}
        if number < 0.6:
            info = {
                "number": float(number),
                "count": self.left,
                "text": f"left {self.left}",
                "array": np.full((2,), number, np.float32),
                "nested": {"flag": ended, "small": np.float32(number)},
            }
        return (
            self.observation_space.sample(),
            float(number + told),
            ended and number < 0.5,
            ended and number >= 0.4,
            info,
        )


class Counted:
    """A reward with a state: twice the environment's, and a thousandth for each that there was."""

    def __init__(self, **_given: Any) -> None:
        self.count = 0

    def compute(self, transitions: Any) -> Any:
        self.count += 1
        return 2 * transitions.env_reward + self.count / 1000


def whose(obs: Any, action: Any, next_obs: Any, done: bool) -> float:
    """An objective that says in which process it is computed."""
    return float(os.getpid())


class Telling(gymnasium.Env[Any, Any]):
    """Tells in step `at` (0: in its resets) what no other process can be told, and has a "dsec" of
    its own in the next."""

    def __init__(self, at: int) -> None:
        self.observation_space = spaces.Box(0, 1e6, (1,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.at, self.steps = at, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {} if self.at or options else {"lock": object()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"lock": object()} if self.steps == self.at else {}
        if self.steps == self.at + 1:
            info = {"dsec": 5}
        return np.full(1, float(self.steps)), float(self.steps), False, False, info


class Linear:
    """A policy by weights, which large numbers kill, once for each of its traps."""

    def __init__(self, *, bias: float = 0.0, traps: Any = (), **_given: Any) -> None:
        self.weights = {"w": np.zeros(4, np.float32), "b": np.array(bias)}
        self.traps = traps

    def act(self, obs: Any) -> Any:
        which = int(obs.max() // 1e6)
        if which and self.traps and not Path(self.traps[which - 1]).exists():
            Path(self.traps[which - 1]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (obs @ self.weights["w"] + self.weights["b"] > 0).astype(np.int64)

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state


class Heavy(Cart):
    """Has more state than a small pool has room."""

    def __init__(self) -> None:
        super().__init__()
        self.map = np.random.default_rng(0).random(400_000)


class Stuck(Trap):
    """Hangs on action 2, whenever that is."""

    def __init__(self) -> None:
        super().__init__("hang", -1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 2:
            self._spring()
        return super().step(action)

    def pid(self) -> int:
        return os.getpid()


class Owned(Trap):
    """Has a "dsec" of its own in what its resets tell, and dies in its second step."""

    def __init__(self) -> None:
        super().__init__("segv", 2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"dsec": 5}


class Slow(Trap):
    """Takes its time."""

    seconds = 0.0

    def __init__(self) -> None:
        super().__init__("none", -1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        threading.Event().wait(self.seconds)
        return super().step(action)
