"""What a reward is made of: objectives, their weights and where their raw values come from.

Pure checks with the sentences that a person needs; computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsec.errors import LocalError

KINDS: Final = ("dense", "sparse")
_KEYS: Final = ("weight", "type", "entry")


@dataclass(frozen=True, slots=True)
class Objective:
    """One part of the reward.

    Attributes:
        weight: its share, 0..1; those of all objectives add up to 1.
        kind: `dense`, worth something at each step, or `sparse`, 0 at most of them.
        entry: `module:function` that computes its raw value; empty for none.
    """

    name: str
    weight: float
    kind: str
    entry: str = ""

    def described(self) -> dict[str, Any]:
        """What `objective` makes it of again."""
        told: dict[str, Any] = {"weight": self.weight, "type": self.kind}
        return told | {"entry": self.entry} if self.entry else told


def objective(name: object, given: object) -> Objective:
    """One objective as the caller wrote it.

    Raises:
        LocalError: it is no mapping of `weight` and `type`, or a value is none of those permitted.
    """
    if not isinstance(name, str) or not name:
        raise LocalError(f"an objective is called by a text, not {name!r}")
    where = f"objective {name!r}"
    if not isinstance(given, Mapping):
        raise LocalError(f'{where}: expected {{"weight": …, "type": …}}, got {given!r}')
    if unknown := [key for key in given if key not in _KEYS]:
        raise LocalError(f"{where}: unknown key {unknown[0]!r} (known: {', '.join(_KEYS)})")
    if "weight" not in given:
        raise LocalError(f"{where}: its weight is missing")
    weight = given["weight"]
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise LocalError(f"{where}: weight must be a number, not {weight!r}")
    if not math.isfinite(weight) or not 0 <= weight <= 1:
        raise LocalError(
            f"{where}: weight must be from 0 to 1, not {weight}; what is to be avoided has a "
            "negative raw value"
        )
    kind, entry = given.get("type", "dense"), given.get("entry", "")
    if kind not in KINDS:
        raise LocalError(f"{where}: type must be dense or sparse, not {kind!r}")
    if not isinstance(entry, str):
        raise LocalError(f'{where}: entry is "module:function", not {entry!r}')
    return Objective(name, float(weight), kind, entry)


def checked(found: Mapping[str, Objective]) -> dict[str, Objective]:
    """The objectives together.

    Raises:
        LocalError: there are none, or their weights don't add up to 1.
    """
    if not found:
        raise LocalError(
            'no objectives: give at least one, as in {"task": {"weight": 1.0, "type": "dense"}}'
        )
    total = math.fsum(each.weight for each in found.values())
    if not math.isclose(total, 1.0, abs_tol=1e-6):
        hint = ""
        if total > 0:
            parts = (f"{each.name}: {each.weight / total:.4g}" for each in found.values())
            hint = f"; in the same proportions that would be {', '.join(parts)}"
        raise LocalError(f"the weights add up to {total:.6g}, not to 1{hint}")
    return dict(found)


def objectives(given: object) -> dict[str, Objective]:
    """All objectives as the caller wrote them.

    Raises:
        LocalError: what `objective` and `checked` raise, or no mapping at all.
    """
    if not isinstance(given, Mapping):
        raise LocalError(f"objectives: expected a mapping of names to weights, got {given!r}")
    return checked({name: objective(name, each) for name, each in given.items()})


def changed(known: Mapping[str, Objective], changes: object) -> dict[str, Objective]:
    """What objectives become.

    Args:
        changes: by name, what an objective is from now on; None takes it away.

    Raises:
        LocalError: what comes of it doesn't add up, or is none.
    """
    if not isinstance(changes, Mapping):
        raise LocalError(f"objectives: expected a mapping of names to weights, got {changes!r}")
    found = dict(known)
    for name, given in changes.items():
        if given is not None:
            found[name] = objective(name, given)
        elif found.pop(name, None) is None:
            raise LocalError(f"no objective {name!r} (there are {', '.join(known)})")
    return checked(found)
