"""Construct what the user named: environments with their wrappers, policies and rewards.

Every way in which this can go wrong in a config is answered here with a `UserCodeError` whose
`where` is the key at fault; what a constructor raises by itself passes through with its traceback,
and the caller says whose constructor it was. Nothing is wrapped silently: an environment made from
an id has exactly the wrappers `gymnasium.make` gives it, less the passive checker, and then those
of the config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import gymnasium.wrappers
from gymnasium.envs.registration import parse_env_id

from dsec.ipc.frames import EnvSettings, Phase
from dsec.runners import seeds
from dsec.runners.failure import UserCodeError, describe, kind_of, shown
from dsec.runners.lookup import did_you_mean, import_module, resolve
from dsec.runners.loop import Session
from dsec.runners.wiring import Attachment, Wiring

AnyEnv = gymnasium.Env[Any, Any]


def make_env(settings: EnvSettings) -> AnyEnv:
    """Construct one environment.

    Raises:
        UserCodeError: the id, the entry or a wrapper names nothing or the wrong thing, or a package
            that the environment needs is missing.
        Exception: whatever the constructor raised.
    """
    mistakes: list[UserCodeError] = []
    makers: list[tuple[Callable[..., Any], dict[str, Any]]] = []
    for index, wrapper in enumerate(settings.wrappers):
        try:
            makers.append((_find_wrapper(wrapper, f"env.wrappers[{index}]"), wrapper))
        except UserCodeError as error:
            mistakes.append(error)
    try:
        env = _from_entry(settings) if settings.entry else _from_id(settings)
    except UserCodeError as error:
        mistakes.insert(0, error)
    if mistakes:
        first, *others = mistakes
        first.others = tuple(others)
        raise first
    for index, (make, wrapper) in enumerate(makers):
        env = _wrap(env, make, wrapper, f"env.wrappers[{index}]")
    return env


def _from_id(settings: EnvSettings) -> AnyEnv:
    where = "env.id"
    module, colon, name = settings.id.rpartition(":")
    if colon:
        import_module(module, where)
    _check_id(name, where)
    kwargs = {"disable_env_checker": True, **settings.kwargs}
    try:
        return gymnasium.make(name, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserCodeError(
            f'"{settings.id}" can\'t be made: {error}', where=where, lookup=True
        ) from (error)
    except ModuleNotFoundError as error:
        message = f'"{settings.id}" needs a package that is not installed: {error}'
        raise UserCodeError(message, where=where) from error


def _check_id(name: str, where: str) -> None:
    """Raise the UserCodeError for an id that no package has registered."""
    registry = gymnasium.registry
    if name in registry:
        return
    try:
        namespace, base, version = parse_env_id(name)
    except gymnasium.error.Error:
        message = f'"{name}" is no valid environment id{did_you_mean(name, registry)}'
        raise UserCodeError(message, where=where, lookup=True) from None
    versions = {
        spec.version or 0: spec.id
        for spec in registry.values()
        if spec.namespace == namespace and spec.name == base
    }
    if versions and version is None:
        return  # gymnasium.make takes the latest version, and says so on stderr
    if versions:
        hint = f" (did you mean {versions[max(versions)]}?)"
    else:
        hint = did_you_mean(name, registry)
    if namespace and not any(spec.namespace == namespace for spec in registry.values()):
        hint += (
            f'; nothing has registered "{namespace}": name the module that does,'
            f' as in "module:{name}"'
        )
    raise UserCodeError(f'no environment "{name}"{hint}', where=where, lookup=True)


def _from_entry(settings: EnvSettings) -> AnyEnv:
    where = "env.entry"
    make = resolve(settings.entry, where)
    if not callable(make):
        message = f'"{settings.entry}" is {kind_of(make)}, not a class or function'
        raise UserCodeError(message, where=where, lookup=True)
    return _checked(make(**settings.kwargs), f'"{settings.entry}" returned', where)


def wrap_by_name(env: AnyEnv, wrapper: Mapping[str, Any], index: int) -> AnyEnv:
    """Put a wrapper around an environment, named as in a configuration; the `index`-th of it.

    Raises:
        UserCodeError: as `make_env`.
    """
    where = f"env.wrappers[{index}]"
    return _wrap(env, _find_wrapper(wrapper, where), wrapper, where)


def _wrap(env: AnyEnv, make: Callable[..., Any], wrapper: Mapping[str, Any], where: str) -> AnyEnv:
    entry = wrapper["entry"]
    try:
        wrapped = make(env, **(wrapper.get("kwargs") or {}))
    except Exception as error:
        raise UserCodeError(describe(error).message, where=where) from error
    return _checked(wrapped, f'"{entry}" returned', f"{where}.entry")


def _find_wrapper(wrapper: Mapping[str, Any], where: str) -> Callable[..., Any]:
    entry = wrapper.get("entry")
    if not isinstance(entry, str) or not entry:
        message = "a wrapper needs an entry, as in {entry: TimeLimit, kwargs: {...}}"
        raise UserCodeError(message, where=where, lookup=True)
    make = _resolve_wrapper(entry, f"{where}.entry")
    if not callable(make):
        message = f'"{entry}" is {kind_of(make)}, not a class or function'
        raise UserCodeError(message, where=f"{where}.entry", lookup=True)
    found: Callable[..., Any] = make
    return found


def _resolve_wrapper(entry: str, where: str) -> Any:
    if ":" in entry:
        return resolve(entry, where)
    if entry in gymnasium.wrappers.__all__:
        return getattr(gymnasium.wrappers, entry)
    hint = did_you_mean(entry, gymnasium.wrappers.__all__)
    message = f'no wrapper "{entry}" in gymnasium.wrappers{hint}; others are named module:Class'
    raise UserCodeError(message, where=where, lookup=True)


def _checked(env: Any, subject: str, where: str) -> AnyEnv:
    if isinstance(env, gymnasium.Env):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        message = f"{subject} a vector environment; name the single one and set env.num_envs"
    elif hasattr(env, "step") and hasattr(env, "reset"):
        message = (
            f"{subject} {kind_of(env)}, which has step and reset but is not a gymnasium.Env;"
            " derive its class from gymnasium.Env"
        )
    else:
        message = f"{subject} {kind_of(env)}, not a gymnasium.Env"
    raise UserCodeError(message, where=where, lookup=True)


def find_maker(session: Session, kind: str) -> Callable[..., Any]:
    """Find what the configuration names, before anything is there to construct it with: a name that
    leads nowhere is told at once, and beside other mistakes.

    Raises:
        UserCodeError: nothing there, or nothing callable.
    """
    start, where = session.start, f"{kind}.entry"
    session.phase = Phase.CONSTRUCT
    make = resolve(start.entry, where)
    session.reseed()
    if not callable(make):
        message = f'"{start.entry}" is {kind_of(make)}, not a class'
        raise UserCodeError(message, where=where, lookup=True)
    found: Callable[..., Any] = make
    return found


def make_actor(session: Session, wiring: Wiring | Attachment, kind: str, method: str) -> Any:
    """Construct a policy or a reward, by the contract of contract.py.

    Args:
        wiring: its spaces are what the object is constructed with. Where the outbox is mine
            already, the progress word says what is done.
        kind: `policy` or `reward`, the key that its entry stands under.
        method: what the object must be able to do: `act` or `compute`.

    Raises:
        UserCodeError: nothing there, nothing callable, or an object without `method`.
        Exception: whatever the constructor raised.
    """
    start, where = session.start, f"{kind}.entry"
    session.phase, session.where = Phase.CONSTRUCT, kind
    if isinstance(wiring, Wiring):
        wiring.outbox.enter(Phase.CONSTRUCT, 0)
    make = find_maker(session, kind)
    given = {
        "observation_space": wiring.observation_space,
        "action_space": wiring.action_space,
        "num_envs": wiring.num_envs,
        "seed": seeds.derive(start.seed, kind),
    }
    if clash := sorted(given.keys() & start.kwargs.keys()):
        message = f"{', '.join(clash)}: the runner gives it; remove it from kwargs"
        raise UserCodeError(message, where=f"{kind}.kwargs", lookup=True)
    try:
        actor = make(**given, **start.kwargs)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside the constructor
        taken = ", ".join((*given, *start.kwargs))
        raise UserCodeError(
            f"{error} (a {kind} is constructed with {taken})", where=kind
        ) from error
    session.reseed()
    if not callable(getattr(actor, method, None)):
        hint = did_you_mean(method, (name for name in dir(actor) if not name.startswith("_")))
        message = f'"{start.entry}" makes {kind_of(actor)}, which has no method {method}(){hint}'
        raise UserCodeError(message, where=where, lookup=True)
    return actor


def finish_actor(actor: Any) -> dict[str, float]:
    """Ask for the metrics, where there are any, and close.

    Raises:
        UserCodeError: the metrics are not a dict of names and numbers.
        Exception: whatever `metrics` or `close` raised.
    """
    metrics: dict[str, float] = {}
    ask = getattr(actor, "metrics", None)
    if ask is not None:
        told = ask()
        try:
            metrics = {str(name): float(value) for name, value in told.items()}
        except (AttributeError, TypeError, ValueError) as error:
            message = f"metrics() must return a dict of numbers, and returned {shown(told)}"
            raise UserCodeError(message) from error
    close = getattr(actor, "close", None)
    if close is not None:
        close()
    return metrics
