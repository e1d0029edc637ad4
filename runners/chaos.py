"""Faults on purpose: what `chaos` in a configuration asks a runner to do to itself.

Owns their kinds and their chance. Randomness is the operating system's and not the agent's: what
is injected must not be part of what a successor restores, or it would meet the same fault at the
same step again. For the same reason nothing here belongs to the environment: it is put around the
call that serves a step, never around one that does it again. Without chances it is not there.
"""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def crash() -> None:
    """Read where nothing is mapped, as a broken simulator does."""
    ctypes.string_at(0)


def hang() -> None:
    """Never come back."""
    while True:
        pass


_KINDS: dict[str, Callable[[], None]] = {"segv": crash, "hang": hang}


class Chaos:
    """Counts steps down to the next fault of each kind.

    Args:
        chances: of each kind, for each step; those that are 0 are left out.
    """

    def __init__(self, chances: Mapping[str, float]) -> None:
        dice = random.SystemRandom()
        self._left = {kind: _gap(chance, dice.random()) for kind, chance in chances.items()}

    def tick(self) -> None:
        """One step is about to be made; it may be the last."""
        for kind in self._left:
            self._left[kind] -= 1
            if not self._left[kind]:
                _KINDS[kind]()


def with_faults(step: Callable[P, R], chances: Mapping[str, float]) -> Callable[P, R]:
    """`step` as it is, or with something that may happen before each call of it."""
    if not chances:
        return step
    chaos = Chaos(chances)

    def faulty(*args: P.args, **kwargs: P.kwargs) -> R:
        chaos.tick()
        return step(*args, **kwargs)

    return faulty


def _gap(chance: float, dice: float) -> int:
    """Steps to the next fault, the faulty one included: as if each step threw the dice."""
    if chance >= 1.0:
        return 1
    return 1 + int(math.log(1.0 - dice) / math.log(1.0 - chance))
