"""From what somebody types to the order for a kernel: names, profiles, checks.

Owns how an environment may be named, and what a resource profile stands for. All values are
checked by the models of `dsec.config`, so that a sandbox and a configuration file know the same
keys; what is wrong is told here, before any process is started.
"""

from __future__ import annotations

import base64
import inspect
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from dsec import __version__
from dsec.config import Agent
from dsec.config.check import check
from dsec.config.source import Source
from dsec.engine import talk
from dsec.errors import LocalError
from dsec.seeds import fresh_run_seed

AUTORESETS = ("next_step", "same_step", "disabled")
STEP_MARGIN_S = 30.0
"""What a failover may take beside the deadlines of user code, on a machine that is busy."""

RESOURCE_PROFILES: Mapping[str, Mapping[str, Any]] = {
    "rl_default": {},
    "rl_tuned": {"sync_interval": 5, "pool": {}},
    "small": {"ipc": {"ring_slots": 64}},
    "unprotected": {"failover": {"standby": "none"}},
}
"""Named defaults; what is given besides counts more. `rl_default`: those of a configuration file.
`rl_tuned`: a pool of atoms, whose memory is taken at the beginning, and an atom each 5 steps.
`small`: short rings, for many environments in little memory. `unprotected`: no state is kept, so
a death ends the episode, and nothing is spent on it before."""
POOL_MB = 64

_ARGUMENT = re.compile(r"^agents\[0\]\.(env\.(?=wrappers))?")
"""What a path has before the name of an argument."""

EnvName = str | EnvSpec | Callable[..., gymnasium.Env[Any, Any]]


@dataclass(frozen=True, slots=True)
class Given:
    """What a sandbox and a vector have in common, as somebody typed it."""

    env: EnvName | None
    kwargs: Mapping[str, Any]
    wrappers: Sequence[Any] = ()
    name: str = "sandbox"
    seed: int | None = None
    profile: str = "rl_default"
    snapshot_interval: int = 50
    failover: Mapping[str, Any] | None = None
    deadlines: Mapping[str, float] | None = None
    limits: Mapping[str, Any] | None = None
    isolation: Mapping[str, Any] | None = None
    reward: str | Mapping[str, Any] | None = None
    record: str | Path | None = None
    sync_interval: int | None = None
    pool: Mapping[str, Any] | None = None
    coasts: bool = False
    """It knows what to do with failover.cached_steps."""


def make_order(given: Given, *, lanes: int, num_envs: int, autoreset: str) -> talk.Order:
    """The order.

    Raises:
        ValueError: something doesn't exist or isn't in its range; says what, and what is.
        TypeError: an environment or wrapper that can't be carried to another process.
    """
    if autoreset not in AUTORESETS:
        raise ValueError(f"autoreset_mode is one of {', '.join(AUTORESETS)}, not {autoreset!r}")
    if given.profile not in RESOURCE_PROFILES:
        known = ", ".join(RESOURCE_PROFILES)
        raise ValueError(f"resource_profile is one of {known}, not {given.profile!r}")
    seed = fresh_run_seed() if given.seed is None else given.seed
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError(f"seed is an int from 0 to 2**63 - 1, not {seed!r}")
    agent: dict[str, Any] = {
        "name": given.name,
        "env": _environment(given, num_envs),
        "policy": {"entry": "dsec.policies:RandomPolicy"},  # never made: the caller is the policy
        "snapshot_interval": given.snapshot_interval,
    }
    if given.reward is not None:
        agent["reward"] = {"entry": given.reward} if isinstance(given.reward, str) else given.reward
    profile = RESOURCE_PROFILES[given.profile]
    for key in ("failover", "deadlines", "limits", "isolation", "ipc"):
        told = getattr(given, key, None)
        if told is not None and not isinstance(told, Mapping):
            raise TypeError(f"{key} is a dict of keys of docs/CONFIG.md, not {told!r}")
        agent[key] = {**profile.get(key, {}), **(told or {})}
    sync = profile.get("sync_interval") if given.sync_interval is None else given.sync_interval
    pool = _pool(given, sync)
    if pool is not None:
        agent["sync_interval"] = given.snapshot_interval if sync is None else sync
    checked = _checked(given, agent, pool)
    if checked.failover.cached_steps and not given.coasts:
        raise ValueError(
            "failover.cached_steps is for an AgentSandbox: a vector steps all its environments at"
            " once and waits for them all. Leave it out here"
        )
    return talk.Order(
        version=__version__,
        agent=checked.model_dump(mode="json", exclude_unset=True),
        lanes=lanes,
        seed=seed,
        autoreset=autoreset,
        reward=given.reward is not None,
        out=str(Path(given.record).absolute()) if given.record is not None else "",
        record="parquet" if given.record is not None else "none",
        pool=None if pool is None else {"name": f"{given.name}-{uuid.uuid4().hex[:12]}", **pool},
    )


