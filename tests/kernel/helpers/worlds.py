"""Environments whose faults only the kernel's own tests need."""

from __future__ import annotations

import os
from typing import Any

from tests.crash.faulty import FAULTS, Walk, spin


class FaultyClose(Walk):
    """Fails when it is closed."""

    def __init__(self, last: str) -> None:
        super().__init__()
        self.last = last

    def close(self) -> None:
        FAULTS[self.last]()


class Detached(Walk):
    """Closes every descriptor but the standard ones in its 30th step, and never returns."""

    def step(self, action: Any) -> Any:
        if self.steps == 29:
            os.closerange(3, 1024)
            spin()
        return super().step(action)
