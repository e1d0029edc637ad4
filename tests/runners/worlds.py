"""Environments, policies and rewards that runners under test construct in their own processes.

Everything here is named in a Start frame as `tests.runners.worlds:Name`. What they do wrong, they
do on purpose and on command. Nothing here may import the test's side (kernel.py).
"""

from __future__ import annotations

import copy
import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.runners.space_plans import random_space

HERE = "tests.runners.worlds"


class Generated(gymnasium.Env[Any, Any]):
    """Spaces drawn from `plan`; everything else from the seed of reset and from the actions."""

    def __init__(self, plan: int, mean_length: float = 8.0, *, variable: bool = False) -> None:
        random = np.random.default_rng(plan)
        self.observation_space = random_space(random, variable=variable)
        self.action_space = random_space(random, variable=variable)
        self._variable = variable
        self._source = copy.deepcopy(self.observation_space)
        self._mean_length = mean_length
        self._age = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._source.seed(seed)
        self._age = 0
        info = {"born": int(self.np_random.integers(1000))} if self.np_random.random() < 0.5 else {}
        return self._source.sample(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self._variable or self.action_space.contains(action), action
        self._age += 1
        draw = self.np_random.random(3)
        reward = float(draw[0]) + checksum(action)
        terminated = bool(draw[1] < 1 / self._mean_length)
        info: dict[str, Any] = {"age": self._age} if draw[2] < 0.3 or terminated else {}
        return self._source.sample(), reward, terminated, self._age == 20, info


def checksum(value: Any) -> float:
    """A number that depends on every number in a nested value."""
    if isinstance(value, dict):
        return sum(checksum(item) for item in value.values())
    if isinstance(value, tuple):
        return sum(checksum(item) * (i + 1) for i, item in enumerate(value))
    if value is None or isinstance(value, str):
        return float(sum(ord(char) for char in value or ""))
    return float(np.asarray(value, np.float64).sum())


class Line(gymnasium.Env[Any, Any]):
    """Counts steps. Episodes last `length` steps; `misdeed` is done at step `at` of environment
    `which` (they are numbered as they are made, in each process)."""

    made = 0

    def __init__(
        self,
        length: int = 10,
        misdeed: str = "",
        phase: str = "step",
        at: int = 5,
        which: int = 0,
        reward: Any = 1.0,
        info: Any = None,
    ) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._index = Line.made
        Line.made += 1
        self._length = length
        self._misdeed, self._phase, self._at, self._which = misdeed, phase, at, which
        self._reward, self._info = reward, {} if info is None else info
        self._total = 0
        self._age = 0
        self._perhaps("construct")

    def _perhaps(self, phase: str) -> Any:
        if phase == self._phase and self._index == self._which:
            return misbehave(self._misdeed)
        return None

    def _obs(self) -> Any:
        return np.array([self._total, self._age], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._age = 0
        result = self._perhaps("reset")
        return result if result is not None else (self._obs(), {})

    def step(self, action: Any) -> Any:
        self._total += 1
        self._age += 1
        if self._total == self._at:
            result = self._perhaps("step")
            if result is not None:
                return result
        done = self._age == self._length
        return self._obs(), self._reward, done, False, self._info

    def close(self) -> None:
        self._perhaps("close")


class UnpicklableError(Exception):
    """Holds what no pickle can."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = lambda: None


class RudeError(Exception):
    """Can't be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


def misbehave(deed: str) -> Any:
    """Do what `deed` names; some deeds are values to return in place of the right ones."""
    match deed:
        case "raise":
            raise ValueError("the floor gave way")
        case "unpicklable":
            raise UnpicklableError("can't be pickled")
        case "rude":
            raise RudeError
        case "surrogate":
            raise ValueError("half a character: \ud800 and \x00 " + "x" * 200_000)
        case "keyboard":
            raise KeyboardInterrupt
        case "memory":
            return bytearray(1 << 40)
        case "recursion":
            return misbehave("recursion")
        case "exit":
            sys.exit(7)
        case "exit permanently":
            sys.exit(125)
        case "exit politely":
            sys.exit()
        case "exit with words":
            sys.exit("enough")
        case "os exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(8)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True:
                pass
        case "four values":
            return np.zeros(2, np.float32), 1.0, False, {}
        case "nothing":
            return False
        case "bad shape":
            return np.zeros(3, np.float32), 1.0, False, False, {}
        case "bad info":
            return np.zeros(2, np.float32), 1.0, False, False, {"thing": {"held": object()}}
        case "info is a list":
            return np.zeros(2, np.float32), 1.0, False, False, [1]
        case "huge info":
            image = np.zeros(1_000_000, np.uint8)
            return np.zeros(2, np.float32), 1.0, False, False, {"image": image}
        case "fork and raise":
            if os.fork() == 0:
                raise ValueError("the child's")
            os.wait()
        case "no reward":
            return np.zeros(2, np.float32), None, False, False, {}
        case "shout":
            sys.stdout.write("o" * 1_000_000)
            sys.stderr.write("e" * 1_000_000)
    return None


class Reporting(gymnasium.Env[Any, Any]):
    """Tells in an info what its process looks like, once."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        import random
        import resource

        super().reset(seed=seed)
        torch = sys.modules.get("torch")
        told = {
            "seed": seed,
            "python": random.random(),
            "numpy": float(np.random.random()),
            "torch": float(torch.rand(())) if torch else -1.0,
            "action": int(self.action_space.sample()),
            "entropy": os.urandom(8).hex(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
            "group": os.getpgid(0) == os.getpid(),
            "stdin": str(Path("/proc/self/fd/0").readlink()),
            "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "hash": hash("a text"),
        }
        return np.zeros(1), told

    def step(self, action: Any) -> Any:
        return np.zeros(1), 0.0, False, False, {}


class Slow(Line):
    """Works for a while in each step."""

    def step(self, action: Any) -> Any:
        threading.Event().wait(0.15)
        return super().step(action)


class Deaf(Line):
    """Takes the runner's wake-up signal for itself."""

    def step(self, action: Any) -> Any:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        return super().step(action)


class Moody(Line):
    """Its rewards are its process' pid: no state that could be captured."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(os.getpid()), terminated, truncated, info


class Spoiled(Line):
    """Its rewards are those of a process, but for the first 1,000 steps that it does."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._total > 1000:
            reward = float(os.getpid())
        return obs, reward, terminated, truncated, info


class Reusing(Line):
    """Returns the same array every time, as some simulators do."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length=length)
        self._array = np.zeros(2, np.float32)

    def _obs(self) -> Any:
        self._array[:] = self._total, self._age
        return self._array


def not_an_env() -> object:
    return object()


class DuckEnv:
    def step(self, action: Any) -> None: ...

    def reset(self) -> None: ...


def a_vector(**_: Any) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2)


def two_kinds() -> Any:
    """Environments of one agent with different spaces."""
    Line.made += 1
    env = Line()
    env.action_space = spaces.Discrete(Line.made + 1)
    return env


A_NUMBER = 7

# ---------------------------------------------------------------- policies and rewards


class Actor:
    """Common to the policies and rewards below: keeps what it was given, misbehaves on command."""

    def __init__(
        self,
        *,
        observation_space: Any,
        action_space: Any,
        num_envs: int,
        seed: int,
        misdeed: str = "",
        phase: str = "",
        at: int = 5,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.num_envs, self.seed = num_envs, seed
        self._misdeed, self._phase, self._at = misdeed, phase, at
        self._calls = 0
        self.perhaps("construct")

    def perhaps(self, phase: str, seq: int | None = None) -> Any:
        if phase == self._phase and (seq is None or seq == self._at):
            return misbehave(self._misdeed)
        return None

    def close(self) -> None:
        self.perhaps("close")


class Cycling(Actor):
    """Acts 0, 1, 2, 0 ... whatever it sees."""

    def act(self, obs: Any) -> Any:
        n = self._calls
        self._calls += 1
        result = self.perhaps("act", n)
        if result is not None:
            return result
        return np.full(self.num_envs, n % 3, np.int64)


class Learning(Cycling):
    """Adds up everything it learns, and checks that it comes in order."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sums = {"learned": 0.0, "rewards": 0.0, "ends": 0.0, "next": 0.0, "infos": 0.0}

    def act(self, obs: Any) -> Any:
        if self._sums["learned"] != self._calls:
            raise AssertionError(f"act {self._calls} after {self._sums['learned']} transitions")
        actions = super().act(obs)
        obs *= 0  # a copy is its own to destroy
        return actions

    def learn(self, t: Any) -> None:
        self.perhaps("learn", t.seq)
        assert t.seq == self._sums["learned"]
        assert (t.action == t.seq % 3).all()
        assert (t.obs[:, 0] == t.seq).all(), (t.obs, t.seq)
        self._sums["learned"] += 1
        self._sums["rewards"] += t.reward.sum()
        self._sums["ends"] += (t.terminated | t.truncated).sum()
        self._sums["next"] += t.next_obs.sum()
        self._sums["infos"] += sum(len(info) for info in t.infos)
        t.obs *= 0
        t.next_obs *= 0

    def metrics(self) -> dict[str, float]:
        return self._sums


class Looking(Cycling):
    """Says what kind of memory it is given."""

    zero_copy = True

    def act(self, obs: Any) -> Any:
        self.writeable = obs.flags.writeable
        return super().act(obs)

    def metrics(self) -> dict[str, float]:
        return {"writeable": float(self.writeable)}


class BadMetrics(Cycling):
    def metrics(self) -> Any:
        return ["no", "dict"]


class Actless(Actor):
    def akt(self, obs: Any) -> Any: ...


class NoKeywords:
    def __init__(self) -> None: ...

    def act(self, obs: Any) -> Any: ...


class Shaped(Actor):
    """A reward of everything in the transition."""

    def compute(self, t: Any) -> Any:
        result = self.perhaps("compute", t.seq)
        if result is not None:
            return result
        return np.array(
            [
                t.reward[i]
                + 10 * checksum(pick(t.obs, i))
                + 100 * checksum(pick(t.next_obs, i))
                + 1000 * checksum(pick(t.action, i))
                + t.terminated[i]
                + 2 * t.truncated[i]
                + len(t.infos[i])
                for i in range(self.num_envs)
            ]
        )


def pick(tree: Any, i: int) -> Any:
    """Environment i's part of a batch."""
    if isinstance(tree, dict):
        return {key: pick(value, i) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(pick(value, i) for value in tree)
    return tree[i]


def doubled(t: Any) -> Any:
    return 2 * t.env_reward
