"""Environments that keep their state where a careless snapshot does not look.

Each is one small class whose next observation depends on everything that it did before. They know
nothing of codecs.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

TALLY = 0  # InModuleGlobal counts here


class Base(gymnasium.Env[Any, Any]):
    """Observes two numbers that `advance` gives; episodes of 30 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.age = 0
        self.build()

    def build(self) -> None:
        """Make what the state is kept in."""

    def advance(self, action: int) -> tuple[float, float]:
        raise NotImplementedError

    def observe(self, values: tuple[float, float]) -> Any:
        return np.array(values, np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.observe((0.0, 0.0)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        obs = self.observe(self.advance(int(action)))
        return obs, float(obs[0]), False, self.age >= 30, {}


class InClosure(Base):
    """A counter that only a nested function sees."""

    def build(self) -> None:
        total = 0
        seen: list[int] = []

        def count(action: int) -> tuple[float, float]:
            nonlocal total
            total += action
            seen.append(action)
            return total, len(seen)

        self.count: Callable[[int], tuple[float, float]] = count

    def advance(self, action: int) -> tuple[float, float]:
        return self.count(action)


class InModuleGlobal(Base):
    """A counter of the module."""

    def advance(self, action: int) -> tuple[float, float]:
        global TALLY
        TALLY += action + 1
        return TALLY, 0.0


class InClassAttribute(Base):
    """A counter of the class."""

    tally: ClassVar[list[int]] = [0]

    def advance(self, action: int) -> tuple[float, float]:
        self.tally[0] += action + 1
        return self.tally[0], 0.0


class Slotted:
    """No __dict__; one slot begins empty."""

    __slots__ = ("late", "total")

    def __init__(self) -> None:
        self.total = 0


class InSlots(Base):
    """A counter in a slot."""

    def build(self) -> None:
        self.slotted = Slotted()

    def advance(self, action: int) -> tuple[float, float]:
        self.slotted.total += action
        self.slotted.late = self.slotted.total * 2
        return self.slotted.total, self.slotted.late


class SharedArrays(Base):
    """Writes through one name and reads through two others that see the same memory."""

    def build(self) -> None:
        self.memory = np.zeros((4, 2))
        self.row = self.memory[1]
        self.same = self.memory
        self.reversed = self.memory[::-1, 0]
        self.names = {"again": self.row, "list": [self.memory]}

    def advance(self, action: int) -> tuple[float, float]:
        self.row += (action + 1, action * 0.5)
        self.names["list"][0][2] = self.names["again"] * 3
        return float(self.same[1, 0] + self.reversed[1]), float(self.memory[1, 1])


class GlobalRandom(Base):
    """Draws from Python's and numpy's generators of the process, gaussians included."""

    def advance(self, action: int) -> tuple[float, float]:
        return random.gauss(0, 1), float(np.random.randn())


class SpawningGenerator(Base):
    """Spawns a child generator now and then: numpy's own state does not count them."""

    def advance(self, action: int) -> tuple[float, float]:
        child = self.np_random.spawn(1)[0] if action == 0 else self.np_random
        return float(child.random()), float(self.np_random.integers(0, 9, dtype=np.uint32))


class SameBuffer(Base):
    """Returns the same array from every step, which it also reads."""

    def build(self) -> None:
        self.buffer = np.zeros(2)

    def advance(self, action: int) -> tuple[float, float]:
        return float(self.buffer[0] * 0.9 + action), float(self.buffer[1] + 1)

    def observe(self, values: tuple[float, float]) -> Any:
        self.buffer[:] = values
        return self.buffer


class WithThread(Base):
    """Keeps a thread that has not been started."""

    def build(self) -> None:
        self.worker = threading.Thread(target=print)

    def advance(self, action: int) -> tuple[float, float]:
        return action, 0.0


class WithFile(Base):
    """Reads its dynamics from an open file."""

    def build(self) -> None:
        self.file = Path(__file__).open("rb")  # noqa: SIM115

    def advance(self, action: int) -> tuple[float, float]:
        return len(self.file.readline()), 0.0

    def close(self) -> None:
        self.file.close()


class ReadsDescriptor(Base):
    """Reads from a bare descriptor, which no attribute plan can recognise as one."""

    def build(self) -> None:
        self.fd = os.open(__file__, os.O_RDONLY)

    def advance(self, action: int) -> tuple[float, float]:
        return sum(os.read(self.fd, 3)), 0.0

    def close(self) -> None:
        os.close(self.fd)


class WritesFiles(Base):
    """Appends to a file with every step."""

    path = Path("/nonexistent")

    def advance(self, action: int) -> tuple[float, float]:
        with self.path.open("a") as file:
            file.write("a line\n")
        return action, 0.0


class Rebuilds(Base):
    """Has a C iterator that the plan refuses, and a pickle that begins anew without a word."""

    def build(self) -> None:
        self.numbers = itertools.count()

    def __reduce__(self) -> Any:
        return (type(self), ())

    def advance(self, action: int) -> tuple[float, float]:
        return next(self.numbers), action


class Pickles(Base):
    """Has a C iterator that the plan refuses, and a pickle that is honest."""

    def build(self) -> None:
        self.numbers = itertools.count()

    def advance(self, action: int) -> tuple[float, float]:
        return next(self.numbers), action


class Segfaults(Base):
    """Is killed by SIGSEGV in its fifth step."""

    def advance(self, action: int) -> tuple[float, float]:
        if self.age == 5:
            os.kill(os.getpid(), signal.SIGSEGV)
        return action, 0.0


class Never(Base):
    """Is killed by SIGSEGV in every step."""

    def advance(self, action: int) -> tuple[float, float]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return action, 0.0


class DiesRestored(Base):
    """Compares its count with the process's, and leaves when they differ: it can't be set back."""

    counted: ClassVar[list[int]] = [0]

    def build(self) -> None:
        self.count = 0

    def advance(self, action: int) -> tuple[float, float]:
        self.count += 1
        self.counted[0] += 1
        if self.count != self.counted[0]:
            os._exit(4)
        return action, 0.0


class Raises(Base):
    """Raises in its fifth step."""

    def advance(self, action: int) -> tuple[float, float]:
        if self.age == 5:
            raise ZeroDivisionError("on purpose")
        return action, 0.0


class Exits(Base):
    """Leaves its process in its fifth step."""

    def advance(self, action: int) -> tuple[float, float]:
        if self.age == 5:
            os._exit(3)
        return action, 0.0


class Hangs(Base):
    """Never returns from its fifth step, and ignores what asks it to."""

    def advance(self, action: int) -> tuple[float, float]:
        if self.age == 5:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
            while True:
                pass
        return action, 0.0
