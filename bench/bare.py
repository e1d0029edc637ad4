"""The bound of isolation: forked children that poll words of shared memory, and nothing besides.

Owns the least that steps environments in processes of their own. Nothing is checked, recorded,
supervised or kept; a child that dies leaves its caller waiting. What this reaches is what the
machine allows to anybody who gives each environment a process, so it stands beside the others as
their limit.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import envs

BARE = "bare forks, nothing kept or supervised"
WORDS = 16  # a child's own cache lines: what is asked, the action, what is answered, the reward
ASKED, ACTION, ANSWERED, REWARD = 0, 1, 8, 9
LOOK_EVERY = 100_000  # polls of the caller before it asks whether the child lives
PATIENCE = 2000  # polls before a child sleeps: it must cost others nothing while they are measured


class BareForks:
    """Forks `count` children, each with one environment; `step` is one lockstep of all."""

    def __init__(self, name: str, count: int, stack: ExitStack) -> None:
        env = envs.make(name)
        obs, _ = env.reset(seed=0)
        self._words = memoryview(mmap.mmap(-1, 8 * WORDS * count)).cast("q")
        self.obs = np.frombuffer(mmap.mmap(-1, obs.nbytes * count), obs.dtype)
        self.obs = self.obs.reshape(count, *obs.shape)
        self._turn, self._count = 0, count
        self._pids = []
        for i in range(count):
            pid = os.fork()
            if pid == 0:
                try:
                    _serve(env, i, self._words, self.obs[i])
                finally:
                    os._exit(1)
            self._pids.append(pid)
        stack.callback(self._close)

    def step(self, actions: NDArray[np.int64]) -> Any:
        """Write the actions, wait until all have answered."""
        words, give_way = self._words, os.sched_yield
        self._turn = turn = self._turn + 1
        for i, action in enumerate(actions.tolist()):
            words[i * WORDS + ACTION] = action
            words[i * WORDS + ASKED] = turn
        for i in range(self._count):
            polls = 0
            while words[i * WORDS + ANSWERED] != turn:
                give_way()
                polls += 1
                if polls % LOOK_EVERY == 0 and os.waitpid(self._pids[i], os.WNOHANG)[0]:
                    raise RuntimeError(f"child {i} of the bare forks has died")
        return self.obs

    def _close(self) -> None:
        for i in range(self._count):
            self._words[i * WORDS + ASKED] = -1
        for pid in self._pids:
            os.waitpid(pid, 0)


def _serve(env: Any, i: int, words: memoryview, out: NDArray[Any]) -> None:
    asked, answered, reward_at = i * WORDS + ASKED, i * WORDS + ANSWERED, i * WORDS + REWARD
    action_at, give_way, parent = i * WORDS + ACTION, os.sched_yield, os.getppid()
    env.reset(seed=i)
    turn = 0
    while True:
        polls = 0
        while words[asked] == turn:
            give_way()
            polls += 1
            if polls > PATIENCE:
                time.sleep(0.001)
                if os.getppid() != parent:
                    os._exit(1)
        turn = words[asked]
        if turn < 0:
            os._exit(0)
        # A numpy scalar, as every vector environment hands it over: for some spaces it is the
        # dearer one to look at.
        obs, reward, terminated, truncated, _ = env.step(np.int64(words[action_at]))
        if terminated or truncated:
            obs, _ = env.reset()
        out[...] = obs
        words[reward_at] = int(reward)
        words[answered] = turn
