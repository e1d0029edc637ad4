"""Spaces drawn from a generator, for environments that make themselves up in another process.

Owns what kinds there are and how deep they nest. Knows no runner.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def random_space(
    random: np.random.Generator, depth: int = 0, *, variable: bool = False
) -> spaces.Space[Any]:
    """Some space, nested up to three levels deep."""
    if variable and (depth == 1 or random.random() < 0.4):
        return random_variable_space(random, depth)
    kinds = 7 if depth < 3 else 5
    match int(random.integers(kinds)) if depth else int(random.integers(5, 7)):
        case 0:
            dtype = random.choice([np.float32, np.float64, np.float16])
            shape = tuple(int(n) for n in random.integers(1, 4, random.integers(1, 4)))
            return spaces.Box(-2, 2, shape, dtype)
        case 1:
            dtype = random.choice([np.uint8, np.int16, np.int64])
            return spaces.Box(0, 100, (int(random.integers(1, 5)),), dtype)
        case 2:
            return spaces.Discrete(int(random.integers(2, 9)), start=int(random.integers(-4, 4)))
        case 3:
            return spaces.MultiDiscrete(random.integers(2, 6, int(random.integers(1, 4))))
        case 4:
            return spaces.MultiBinary(int(random.integers(1, 6)))
        case 5:
            names = [f"part{i}" for i in range(int(random.integers(1, 4)))]
            return spaces.Dict(
                {name: random_space(random, depth + 1, variable=variable) for name in names}
            )
        case _:
            parts = range(int(random.integers(1, 4)))
            return spaces.Tuple([random_space(random, depth + 1, variable=variable) for _ in parts])


def random_variable_space(random: np.random.Generator, depth: int) -> spaces.Space[Any]:
    """Some space whose values have no fixed size; what is inside may have none, either."""
    deeper = depth < 3
    match int(random.integers(5 if deeper else 2)):
        case 0:
            return spaces.Text(int(random.integers(1, 30)), min_length=0, charset="ab\u00e9\u4e2d ")
        case 1:
            node = random.choice([spaces.Box(-1, 1, (2,)), spaces.Discrete(4)])
            edge = random.choice([spaces.Box(0, 1, (), np.float64), spaces.Discrete(3), None])
            return spaces.Graph(node, edge)
        case 2:
            inside = random_space(random, depth + 1, variable=True)
            return spaces.Sequence(inside, stack=bool(random.integers(2)))
        case 3:
            inside = random_space(random, 4)
            return spaces.Sequence(inside, stack=bool(random.integers(2)))
        case _:
            options = range(int(random.integers(1, 4)))
            return spaces.OneOf([random_space(random, depth + 1, variable=True) for _ in options])
