"""Functions that tests name as the values of objectives."""

from __future__ import annotations

from typing import Any

from tests.runners.worlds import checksum


def odd(obs: Any, action: Any, next_obs: Any, done: bool) -> float:
    """1 at some steps, depending on all that it is given."""
    return float(int(checksum(next_obs) * 1e6 + checksum(action) + done) % 9 == 0)
