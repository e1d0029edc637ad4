"""Environments with something that a fork does not copy, or copies in its own way."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import threading
from typing import Any

from tests.runners.worlds import Line

HERE = "tests.runners.uncloned"


class Drawing(Line):
    """Rewards come from Python's global generator, which every fork seeds anew."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, random.random(), terminated, truncated, info


class Busy(Line):
    """Has a thread, a child process and an open file."""

    def __init__(self) -> None:
        super().__init__()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._stop.wait, args=(60,), name="busy")
        self._thread.start()
        self._child = subprocess.Popen(["sleep", "60"])
        self._file = os.open(__file__, os.O_RDONLY)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._child.kill()
        self._child.wait(10)
        os.close(self._file)


class Reading(Line):
    """Rewards come from an open file, byte by byte: a fork shares the place in it."""

    def __init__(self) -> None:
        super().__init__()
        self._file = os.open(__file__, os.O_RDONLY)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        byte = os.read(self._file, 1)
        if not byte:
            os.lseek(self._file, 0, os.SEEK_SET)
        return obs, float(byte[0]) if byte else -1.0, terminated, truncated, info

    def close(self) -> None:
        os.close(self._file)


class Sharing(Line):
    """Counts in shared memory, which a fork does not copy."""

    def __init__(self) -> None:
        super().__init__()
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
