"""Actions that are indices: what lies outside their space never reaches a simulator's table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array

from dsec.errors import LayoutError
from dsec.ipc.layout import Layout

TABLE = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [0, -2]])
MANY = 50  # more values than are compared one by one


def layout(space: spaces.Space[Any], n: int) -> tuple[Layout, Any]:
    made = Layout(space, n, "action", indices=True)
    return made, made.views(bytearray(made.nbytes))


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (spaces.Discrete(2), 2, "action: 2 is outside its space, which is 0 to 1"),
        (spaces.Discrete(2), -1, "action: -1 is outside its space, which is 0 to 1"),
        (spaces.Discrete(3, start=-1), 2, "action: 2 is outside its space, which is -1 to 1"),
        (TABLE, [[0, 1], [4, 0]], "action[1][0]: 4 is outside its space, which is 0 to 3"),
        (TABLE, [[0, 1], [3, -3]], "action[1][1]: -3 is outside its space, which is -2 to 2"),
        (spaces.MultiBinary(3), [0, 1, 2], "action[2]: 2 is outside its space, which is 0 to 1"),
    ],
)
@pytest.mark.parametrize("n", [1, 3, MANY])
def test_an_index_outside_its_space_is_refused_by_place(
    space: spaces.Space[Any], value: Any, told: str, n: int
) -> None:
    made, views = layout(space, n)
    good = [space.sample() for _ in range(n)]
    made.write_batch(views, np.array(good))
    for i in (0, n - 1):
        made.write(views, i, good[i])
        with pytest.raises(LayoutError) as caught:
            made.write(views, i, np.array(value, space.dtype)[()])
        assert str(caught.value) == told
        with pytest.raises(LayoutError) as caught:
            made.write_batch(views, np.array([*good[:i], value, *good[i + 1 :]], space.dtype))
        assert str(caught.value) == told


@pytest.mark.parametrize("n", [1, 3, MANY])
def test_every_sample_of_a_space_is_within_it(n: int) -> None:
    parts = {
        "d": spaces.Discrete(3, start=-1),
        "t": TABLE,
        "b": spaces.MultiBinary((2, 2)),
        "x": spaces.Box(-1, 1, (2,)),
    }
    space = spaces.Dict(parts)
    space.seed(1)
    made, views = layout(space, n)
    for i in range(n):
        made.write(views, i, space.sample())
    assert made.copy(views).keys() == create_empty_array(space, n).keys()


def test_a_box_is_not_bounded_as_in_gymnasium() -> None:
    """Its values are magnitudes: environments clip them, or ClipAction does."""
    made, views = layout(spaces.Box(-1, 1, (2,), np.float32), 1)
    made.write_batch(views, np.array([[7.0, np.nan]], np.float32))
    assert views[0, 0] == 7.0


def test_observations_are_taken_as_they_come() -> None:
    made = Layout(spaces.Discrete(2), 1, "observation")
    made.write(made.views(bytearray(made.nbytes)), 0, 7)
