"""Weights that follow the variance: which objective counts more for a while, by how much and when.

Owns hysteresis and bounds. An objective's weight is raised once its variance has jumped
(estimators.Jump), by at most `RAISE_MAX`, and goes back in steps of one block; until it is back,
nothing that this objective does raises it again. Where nothing jumps, weights stay exactly as
they were given, on sparse rewards too. Knows nothing of environments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsec.reward.estimators import Jump, Saved

RAISE_MAX: Final = 2.0
RAISE_EXPONENT: Final = 0.25
"""A variance of 16 times the reference doubles a weight."""
HOLD_STEPS: Final = 512
EASE: Final = 0.995
"""What is left, after one step, of how much too high a weight is, once it has been held."""
BACK: Final = 0.01
"""Where a weight is this near to its own again it is set to that, and can be raised again."""


@dataclass(slots=True)
class Share(Saved):
    """How much more than its weight an objective counts, and since when.

    Attributes:
        raised: factor, 1.0..RAISE_MAX.
        held: steps for which it stays as it is.
        jumps: how many there were.
    """

    jump: Jump = field(default_factory=Jump)
    raised: float = 1.0
    held: int = 0
    jumps: int = 0

    def see(self, value: float, samples_min: int) -> None:
        """Take one sample of the objective in."""
        found = self.jump.add(value, samples_min)
        if self.raised > 1.0:
            if self.held:
                self.held -= 1
            else:
                self.raised = 1.0 + (self.raised - 1.0) * EASE
                if self.raised <= 1.0 + BACK:
                    self.raised = 1.0
        elif found > 1.0:
            self.raised = min(RAISE_MAX, max(1.0 + 2 * BACK, found**RAISE_EXPONENT))
            self.held = HOLD_STEPS
            self.jumps += 1


class Weighting:
    """The weights in force.

    Args:
        samples_min: samples of each objective before any weight can move.
    """

    def __init__(self, samples_min: int) -> None:
        self.samples_min = samples_min
        self.shares: dict[str, Share] = {}

    def keep(self, names: Iterable[str]) -> None:
        """Know these objectives, and forget all others; those that stay go on as they were."""
        self.shares = {name: self.shares.get(name) or Share() for name in names}

    def see(self, values: Mapping[str, float]) -> None:
        """Take in one step's values."""
        for name, value in values.items():
            self.shares[name].see(value, self.samples_min)

    def weights(self, base: Mapping[str, float]) -> dict[str, float]:
        """The weights in force, which add up to what `base` does."""
        if all(self.shares[name].raised == 1.0 for name in base):
            return dict(base)
        raised = {name: weight * self.shares[name].raised for name, weight in base.items()}
        total, wanted = sum(raised.values()), sum(base.values())
        return {
            name: weight * wanted / total if total else weight for name, weight in raised.items()
        }

    def state(self) -> dict[str, Any]:
        """All of it, for JSON or msgpack."""
        return {name: share.state() for name, share in self.shares.items()}

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave.

        Raises:
            ValueError: it is no such thing.
        """
        shares = {name: Share() for name in state}
        for name, share in shares.items():
            share.put_back(state[name])
        self.shares = shares
