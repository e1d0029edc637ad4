"""Codecs of policies and rewards: what they say of themselves, or else all of their attributes.

Owns the contract's optional pair: `get_state()` returns whatever describes the object wholly
(dicts, lists, arrays, tensors, numbers, instances), `set_state(state)` puts it back. Where a class
has it, it is believed; where not, the attribute plan takes everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs import tensors
from dsec.failover.codecs.plan import AttributePlan


class Told:
    """What an object told of itself."""

    def __init__(self, state: Any = None) -> None:
        self.state = state


class StateCodec:
    """`get_state` and `set_state`, with the generators of the process beside them (`globals_too`,
    as in AttributePlan)."""

    name = "state"

    def __init__(self, actor: Any, *, globals_too: bool = True) -> None:
        self._actor = actor
        self._told = Told()
        self._plan = AttributePlan(
            self._told, called="get_state()", natives=tensors.kinds, globals_too=globals_too
        )

    def capture(self) -> bytes:
        """Ask the object.

        Raises:
            SnapshotError: it told of something that can't be held.
        """
        self._told.state = _blamed("get_state", self._actor.get_state)
        data = self._plan.capture()
        self._told.state = None
        return data

    def restore(self, data: bytes | memoryview) -> None:
        """Tell the object. It gets objects of its own, which nobody else refers to.

        Raises:
            SnapshotError: these bytes are no such state, or the object does not take it.
        """
        self._plan.restore(data)
        state, self._told.state = self._told.state, None
        _blamed("set_state", lambda: self._actor.set_state(state))


def _blamed(method: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise SnapshotError(f"{method}() raised {type(error).__name__}: {error}") from error


def tells(actor: Any) -> bool:
    """Whether an object has the pair."""
    return all(callable(getattr(actor, name, None)) for name in ("get_state", "set_state"))