def _pool(given: Given, sync: int | None) -> dict[str, Any] | None:
    """The pool, with all its keys; None if there is to be none."""
    if given.pool is None and sync is None:
        return None
    told = given.pool or {}
    if not isinstance(told, Mapping):
        raise TypeError(
            f"pool is a dict of keys of docs/CONFIG.md, as {{'size_mb': 64}}, not {told!r}"
        )
    return {"size_mb": POOL_MB, "persist": False, **told}


def _checked(given: Given, agent: dict[str, Any], pool: dict[str, Any] | None) -> Agent:
    """What was typed, as a configuration file would have it.

    Raises:
        ValueError: all that is wrong, a line each: which argument, and what to write instead.
    """
    cached = agent["failover"].get("cached_steps", 0)
    coasts = type(cached) is int and cached > 0
    judged = {**agent, "failover": {**agent["failover"], **({"cached_steps": 0} if coasts else {})}}
    data = {"run": {"steps": 1}, "agents": [judged], **({} if pool is None else {"pool": pool})}
    found, problems = check(Source(data=data, file=""))
    if found is None:
        said = (f"{_ARGUMENT.sub('', each.path)}: {each.message}" for each in problems)
        raise ValueError("\n".join(said))
    return Agent.model_validate(agent)


def limits_of(order: talk.Order) -> tuple[float, float, float]:
    """How long the start, an answer and the end may take at most, in seconds.

    Deadlines are the kernel's to keep; these are for the case that it doesn't.
    """
    deadlines = Agent.model_validate(order.agent).deadlines
    start_s = 120.0 + deadlines.construct_s * (1 + order.lanes // 8)
    work_s = max(deadlines.step_s, deadlines.reset_s) + deadlines.reward_s
    answer_s = 3 * (work_s + deadlines.construct_s) + STEP_MARGIN_S
    return start_s, answer_s, deadlines.close_s + 5.0


def cached_steps_of(order: talk.Order) -> int:
    """How many stale observations a step may be answered with in a row."""
    return Agent.model_validate(order.agent).failover.cached_steps


def spec_of(env: EnvName | None) -> EnvSpec | None:
    """The registration behind a name, if this process has it."""
    if isinstance(env, EnvSpec):
        return env
    if not isinstance(env, str):
        return None
    return gymnasium.registry.get(env.rpartition(":")[2])


def _environment(given: Given, num_envs: int) -> dict[str, Any]:
    env, kwargs = given.env, dict(given.kwargs)
    made: dict[str, Any] = {"num_envs": num_envs, "kwargs": kwargs}
    if isinstance(env, str) and not _only_here(env) and not any(map(callable, given.wrappers)):
        named = "entry" if _is_entry(env) else "id"
        return {**made, named: env, "wrappers": [_wrapper(each) for each in given.wrappers]}
    if env is None or not (isinstance(env, str | EnvSpec) or callable(env)):
        raise LocalError(
            "an environment is the id of a registered one, 'module:function', a gymnasium EnvSpec,"
            f" or a function that returns one; not {env!r}"
        )
    name = None if any(map(callable, given.wrappers)) else _importable(env)
    if name is not None:
        return {**made, "entry": name, "wrappers": [_wrapper(each) for each in given.wrappers]}
    packed = _pickled(env, given.wrappers)
    return {
        **made,
        "entry": "dsec.runners.factory:load",
        "kwargs": {"pickled": packed, "kwargs": kwargs},
    }


def _is_entry(name: str) -> bool:
    """Whether `a:b` names a function and not an id that module `a` registers."""
    module, _, last = name.rpartition(":")
    return bool(module) and last.isidentifier()


def _only_here(name: str) -> bool:
    """Whether an id was registered by this program, so that a runner would not know it."""
    spec = gymnasium.registry.get(name)
    return spec is not None and not str(spec.entry_point).startswith("gymnasium.envs.")


def _wrapper(wrapper: Any) -> dict[str, Any]:
    return {"entry": wrapper} if isinstance(wrapper, str) else dict(wrapper)


def _importable(env: Any) -> str | None:
    """`module:name` of a function or class that a runner can import."""
    if not (inspect.isfunction(env) or inspect.isclass(env)):
        return None
    module, name = env.__module__, env.__qualname__
    return None if module == "__main__" or "<" in name else f"{module}:{name}"


def _pickled(env: EnvName, wrappers: Sequence[Any]) -> str:
    import cloudpickle

    around = [each if callable(each) else _wrapper(each) for each in wrappers]

    def make(**kwargs: Any) -> Any:
        from dsec.runners.construct import wrap_by_name

        if callable(env):
            made = env(**kwargs)
        else:
            made = gymnasium.make(env, disable_env_checker=True, **kwargs)
        for index, wrapper in enumerate(around):
            made = wrapper(made) if callable(wrapper) else wrap_by_name(made, wrapper, index)
        return made

    try:
        data = cloudpickle.dumps(make)
    except Exception as error:
        raise TypeError(
            f"the environment can't be carried to another process: {error}. Give its id or"
            " 'module:function' instead"
        ) from None
    return base64.b64encode(data).decode()
