"""What the runs of `bench failover` are made of: an environment that says who it is, a policy that
kills it and takes the time until it sees the next observation, and policies beside it that count.

Owns the files through which they tell each other, and the benchmark. Loaded only in children of a
run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium

from dsec.policies import RandomPolicy

_written_by = 0
"""The process that has said who it is: no attribute of anything, for what is restored and replayed
must not see it, and a forked copy has to say so anew."""


class Mortal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down whose process it steps in, whenever that is another. Nothing stays open: what a
    process shares with others would keep it from being cloned. The copies in which a codec is tried
    may write no file, and need not: nobody kills them."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: str) -> None:
        super().__init__(env)
        self.path = path

    def step(self, action: Any) -> Any:
        global _written_by
        if _written_by != os.getpid():
            _written_by = os.getpid()
            file = os.open(self.path, os.O_WRONLY)
            with contextlib.suppress(OSError):
                os.pwrite(file, b"%10d" % _written_by, 0)  # of one length: never read by half
            os.close(file)
        return self.env.step(action)


class Metered(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Appends to `path`, when it is closed, the microseconds of processor time that its process
    took for each step since the first reset."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: str, steps: int) -> None:
        super().__init__(env)
        self.path, self.steps = path, steps
        self.began = 0.0

    def reset(self, **kwargs: Any) -> Any:
        """Start the watch at the first one."""
        self.began = self.began or time.process_time()
        return self.env.reset(**kwargs)

    def close(self) -> None:
        """Stop it."""
        took_us = (time.process_time() - self.began) / self.steps * 1e6
        with Path(self.path).open("a") as file:
            file.write(f"{took_us}\n")
        super().close()


class Slowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Computes for so many seconds in each step, beside what the environment does."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return self.env.step(action)


class Paced(RandomPolicy):
    """Writes down, when it is closed, how many steps a second it saw from the `first` one on."""

    def __init__(self, *, path: str, first: int, **spec: Any) -> None:
        super().__init__(**spec)
        self.path, self.first = path, first
        self.acts, self.began = 0, 0.0

    def act(self, obs: Any) -> Any:
        """Start the watch at the first one that counts."""
        self.acts += 1
        if self.acts == self.first:
            self.began = time.perf_counter()
        return super().act(obs)

    def close(self) -> None:
        """Stop it."""
        speed = (self.acts - self.first) / (time.perf_counter() - self.began)
        Path(self.path).write_text(f"{speed}\n")


class Bystander(RandomPolicy):
    """Counts its actions in each tenth of a second since the clock's beginning, and appends what it
    counted to `path` when it is closed: a tenth and a count to a line."""

    TENTHS = 10.0

    def __init__(self, *, path: str, **spec: Any) -> None:
        super().__init__(**spec)
        self.path = path
        self.counts: Counter[int] = Counter()

    def act(self, obs: Any) -> Any:
        """Count it."""
        self.counts[int(time.monotonic() * self.TENTHS)] += 1
        return super().act(obs)

    def close(self) -> None:
        """Tell."""
        lines = "".join(f"{tenth} {count}\n" for tenth, count in self.counts.items())
        with Path(self.path).open("a") as file:
            file.write(lines)


class Killer(RandomPolicy):
    """Sends SIGSEGV to the environment once in `every` actions, or `seconds`, before it says which
    one it is; appends to `<path>.ms` the milliseconds until its next observation, and when it was.

    How many actions lie between two kills is drawn from a half to three halves of that: at equal
    distances all of them would find the same time since the last snapshot.
    """

    def __init__(self, *, path: str, every: int, seconds: float = 0.0, **spec: Any) -> None:
        super().__init__(**spec)
        self.path, self.every, self.seconds = path, every, seconds
        self.acts, self.killed_at = 0, 0
        self.distances = random.Random(self.every)
        self.next = self._after(0)
        self.due = time.monotonic() + 2 * seconds

    def _after(self, acts: int) -> int:
        return acts + self.distances.randint(self.every // 2, self.every * 3 // 2)

    def _is_due(self) -> bool:
        return time.monotonic() >= self.due if self.seconds else self.acts == self.next

    def act(self, obs: Any) -> Any:
        """Stop the watch that runs, or start one."""
        if self.killed_at:
            took_ms = (time.monotonic_ns() - self.killed_at) / 1e6
            with Path(f"{self.path}.ms").open("a") as file:
                file.write(f"{took_ms} {self.killed_at / 1e9}\n")
            self.killed_at = 0
        action = super().act(obs)
        self.acts += 1
        if self._is_due():
            self.next = self._after(self.acts)
            self.due += self.seconds
            victim = int(Path(self.path).read_text())
            self.killed_at = time.monotonic_ns()
            os.kill(victim, signal.SIGSEGV)
        return action
