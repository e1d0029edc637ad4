"""The state of an environment before a reset: what a replay of its episode begins with.

An environment that no codec holds is often one whose state lies in a library (a physics world, a
socket), and which makes that anew in `reset()`, from random numbers and its own settings. So this
codec holds what can be held of each wrapper and of the environment, generators first of all, and
leaves out the attributes that can't be. Put into an environment that was constructed alike, and
reset, it begins the same episode, or it doesn't: the self-check tries that with whole episodes, and
every replay compares again. Nothing here resets anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from dsec.errors import SnapshotError
from dsec.failover.codecs.plan import AttributePlan
from dsec.failover.codecs.writing import Kind

LAYERS_MAX = 64
_INNER = "env"  # the attribute in which a wrapper of Gymnasium has what it wraps


class _Held:
    """The attributes that are held, under the names of their layer and their own."""


class BeginningCodec:
    """The state of an environment before it is reset, as far as it can be held.

    Args:
        env: the outermost wrapper.
        natives: as of AttributePlan.

    Attributes:
        left_out: the attributes that are not held, and why; known from the first capture on.
    """

    name = "replay"

    def __init__(self, env: Any, natives: Callable[[], dict[type, Kind]] = dict) -> None:
        self._env, self._natives = env, natives
        self._names: tuple[tuple[str, ...], ...] = ()
        self._kept: frozenset[str] = frozenset()
        self._plan: AttributePlan | None = None
        self._held = _Held()
        self.left_out: dict[str, str] = {}

    def capture(self) -> bytes:
        """The state now, which must be that before a reset.

        Raises:
            SnapshotError: the objects change while they are looked at.
        """
        layers = _layers(self._env)
        names = tuple(tuple(vars(layer)) for layer in layers)
        if self._plan is not None and names == self._names:
            self._gather(layers)
            try:
                return self._plan.capture()
            except SnapshotError:
                pass  # an attribute has become something that can't be held
        self._choose(layers, names)
        self._gather(layers)
        assert self._plan is not None, "made by _choose"
        return self._plan.capture()

    def restore(self, data: bytes | memoryview) -> None:
        """Put a captured state into the environment, which is to be reset then.

        Raises:
            SnapshotError: these bytes are no state of such an environment.
        """
        layers = _layers(self._env)
        held = _Held()
        for number, layer in enumerate(layers):
            for name, value in vars(layer).items():
                held.__dict__[f"{number}.{name}"] = value
        AttributePlan(held, called=self.name, natives=self._natives).restore(data)
        for key, value in held.__dict__.items():
            layer, _, name = key.partition(".")
            if int(layer) >= len(layers):
                raise SnapshotError("the environment has fewer wrappers than the captured one")
            vars(layers[int(layer)])[name] = value

    def _choose(self, layers: list[Any], names: tuple[tuple[str, ...], ...]) -> None:
        """Find out which attributes can be held."""
        kept, left_out = [], {}
        for number, layer in enumerate(layers):
            for name, value in vars(layer).items():
                if isinstance(value, gymnasium.Env):
                    continue
                trial = _Held()
                trial.__dict__[name] = value
                where = type(layer).__name__
                try:
                    AttributePlan(
                        trial, called=where, natives=self._natives, globals_too=False
                    ).compile()
                except SnapshotError as error:
                    left_out[f"{where}.{name}"] = str(error)
                else:
                    kept.append(f"{number}.{name}")
        self._names, self._kept, self.left_out = names, frozenset(kept), left_out
        self._plan = AttributePlan(self._held, called=self.name, natives=self._natives)

    def _gather(self, layers: list[Any]) -> None:
        fields = self._held.__dict__
        fields.clear()
        for number, layer in enumerate(layers):
            for name, value in vars(layer).items():
                if (key := f"{number}.{name}") in self._kept:
                    fields[key] = value


class Restarted:
    """A beginning with the reset that follows it, so that the self-check for states can try it."""

    name = BeginningCodec.name

    def __init__(self, env: Any, codec: BeginningCodec) -> None:
        self._env, self._codec = env, codec

    def capture(self) -> bytes:
        """As of BeginningCodec; the environment is reset."""
        data = self._codec.capture()
        self._env.reset()
        return data

    def restore(self, data: bytes | memoryview) -> None:
        """As of BeginningCodec; the environment is reset."""
        self._codec.restore(data)
        self._env.reset()


def _layers(env: Any) -> list[Any]:
    """The wrappers, from outside, and the environment itself."""
    found = [env]
    while len(found) < LAYERS_MAX and isinstance(
        inner := vars(found[-1]).get(_INNER), gymnasium.Env
    ):
        found.append(inner)
    return found
