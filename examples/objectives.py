"""What examples/objectives.yaml weighs beside CartPole's own reward."""

from __future__ import annotations

from typing import Any


def middle(obs: Any, action: Any, next_obs: Any, done: bool) -> float:
    """-1 where the cart is more than a tenth of a unit away from the middle of its track."""
    return -1.0 if abs(float(next_obs[0])) > 0.1 else 0.0
