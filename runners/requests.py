"""What a caller that plays the policy may ask of environments beside a step: resets, frames,
attributes, calls.

Owns the form of requests and answers, and that everything which such a caller sees is done by the
same code in a run and in a successor's replay of it. A request takes the place of an action, with
its number, and is answered by a record of its own; so whatever it changed is done again, in order.
An exception of user code is an answer, too, as it would be in the caller's own process; the
environments stay as they are. Nothing of this is on the path of a step that goes well.

A request is a dict, "do" its kind:

    reset     seeds, mask: one for each environment; options
    get       name
    set       name; values, one for each environment
    call      name, args, kwargs
    render
    about     what a caller wants to know of environments that it can't see
    wrapped   name, `module:Class`: whether such a wrapper is around it
    snapshot, restore: see states.py
    objectives   changes: those of a reward of several; None: it keeps its state, to be looked at
    close     end the stream, which closes the environments

Those from get to render may have a mask, too: for the others nothing is done, and None answered.

Answers are in `info["dsec"]` of the first environment: `answer`, a list with a pair for each
environment (see `_carried`), or `raised`. What `reset` returns comes as observations and infos.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from dsec.errors import LayoutError, PeerError, ValueCodecError
from dsec.ipc import values
from dsec.ipc.frames import Phase, Role
from dsec.ipc.layout import FLAG_ASIDE
from dsec.runners import states
from dsec.runners.failure import describe
from dsec.runners.returned import blamed
from dsec.runners.stage import Stage
from dsec.runners.transitions import peers_fault

Fill = Callable[[Any, int], None]
"""`fill(views, i)` writes the observation of environment i that there was before."""


class Requests:
    """Does what the caller of one agent's environments asks for.

    Args:
        stage: the environments.
        fill: puts the last observation of an environment into the views of a new record.
    """

    def __init__(self, stage: Stage, fill: Fill) -> None:
        self._stage = stage
        self._fill = fill
        self.closing = False

    def step(
        self, n: int, read: Callable[[Any, int], Any], actions: Any, views: Any, rewards: Any,
        flags: Any,
    ) -> bool:  # fmt: skip
        """As `Stage.step`, with an exception as an answer."""
        try:
            return self._stage.step(n, read, actions, views, rewards, flags)
        except Exception as error:
            return self.raised(error, views, rewards, flags)

    def answer(self, n: int, asked: Any, views: Any, rewards: Any, flags: Any) -> bool:
        """Do a request, and write the record that answers it."""
        stage = self._stage
        stage.at = 0
        flags[...] = FLAG_ASIDE
        rewards[...] = 0.0
        try:
            do = _KINDS[asked["do"]]
        except (KeyError, TypeError):
            raise peers_fault(Role.POLICY, f"a request of no known kind: {asked!r}") from None
        try:
            answer = do(self, n, asked, views, flags)
        except Exception as error:
            return self.raised(error, views, rewards, flags)
        if answer is not None:
            stage.infos[0] = {"dsec": {"answer": answer}}
        return True

    def raised(self, error: Exception, views: Any, rewards: Any, flags: Any) -> bool:
        """Let the caller have an exception of user code."""
        stage = self._stage
        if isinstance(error, LayoutError) and not isinstance(error, ValueCodecError):
            error = blamed(stage.at, error)
        info = describe(error)
        for i in range(stage.at, len(stage.envs)):
            self._fill(views, i)
        rewards[...] = 0.0
        flags[...] = FLAG_ASIDE
        stage.forget()
        told = {"type": info.type, "message": info.message, "traceback": info.traceback}
        stage.infos[0] = {"dsec": {"raised": told}}
        return True

    # ------------------------------------------------------------ kinds of request

    def _reset(self, n: int, asked: Any, views: Any, flags: Any) -> None:
        stage = self._stage
        for i, (seed, wanted) in enumerate(zip(asked["seeds"], asked["mask"], strict=True)):
            if wanted:
                flags[i] = stage.begin(i, n, views, seed, asked["options"])
            else:
                self._fill(views, i)

    def _get(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        name = asked["name"]
        return self._each(n, views, lambda env: _look(env, name), name, asked.get("mask"))

    def _call(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        name = asked["name"]

        def call(env: Any) -> Any:
            found = env.get_wrapper_attr(name)
            return found(*asked["args"], **asked["kwargs"]) if callable(found) else found

        return self._each(n, views, call, f"{name}()", asked.get("mask"))

    def _set(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        name, given = asked["name"], iter(asked["values"])

        def change(env: Any) -> None:
            env.set_wrapper_attr(name, _received(next(given)))

        return self._each(n, views, change, name, asked.get("mask"))

    def _render(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        self._stage.enter(int(Phase.RENDER), n)
        return self._each(n, views, lambda env: env.render(), "render()", asked.get("mask"))

    def _about(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        return self._each(n, views, _describe_env, "about")

    def _wrapped(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        name = asked["name"]
        return self._each(n, views, lambda env: _is_wrapped(env, name), "wrapped")

    def _snapshot(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        found = ["value", states.take(self._stage)]
        for i in range(len(self._stage.envs)):
            self._fill(views, i)
        return [found]

    def _restore(self, n: int, asked: Any, views: Any, flags: Any) -> None:
        stage = self._stage
        stage.enter(int(Phase.REPLAY), n)
        states.put(stage, asked, views, flags)

    def _objectives(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        return self._each(n, views, lambda env: None, "objectives")  # the reward role's affair

    def _close(self, n: int, asked: Any, views: Any, flags: Any) -> list[Any]:
        self.closing = True
        return self._each(n, views, lambda env: None, "close")

    def _each(
        self,
        n: int,
        views: Any,
        do: Callable[[Any], Any],
        what: str,
        mask: list[bool] | None = None,
    ) -> list[list[Any]]:
        """What `do` says of each environment of the mask, in a form that can be carried."""
        stage = self._stage
        found = []
        for i, env in enumerate(stage.envs):
            stage.at = i
            wanted = mask is None or mask[i]
            found.append(_carried(do(env) if wanted else None, what))
            self._fill(views, i)
        return found


_KINDS: dict[str, Callable[[Requests, int, Any, Any, Any], list[Any] | None]] = {
    "reset": Requests._reset,
    "get": Requests._get,
    "set": Requests._set,
    "call": Requests._call,
    "render": Requests._render,
    "about": Requests._about,
    "wrapped": Requests._wrapped,
    "snapshot": Requests._snapshot,
    "restore": Requests._restore,
    "objectives": Requests._objectives,
    "close": Requests._close,
}


class _Callable:
    """Stands for something that can be called, and not carried."""

    def __init__(self, doc: str) -> None:
        self.doc = doc


def _look(env: Any, name: str) -> Any:
    value = env.get_wrapper_attr(name)
    return _Callable(str(getattr(value, "__doc__", "") or "")) if callable(value) else value


def _is_wrapped(env: Any, name: str) -> bool:
    """Whether one of the wrappers around an environment is of the class `module:Class`."""
    while isinstance(env, gymnasium.Wrapper):
        if any(f"{kind.__module__}:{kind.__qualname__}" == name for kind in type(env).__mro__):
            return True
        env = env.env
    return False


def _carried(value: Any, what: str) -> list[Any]:
    """`["value", value]`, `["generator", its state]` or `["callable", its docstring]`.

    Raises:
        TypeError: it can't leave this process.
    """
    if isinstance(value, _Callable):
        return ["callable", value.doc]
    if isinstance(value, np.random.Generator):
        return ["generator", value.bit_generator.state]
    try:
        values.encode(value, what)
    except ValueCodecError as error:
        raise TypeError(f"it can't be carried to the calling process: {error}") from None
    return ["value", value]


def _received(pair: Any) -> Any:
    """The inverse of `_carried`."""
    kind, value = pair
    if kind != "generator":
        return value
    makers = {
        each.__name__: each
        for each in (
            np.random.PCG64,
            np.random.PCG64DXSM,
            np.random.MT19937,
            np.random.Philox,
            np.random.SFC64,
        )
    }
    bits = makers[value["bit_generator"]]()
    bits.state = value
    return np.random.Generator(bits)


def _describe_env(env: Any) -> dict[str, Any]:
    """What an environment says of itself, without what can't be carried."""
    metadata = {}
    for key, value in dict(getattr(env, "metadata", None) or {}).items():
        try:
            values.encode({key: value})
        except ValueCodecError:
            continue
        metadata[key] = value
    mode = getattr(env, "render_mode", None)
    return {
        "metadata": metadata,
        "render_mode": mode if isinstance(mode, str) else None,
        "name": str(env),
    }


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """A request out of a record.

    Raises:
        PeerError: it is none.
    """
    try:
        asked = values.decode(data)
    except ValueCodecError as error:
        raise peers_fault(Role.POLICY, error) from None
    if type(asked) is not dict:
        raise PeerError(f"a request that is a {type(asked).__name__}")
    return asked
