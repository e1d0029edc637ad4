"""User code that fails in every way that user code does, on command.

Owns the environments, policies and rewards that the crash tests name in their configurations. It is
loaded only in children of a run. Each fault first leaves a file in `evidence`, so that a test can
assert that the fault happened instead of believing it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dsec.policies import RandomPolicy
from dsec.runners.contract import Transitions

SLEEP_ARGV = [sys.executable, "-c", "import signal; signal.pause()", "dsec-test-grandchild"]


class UnpicklableError(Exception):
    """Carries what no pickle can hold."""

    def __init__(self) -> None:
        super().__init__("this can't be pickled")
        self.lock = threading.Lock()


def raise_unpicklable() -> None:
    raise UnpicklableError


def spin() -> None:
    """Hang as compiled code hangs: busy, deaf to signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    while True:
        sum(range(1000))


def spawn_grandchildren() -> None:
    """One plain child, and one that has left its session and its parent, as daemons do."""
    subprocess.Popen(SLEEP_ARGV)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(SLEEP_ARGV[0], SLEEP_ARGV)
        os._exit(0)
    os.wait()


def chatter() -> None:
    """A megabyte to both streams, with bytes that are no text among it."""
    for stream in (1, 2):
        for _ in range(16):
            os.write(stream, b'{"agents": "forged"}\n\xff\xfe\x1b[2J' + b"x" * 65_500 + b"\n")


def torrent() -> None:
    """64 megabytes to stderr, in lines, and the last one says so."""
    for number in range(64):
        os.write(2, b"%05d %s\n" % (number, b"x" * ((1 << 20) - 7)))
    os.write(2, b"that was all\n")


FAULTS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "segv": lambda: ctypes.string_at(8),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "permanent": lambda: os._exit(125),
    "sysexit": lambda: sys.exit("the environment wants to go home"),
    "unpicklable": raise_unpicklable,
    "raise": lambda: {}["no such key"],
    "hang": spin,
    "pause": signal.pause,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "grandchildren": spawn_grandchildren,
    "chatter": chatter,
    "torrent": torrent,
}


class Fault:
    """Fires at the `at`-th call, and leaves `<evidence>/<name>` with the pid beforehand.

    `once`: not where that file is there already, as a fault that comes from outside does not
    happen again to a successor that makes the same calls.
    """

    def __init__(self, kind: str, at: int, evidence: str, name: str, once: bool = False) -> None:
        self.kind, self.at, self.calls, self.once = kind, at, 0, once
        self.path = Path(evidence, name) if evidence else None

    def tick(self) -> None:
        """Count a call, and fire if it is the one."""
        self.calls += 1
        if self.calls == self.at and not (self.once and self.path and self.path.exists()):
            if self.path:
                self.path.with_suffix(".tmp").write_text(str(os.getpid()))
                self.path.with_suffix(".tmp").rename(self.path)
            FAULTS[self.kind]()


class Walk(gymnasium.Env[np.ndarray, np.int64]):
    """A random walk that ends after 25 steps; its whole course follows from the seed."""

    def __init__(
        self,
        fault: str = "none",
        at: int = 100,
        phase: str = "step",
        evidence: str = "",
        name: str = "env",
        every: int = 0,
        width: int = 3,
        once: bool = False,
    ) -> None:
        self.width = width
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.fault, self.phase, self.every = Fault(fault, at, evidence, name, once), phase, every
        self.steps = 0
        if phase == "construct":
            self.fault.tick()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self.phase == "reset":
            self.fault.tick()
        self.place = self.np_random.normal(size=self.width).astype(np.float32)
        self.age = 0
        return self.place.copy(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.phase == "step":
            self.fault.tick()
        self.steps += 1
        if self.every and self.steps % self.every == 0:
            sys.stdout.write(f"step {self.steps} {'x' * 2000}\n")
        self.age += 1
        self.place = self.place + self.np_random.normal(size=self.width).astype(np.float32)
        self.place[0] += 1.0 if action else -1.0
        return self.place.copy(), float(self.place[0]), self.age >= 25, False, {"age": self.age}


class Doomed(Walk):
    """A walk whose process meets a fault at step `at`, and so does each of the next ones that come
    to an earlier step, be it in a replay, until there were `kills`: each leaves its number."""

    def __init__(self, fault: str, at: int, kills: int, evidence: str) -> None:
        super().__init__()
        self.kind, self.at, self.kills, self.folder = fault, at, kills, Path(evidence)
        self.born = os.getpid()

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        mine = self.folder / str(os.getpid())
        again = os.getpid() != self.born and not mine.exists()
        if self.kills and self.steps >= (0 if again else self.at):
            killed = [path.name for path in self.folder.iterdir()]
            if len(killed) < self.kills and self.runs(killed):
                mine.write_text("")
                FAULTS[self.kind]()
        return super().step(action)

    def runs(self, killed: list[str]) -> bool:
        """Whether this is the runner, or, once that is dead, one that follows it."""
        return bool(killed) == (os.getpid() != self.born)


class FaultyPolicy(RandomPolicy):
    """A random policy with a fault in act."""

    def __init__(
        self, *, fault: str, at: int, evidence: str, name: str, once: bool = False, **spec: Any
    ) -> None:
        super().__init__(**spec)
        self.fault = Fault(fault, at, evidence, name, once)

    def act(self, obs: Any) -> Any:
        self.fault.tick()
        return super().act(obs)


turns = 0


class ForgetfulPolicy(FaultyPolicy):
    """Keeps what it goes by where nobody looks for a policy's state, in its module."""

    def act(self, obs: Any) -> Any:
        global turns
        turns += 1
        return (super().act(obs) * 0) + turns // 3 % 2


class FaultyReward:
    """The environment's reward, with a fault in compute."""

    def __init__(
        self, *, fault: str, at: int, evidence: str, name: str, once: bool = False, **spec: Any
    ) -> None:
        self.fault = Fault(fault, at, evidence, name, once)

    def compute(self, transitions: Transitions) -> np.ndarray:
        self.fault.tick()
        return transitions.reward
