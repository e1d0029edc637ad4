"""What comes back from an environment in another process, as what it would have been in this one.

Owns the inverse of what `runners/requests.py` says: values, generators, exceptions. Nothing is
unpickled: an exception is made anew, if its type is one that this process has anyway, from its
message; its traceback is in the notes.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from dsec import errors
from dsec.errors import RemoteError, ValueCodecError
from dsec.ipc import values

_GENERATORS = {
    each.__name__: each
    for each in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}


def to_wire(value: Any, name: str) -> list[Any]:
    """What an attribute is set to, on its way.

    Raises:
        TypeError: it can't be carried to the environment's process.
    """
    if isinstance(value, np.random.Generator):
        return ["generator", value.bit_generator.state]
    check_carried(value, name)
    return ["value", value]


def check_carried(value: Any, name: str) -> None:
    """Raises: TypeError, as `to_wire`."""
    try:
        values.encode(value, name)
    except ValueCodecError as error:
        raise TypeError(f"it can't be carried to the environment's process: {error}") from None


def from_wire(pair: Any) -> Any:
    """A value; a generator is a copy that stands where the environment's did. What can be called
    is None here, for the caller of `is_callable` to deal with."""
    kind, value = pair
    if kind == "generator":
        return generator(value)
    return None if kind == "callable" else value


def is_callable(pair: Any) -> bool:
    """Whether it is something to be called, and not carried."""
    return bool(pair[0] == "callable")


def generator(state: Any) -> np.random.Generator:
    """A generator in that state."""
    bits = _GENERATORS[state["bit_generator"]]()
    bits.state = state
    return np.random.Generator(bits)


def raised(info: Mapping[str, Any]) -> Exception | None:
    """The exception that an info stands for, if it does: an environment may have a "dsec" of its
    own in what it tells."""
    ours = info.get("dsec")
    told = ours.get("raised") if isinstance(ours, dict) else None
    if isinstance(told, dict) and told.keys() == {"type", "message", "traceback"}:
        return exception(told)
    return None


def exception(told: dict[str, str]) -> Exception:
    """The exception that user code raised there."""
    name, message = told["type"], told["message"]
    kind = _known(name)
    try:
        made = kind(message) if kind is not None else RemoteError(f"{name}: {message}")
    except TypeError:  # it wants more than a message
        made = RemoteError(f"{name}: {message}")
    if told["traceback"]:
        made.add_note(f"In the environment's process:\n{told['traceback'].rstrip()}")
    return made


def _known(name: str) -> type[Exception] | None:
    module, _, plain = name.rpartition(".")
    places = {"": builtins, "gymnasium.error": gymnasium.error, "dsec.errors": errors}
    found = getattr(places.get(module), plain, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return None
