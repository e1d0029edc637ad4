"""What the runs of `bench failover` are made of: an environment that says who it is, and a policy
that kills it and takes the time until it sees the next observation.

Owns the file through which the one tells the other. Loaded only in children of a run.
"""

from __future__ import annotations

import os
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
    process shares with others would keep it from being cloned."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: str) -> None:
        super().__init__(env)
        self.path = path

    def step(self, action: Any) -> Any:
        global _written_by
        if _written_by != os.getpid():
            _written_by = os.getpid()
            file = os.open(self.path, os.O_WRONLY)
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
    """Sends SIGSEGV to the environment at every `every`-th action, before it says which one it is,
    and appends the milliseconds until its next observation to `<path>.ms`."""

    def __init__(self, *, path: str, every: int, **spec: Any) -> None:
        super().__init__(**spec)
        self.path, self.every = path, every
        self.acts, self.killed_at = 0, 0

    def act(self, obs: Any) -> Any:
        """Stop the watch that runs, or start one."""
        if self.killed_at:
            took_ms = (time.monotonic_ns() - self.killed_at) / 1e6
            self.killed_at = 0
            with Path(f"{self.path}.ms").open("a") as file:
                file.write(f"{took_ms}\n")
        action = super().act(obs)
        self.acts += 1
        if self.every and self.acts % self.every == 0:
            victim = int(Path(self.path).read_text())
            self.killed_at = time.monotonic_ns()
            os.kill(victim, signal.SIGSEGV)
        return action
