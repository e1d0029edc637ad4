"""Environments that want to be replaced now and then, though nothing is wrong with them yet."""

from __future__ import annotations

import numpy as np

from tests.crash.faulty import Walk

LEAKED: list[bytearray] = []
STEP_BYTES = 1 << 20


class Leaky(Walk):
    """Loses memory at each step, to where none of its attributes leads."""

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        LEAKED.append(bytearray(b"x" * STEP_BYTES))
        return super().step(action)
