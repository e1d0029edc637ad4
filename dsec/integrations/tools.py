"""The runner's side of an isolated tool object: it is made, called and captured here.

Owns what happens in the other process: one object of a class whose methods are tools, and after
each call what came of it together with the object's state, in one answer. So whoever has the
result of a call also has the state after it, and a successor that is given the latest state goes
on where that call ended: no call is ever done a second time to get there. The caller's side is
trl.py's.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dsec.errors import SnapshotError, ValueCodecError
from dsec.failover.codecs import Codec, tensors
from dsec.failover.codecs.plan import AttributePlan
from dsec.ipc import values
from dsec.runners.failure import describe
from dsec.runners.lookup import resolve


class ToolHost(gymnasium.Env[Any, Any]):
    """Holds one tool object; an environment that is never stepped, only called.

    Args:
        entry: `module:Class` of the tool class, or nothing; then
        pickled: the class by cloudpickle, in base64, as its own program has sent it.
    """

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(1)

    def __init__(self, entry: str = "", pickled: str = "") -> None:
        self._entry, self._pickled = entry, pickled
        self._tool: Any = None
        self._codec: Codec | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Nothing: the object's own `reset` is a call like all others."""
        super().reset(seed=seed)
        return np.int64(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Nothing."""
        return np.int64(0), 0.0, False, False, {}

    def build(self, args: list[Any], kwargs: dict[str, Any], state: bytes | None) -> dict[str, Any]:
        """Make the object, and let it be what it was when `state` was captured, if that is given.
        Answers as `invoke`."""
        return self._answer(lambda: self._make(args, kwargs, state))

    def ready(self) -> bool:
        """Whether there is an object: a new process has none."""
        return self._tool is not None

    def pid(self) -> int:
        """This process."""
        return os.getpid()

    def invoke(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Call a method of the object.

        Returns:
            `result`, or `raised` (type, message and traceback); `state`, the object's afterwards,
            or None where it can't be captured, and `why`.
        """
        return self._answer(lambda: getattr(self._tool, name)(*args, **kwargs))

    def look(self, name: str) -> dict[str, Any]:
        """An attribute of the object. Answers as `invoke`."""
        return self._answer(lambda: getattr(self._tool, name))

    def put(self, name: str, value: Any) -> dict[str, Any]:
        """Set an attribute of the object. Answers as `invoke`."""
        return self._answer(lambda: setattr(self._tool, name, value))

    def close(self) -> None:
        """Close the object, if it can be closed."""
        close = getattr(self._tool, "close", None)
        if callable(close):
            self._awaited(close())
        if self._loop is not None:
            self._loop.close()

    def _make(self, args: list[Any], kwargs: dict[str, Any], state: bytes | None) -> None:
        self._tool = self._class()(*args, **kwargs)
        self._codec = AttributePlan(self._tool, called="tool", natives=tensors.kinds)
        if state is not None:
            self._codec.restore(state)

    def _class(self) -> Any:
        if self._entry:
            return resolve(self._entry, "tool")
        import cloudpickle

        return cloudpickle.loads(base64.b64decode(self._pickled))

    def _answer(self, do: Any) -> dict[str, Any]:
        try:
            result = self._awaited(do())
            values.encode(result, "result")
            answer = {"result": result}
        except ValueCodecError as error:
            answer = {"raised": _told(TypeError(f"the result can't be carried: {error}"))}
        except Exception as error:
            answer = {"raised": _told(error)}
        return {**answer, **self._state()}

    def _state(self) -> dict[str, Any]:
        if self._codec is None:
            return {"state": None, "why": "it was never made"}
        try:
            return {"state": self._codec.capture(), "why": ""}
        except SnapshotError as error:
            return {"state": None, "why": str(error)}

    def _awaited(self, result: Any) -> Any:
        """The result of an asynchronous method, once it is there; each object has one loop."""
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_whole(result))


async def _whole(result: Any) -> Any:
    return await result


def _told(error: Exception) -> dict[str, str]:
    info = describe(error)
    return {"type": info.type, "message": info.message, "traceback": info.traceback}
