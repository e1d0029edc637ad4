"""Tool classes whose methods run in an isolated process: for TRL's GRPOTrainer and other agents.

    from dsec.integrations.trl import isolated

    trainer = GRPOTrainer(..., environment_factory=isolated(MyTools))

Owns the proxy class: it has the methods of the original, with their signatures and docstrings,
and nothing of its own that is public, because TRL makes a tool of every public method. Needs no
TRL: any loop that calls tools by name can use it. What runs in the other process is tools.py's.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dsec.errors import EnvironmentLost, ToolLost, ToolUnresolved
from dsec.integrations.trace import Intent, Trace, unresolved
from dsec.sandbox import AgentSandbox, remote

__all__ = ["Intent", "close", "isolated", "unresolved"]

ALWAYS_AGAIN = ("reset", "get_reward")
TRIES = 3  # of a call that may be done again; what kills as often is not the machine's fault

T = TypeVar("T")


def isolated(
    tool_class: type[T],
    *,
    idempotent: Iterable[str] = (),
    trace: str | Path | None = None,
    timeout_s: float = 60.0,
    seed: int | None = None,
    limits: Mapping[str, Any] | None = None,
    failover: Mapping[str, Any] | None = None,
) -> type[T]:
    """A class like this one, each of whose objects lives in a process of its own.

    Its public methods have the same names, signatures and docstrings; public attributes are read
    and set there, too. Arguments and results are numbers, texts, bytes, arrays and lists, tuples,
    sets and dicts of these. A `close` of the class is called there when the object goes.

    If the process dies between two calls, its successor goes on with the same state. If it dies
    in a call, or the call takes longer than `timeout_s`, the state is that before the call; the
    call is done again if that is harmless, and else raises ToolUnresolved.

    Args:
        tool_class: of an importable module, or of the calling script, which is carried by value.
        idempotent: methods that may be done again. `reset` and `get_reward` always are.
        trace: a file to which each call is appended before it is done, and its outcome before it
            is returned; see `unresolved`.
        timeout_s: of a call, seconds.
        seed: of the generators of Python, numpy and torch in each process; drawn if left out.
        limits, failover: as in a configuration file (`memory_mb`, `restarts`), see docs/CONFIG.md.

    Raises (the methods):
        ToolUnresolved: as said.
        ToolLost: the process died, and its state could not be kept; `reset` begins anew.
        TypeError: arguments or results that can't be carried.
        Exception: what the tool itself raised.
    """
    if not inspect.isclass(tool_class):
        raise TypeError(f"isolated() takes a class whose methods are tools, not {tool_class!r}")
    methods = dict(inspect.getmembers(tool_class, inspect.isfunction))
    public = {name: each for name, each in methods.items() if not name.startswith("_")}
    again = {*idempotent, *ALWAYS_AGAIN}
    if unknown := sorted(set(idempotent) - public.keys()):
        raise ValueError(f"{tool_class.__name__} has no public method {', '.join(unknown)}")
    public.pop("close", None)
    settings = {
        "env_kwargs": _carried(tool_class),
        "deadlines": {"step_s": float(timeout_s)},
        "limits": limits,
        "seed": seed,
        "failover": {"standby": "none", **(failover or {})},
    }
    body: dict[str, Any] = {
        name: _proxied(each, name, name in again) for name, each in public.items()
    }
    for name, each in public.items():
        if isinstance(inspect.getattr_static(tool_class, name), staticmethod):
            body[name].__signature__ = _with_self(inspect.signature(each))
    body |= {
        "__doc__": tool_class.__doc__,
        "__module__": tool_class.__module__,
        "__qualname__": tool_class.__qualname__,
        "__signature__": inspect.signature(tool_class),
        "_settings": settings,
        "_trace_path": Path(trace) if trace is not None else None,
    }
    made: Any = type(tool_class.__name__, (_Isolated,), body)
    return made  # type: ignore[no-any-return]


def close(tools: Any) -> None:
    """End the process of an object of such a class. So does its being collected, and the end of
    the program."""
    tools._finalizer()


class _Isolated:
    """What the proxy classes have in common, all of it private."""

    _settings: Mapping[str, Any]
    _trace_path: Path | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        remote.check_carried([args, kwargs], f"{type(self).__name__}()")
        put = functools.partial(object.__setattr__, self)
        sandbox = AgentSandbox("dsec.integrations.tools:ToolHost", **self._settings)
        trace = Trace(self._trace_path) if self._trace_path is not None else None
        put("_finalizer", weakref.finalize(self, _end, sandbox, trace))
        put("_env", sandbox.get_env())
        put("_trace", trace)
        put("_made_with", (list(args), dict(kwargs)))
        put("_state", None)
        put("_lost", "")
        self._env.reset()
        try:
            self._take(self._build(None))
        except BaseException:
            self._finalizer()
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._do("look", name, [name], again=True)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is private to the isolated object")
        remote.check_carried(value, name)
        self._do("put", name, [name, value], again=True)

    def __reduce__(self) -> Any:
        raise TypeError(f"an isolated {type(self).__name__} can't be pickled or copied")

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], again: bool) -> Any:
        remote.check_carried([args, kwargs], f"{name}()")
        if self._trace is None:
            return self._do("invoke", name, [name, list(args), kwargs], again)
        call = self._trace.intent(f"{type(self).__name__}.{name}", args, kwargs)
        try:
            result = self._do("invoke", name, [name, list(args), kwargs], again)
        except ToolUnresolved as error:
            self._trace.outcome(call, "unresolved", str(error))
            raise
        except Exception as error:
            self._trace.outcome(call, "raised", f"{type(error).__name__}: {error}")
            raise
        self._trace.outcome(call, "result", result)
        return result

    def _do(self, what: str, name: str, given: list[Any], again: bool) -> Any:
        """Ask the host for something, of an object that is as it was after the last answer."""
        for left in range(TRIES - 1, -1, -1):
            self._revive(name)
            try:
                return self._take(self._env.call(what, *given))
            except EnvironmentLost as lost:
                if again and left:
                    continue
                said = f"{type(self).__name__}.{name}: {lost}"
                hint = "" if again else "; it was not done again, because it may have had effects"
                raise ToolUnresolved(said + hint) from None
        raise AssertionError("it has returned or raised")

    def _revive(self, name: str) -> None:
        """Have an object there, whatever has happened since the last call."""
        try:
            if self._env.call("ready"):
                return
        except EnvironmentLost:
            pass  # the process died while nobody asked for anything; there is a new one
        if self._lost and name != "reset":
            raise ToolLost(
                f"{type(self).__name__}: its process died, and its state could not be kept:"
                f" {self._lost}; reset() begins anew"
            )
        try:
            answer = self._build(self._state)
        except EnvironmentLost as lost:
            raise ToolLost(f"{type(self).__name__} can't be made anew: {lost}") from None
        if "raised" in answer:
            raise remote.exception(answer["raised"])

    def _build(self, state: bytes | None) -> dict[str, Any]:
        args, kwargs = self._made_with
        answer: dict[str, Any] = self._env.call("build", args, kwargs, state)
        return answer

    def _take(self, answer: dict[str, Any]) -> Any:
        object.__setattr__(self, "_state", answer["state"])
        object.__setattr__(self, "_lost", answer["why"])
        if "raised" in answer:
            raise remote.exception(answer["raised"])
        return answer["result"]


def _proxied(method: Callable[..., Any], name: str, again: bool) -> Callable[..., Any]:
    """A method that does the same in the other process."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def proxy(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(self._call, name, args, kwargs, again)

    else:

        @functools.wraps(method)
        def proxy(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs, again)

    return proxy


def _with_self(signature: inspect.Signature) -> inspect.Signature:
    """Of a static method that is called through an object in the other process."""
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def _carried(tool_class: type) -> dict[str, Any]:
    """How the other process finds the class."""
    module, name = tool_class.__module__, tool_class.__qualname__
    if module != "__main__" and "<" not in module + name:
        return {"entry": f"{module}:{name}"}
    import cloudpickle

    return {"pickled": base64.b64encode(cloudpickle.dumps(tool_class)).decode()}


def _end(sandbox: AgentSandbox, trace: Trace | None) -> None:
    sandbox.close()
    if trace is not None:
        trace.close()
