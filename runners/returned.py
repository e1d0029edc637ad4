"""What environments may return, and what is said of one that returns something else.

Owns the checks of spaces, infos, rewards and of the tuples of reset and step, each with the words
for who wrote the environment. It knows no record and no ring: where values are written, their
layout looks at them (ipc/layout.py).
"""

from __future__ import annotations

from typing import Any

import gymnasium

from dsec.errors import LayoutError
from dsec.runners.construct import AnyEnv
from dsec.runners.failure import UserCodeError, shown


class NotCarried(UserCodeError):
    """An info holds something that can't leave this process."""


def shared_spaces(envs: list[AnyEnv]) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The spaces that all environments share.

    Raises:
        UserCodeError: one is no space, or they have different ones.
    """
    found = []
    for name in ("observation_space", "action_space"):
        space = getattr(envs[0], name, None)
        if not isinstance(space, gymnasium.Space):
            raise UserCodeError(f"the environment's {name} is {space!r}, not a gymnasium.Space")
        for i, env in enumerate(envs):
            if getattr(env, name, None) != space:
                raise UserCodeError(
                    f"environment {i} has another {name} than environment 0; all environments of"
                    " an agent must have the same"
                )
        found.append(space)
    return found[0], found[1]


def as_reward(value: Any) -> float:
    """The number that `value` is, exactly.

    Numbers of Python and numpy, arrays and tensors of one element are taken.

    Raises:
        LayoutError: it is no number, or not one that float64 holds exactly.
    """
    if value is None or isinstance(value, str | bytes):
        raise LayoutError(f"reward: expected a number, got {shown(value)}")
    try:
        if getattr(value, "shape", ()) != ():
            value = value.item()  # ValueError for more than one element
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LayoutError(f"reward: expected a number, got {shown(value)} ({error})") from None
    if number != value and value == value:
        raise LayoutError(f"reward: {shown(value)} can't be a float64 without loss")
    return number


def check_info(i: int, info: Any, call: str) -> None:
    """Raise UserCodeError where environment i's `call` returned no dict as its info."""
    if not isinstance(info, dict):
        raise UserCodeError(f"environment {i}: {call}() returned {shown(info)} as info, no dict")


def no_step(result: Any, i: int = 0) -> UserCodeError:
    """The error for what step() returned, which is no five values."""
    text = (
        f"environment {i}: step() must return (observation, reward, terminated, truncated, info),"
        f" and returned {shown(result)}"
    )
    if isinstance(result, tuple) and len(result) == 4:
        text += "; four values are the old Gym API: wrap the environment for Gymnasium"
    return UserCodeError(text)


def blamed(i: int, error: LayoutError) -> UserCodeError:
    """What environment i returned doesn't fit its space."""
    return UserCodeError(f"environment {i}: {error}")
