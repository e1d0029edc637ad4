"""Environments with something that a fork does not copy, or copies in its own way."""

from __future__ import annotations

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
