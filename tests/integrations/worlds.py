"""Environments for the tests of integrations, in a module that imports no library of agents."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.sandbox.worlds import Sampled


def small() -> gymnasium.Env[Any, Any]:
    """Of several spaces, with infos of many kinds, cut and ended episodes."""
    parts = {"at": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(3)}
    return Sampled(spaces.Dict(parts), spaces.Box(-1, 1, (2,), np.float32))
