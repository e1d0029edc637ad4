"""What the runs of `bench failover` are made of: an environment that says who it is, and a policy
that kills it and takes the time until it sees the next observation.

Owns the file through which the one tells the other. Loaded only in children of a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
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


class Killer(RandomPolicy):
    """Sends SIGSEGV to the environment once in `every` actions, before it says which one it is, and
    appends the milliseconds until its next observation to `<path>.ms`.

    How many actions lie between two kills is drawn from a half to three halves of that: at equal
    distances all of them would find the same time since the last snapshot.
    """

    def __init__(self, *, path: str, every: int, **spec: Any) -> None:
        super().__init__(**spec)
        self.path, self.every = path, every
        self.acts, self.killed_at = 0, 0
        self.distances = random.Random(self.every)
        self.next = self._after(0)

    def _after(self, acts: int) -> int:
        return acts + self.distances.randint(self.every // 2, self.every * 3 // 2)

    def act(self, obs: Any) -> Any:
        """Stop the watch that runs, or start one."""
        if self.killed_at:
            took_ms = (time.monotonic_ns() - self.killed_at) / 1e6
            self.killed_at = 0
            with Path(f"{self.path}.ms").open("a") as file:
                file.write(f"{took_ms}\n")
        action = super().act(obs)
        self.acts += 1
        if self.acts == self.next:
            self.next = self._after(self.acts)
            victim = int(Path(self.path).read_text())
            self.killed_at = time.monotonic_ns()
            os.kill(victim, signal.SIGSEGV)
        return action
