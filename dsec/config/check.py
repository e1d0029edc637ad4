"""What is wrong with a document: pydantic's findings in plain words, and the rules across keys.

The cross-key rules read the raw values and not the models, because they have to speak also where
something else in the document is wrong: a reader wants every mistake in one go.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dsec.config.faults import check_faults
from dsec.config.hosts import check_hosts
from dsec.config.kinds import AGENTS_MAX
from dsec.config.limits import Isolation
from dsec.config.models import ORCHESTRATOR, Config, Fault, Objective
from dsec.config.source import KeyPath, Source, dotted, quoted
from dsec.errors import Diagnostic


def check(source: Source) -> tuple[Config | None, list[Diagnostic]]:
    """Validate a document: the Config if it is sound, and every fault found, in file order."""
    problems = list(source.problems)
    config: Config | None = None
    if source.data is None:
        example = "run: {steps: 1000}, agents: [{name: a, env: {id: CartPole-v1}, policy: {…}}]"
        problems.append(source.diagnostic((), f"empty; a run needs at least {example}"))
    elif not isinstance(source.data, dict):
        problems.append(
            source.diagnostic((), f"expected keys run, agents and so on, got {shown(source.data)}")
        )
    else:
        try:
            config = Config.model_validate(source.data)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                problems.append(_translate(source, details))
        problems.extend(_across(source))
    if problems:
        config = None
    unique = {(p.path, p.message, p.line, p.column): p for p in problems}
    ordered = sorted(unique.values(), key=lambda p: (p.line == 0, p.line, p.column))
    return config, ordered


def shown(value: object) -> str:
    """A value in the words of somebody who writes YAML; long ones cut short."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text {quoted(value)}"
    if isinstance(value, int):
        return f"{value}" if abs(value) < 10**20 else "a number of more than 20 digits"
    if isinstance(value, float):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(
            value, ".nan" if value != value else f"{value}"
        )
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a mapping"


# ---------------------------------------------------------------- pydantic's findings


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list (lines that begin with `- `)",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def _translate(source: Source, details: ErrorDetails) -> Diagnostic:
    path: KeyPath = tuple(details["loc"])
    kind, value = details["type"], details["input"]
    if path[-1:] == ("[key]",) and path[-3:-2] == ("kwargs",):
        return source.diagnostic(path[:-1], "a keyword has to be text, not a number")
    if kind == "extra_forbidden" or path[-1:] == ("[key]",):
        path = path[:-1] if path[-1] == "[key]" else path
        return source.diagnostic(path, _unknown(path))
    if kind == "missing":
        return source.diagnostic(path, f"missing{_example(path)}")
    if kind == "dsec":
        return source.diagnostic(path, f"{details['msg']}, got {shown(value)}")
    if kind in _EXPECTED:
        model = _model_at(path)
        expected = _EXPECTED[kind]
        if kind == "model_type" and model is not None:
            expected += f" with {_listed(list(model.model_fields))}"
        return source.diagnostic(
            path, f"expected {expected}, got {shown(value)}{_hint(kind, value)}"
        )
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        bound = details["ctx"][name]
        limit = f"{bound:,}" if abs(bound) >= 10_000 else f"{bound:g}"
        return source.diagnostic(path, f"must be {words} {limit}, got {shown(value)}")
    if kind == "literal_error":
        return source.diagnostic(path, _choice(path, value))
    if kind == "too_short":
        return source.diagnostic(path, "empty; at least one is needed")
    return source.diagnostic(path, f"{details['msg']}, got {shown(value)}")


def _hint(kind: str, value: object) -> str:
    if isinstance(value, str):
        if (
            kind in ("int_type", "float_type")
            and value.strip().replace("_", "").lstrip("+-").isdigit()
        ):
            return " (remove the quotes)"
        if kind == "bool_type" and value.lower() in ("yes", "on", "y"):
            return " (write true)"
        if kind == "bool_type" and value.lower() in ("no", "off", "n"):
            return " (write false)"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return " (put it in quotes)"
    if kind == "list_type" and isinstance(value, dict):
        return " (put `- ` in front of its first key)"
    return ""


def _choice(path: KeyPath, value: object) -> str:
    options = list(_literals(path))
    names = [str(option) for option in options]
    message = f"expected {_listed(names, 'or')}, got {shown(value)}"
    close = get_close_matches(str(value), names, n=1)
    return f"{message} (did you mean {close[0]}?)" if close else message


def _listed(names: list[str], last: str = "and") -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


# ---------------------------------------------------------------- unknown and missing keys


def _unknown(path: KeyPath) -> str:
    key = path[-1]
    model = _model_at(path[:-1])
    names = list(model.model_fields) if model is not None else []
    if isinstance(key, str):
        close = get_close_matches(key, names, n=1)
        if close:
            return f"unknown key (did you mean {close[0]}?)"
        homes = [home for home in _homes().get(key, []) if home]
        if homes:
            return f"unknown key here (did you mean {_listed(homes, 'or')}?)"
    return f"unknown key (known here: {', '.join(names)})"


def _example(path: KeyPath) -> str:
    model = _model_at(path[:-1])
    info = model.model_fields.get(str(path[-1])) if model is not None else None
    if info is None or not info.examples:
        return ""
    return f"; for example {path[-1]}: {info.examples[0]}"


def _types(annotation: object) -> Iterator[object]:
    """The annotation taken apart: X of `X | None`, of `list[X]` and of `Annotated[X, …]`."""
    arguments = typing.get_args(annotation)
    if not arguments or typing.get_origin(annotation) is typing.Literal:
        yield annotation
        return
    for argument in arguments:
        yield from _types(argument)


def _annotation(path: KeyPath) -> object:
    annotation: object = Config
    free = False  # the next part is a name of the user's own
    for part in path:
        if isinstance(part, int):
            continue
        if free:
            free = False
            continue
        models = [t for t in _types(annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
        if not models or part not in models[0].model_fields:
            return None
        annotation = models[0].model_fields[part].annotation
        free = annotation == dict[str, Objective] | None
    return annotation


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    for kind in _types(_annotation(path)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _literals(path: KeyPath) -> Iterator[object]:
    for kind in _types(_annotation(path)):
        if typing.get_origin(kind) is typing.Literal:
            yield from typing.get_args(kind)


@functools.cache
def _homes() -> dict[str, list[str]]:
    """Where each key of the configuration lives, by its last name."""
    homes: dict[str, list[str]] = {}

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            here = f"{prefix}.{name}" if prefix else name
            homes.setdefault(name, []).append(here)
            listed = typing.get_origin(info.annotation) is list
            for kind in _types(info.annotation):
                # What belongs to a planned fault, which programs write, nobody means elsewhere.
                if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Fault:
                    walk(kind, here + "[]" if listed else here)

    walk(Config, "")
    return homes


# ---------------------------------------------------------------- rules across keys


def _across(source: Source) -> Iterator[Diagnostic]:
    run, agents = source.data.get("run"), source.data.get("agents")
    if isinstance(run, dict):
        yield from _check_amount(source, run)
    yield from check_hosts(source)
    if not isinstance(agents, list):
        return
    for index, agent in enumerate(agents):
        if isinstance(agent, dict):
            yield from _check_env(source, agent, ("agents", index, "env"))
            yield from _check_kwargs(source, agent, ("agents", index))
            yield from _check_reward(source, agent, ("agents", index, "reward"))
            yield from _check_failover(source, agent, ("agents", index, "failover", "standby"))
            yield from _check_intervals(source, agent, ("agents", index))
            yield from _check_isolation(source, agent, ("agents", index, "isolation"))
    total = sum(count for _, count in _named(agents))
    if total > AGENTS_MAX:
        if all(count <= AGENTS_MAX for _, count in _named(agents)):
            yield source.diagnostic(("agents",), f"{total:,} agents in all; at most {AGENTS_MAX:,}")
        return
    yield from _check_names(source, agents)
    yield from check_faults(source, _named(agents))
    if isinstance(run, dict) and len(_named(agents)) == len(agents):
        for key in ("steps", "episodes"):
            amount = run.get(key)
            if _is_whole(amount) and 1 <= amount < total:
                yield source.diagnostic(
                    ("run", key), f"{amount} {key} can't be shared out among {total:,} agents"
                )


def _check_amount(source: Source, run: dict[str, Any]) -> Iterator[Diagnostic]:
    given = [key for key in ("steps", "episodes") if run.get(key) is not None]
    if len(given) == 2:
        yield source.diagnostic(("run", "episodes"), "give either steps or episodes, not both")
    if not given:
        yield source.diagnostic(
            ("run", "steps"), "missing: give steps or episodes, as in steps: 200_000"
        )


def _check_env(source: Source, agent: dict[str, Any], path: KeyPath) -> Iterator[Diagnostic]:
    env = agent.get("env")
    if not isinstance(env, dict):
        return
    given = [key for key in ("id", "entry") if env.get(key) is not None]
    if len(given) == 2:
        yield source.diagnostic((*path, "entry"), "give either id or entry, not both")
    if not given:
        yield source.diagnostic(
            (*path, "id"), "missing: give id (CartPole-v1) or entry (my_package.envs:make)"
        )


def _check_reward(source: Source, agent: dict[str, Any], path: KeyPath) -> Iterator[Diagnostic]:
    """Objectives are weighed by one class, and their weights are shares of one reward."""
    reward = agent.get("reward")
    if not isinstance(reward, dict) or not isinstance(reward.get("objectives"), dict):
        return
    entry, kwargs = reward.get("entry"), reward.get("kwargs")
    if entry is not None and entry != ORCHESTRATOR:
        yield source.diagnostic(
            (*path, "entry"), f"give either entry or objectives: those are for {ORCHESTRATOR}"
        )
    if isinstance(kwargs, dict) and "objectives" in kwargs:
        yield source.diagnostic((*path, "kwargs", "objectives"), "they are beside kwargs already")
    weights = [
        each.get("weight") for each in reward["objectives"].values() if isinstance(each, dict)
    ]
    if not weights and not reward["objectives"]:
        yield source.diagnostic((*path, "objectives"), "empty; at least one is needed")
    numbers = [w for w in weights if isinstance(w, int | float) and not isinstance(w, bool)]
    if numbers and len(numbers) == len(reward["objectives"]) and all(0 < w <= 1 for w in numbers):
        total = math.fsum(numbers)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            yield source.diagnostic(
                (*path, "objectives"), f"the weights add up to {total:.6g}, not to 1"
            )


def _check_failover(source: Source, agent: dict[str, Any], path: KeyPath) -> Iterator[Diagnostic]:
    failover, env = agent.get("failover"), agent.get("env")
    if not isinstance(failover, dict) or not isinstance(env, dict):
        return
    restarts = failover.get("restarts")
    never = isinstance(restarts, dict) and restarts.get("max") == 0
    if failover.get("recycle_every") and (never or failover.get("standby") == "none"):
        yield source.diagnostic(
            (*path[:-1], "recycle_every"),
            "a runner is replaced exactly only where its state is kept: not with "
            + ("restarts.max: 0" if never else "standby: none"),
        )
    cached = failover.get("cached_steps")
    if _is_whole(cached) and cached > 0:
        yield source.diagnostic(
            (*path[:-1], "cached_steps"),
            f"{cached} has no effect in a run: what a policy does while there is no environment "
            "could be neither executed nor recorded. Use 0, or step an AgentSandbox by yourself",
        )
    width = env.get("num_envs", 1)
    if failover.get("standby") == "replay" and _is_whole(width) and width > 1:
        yield source.diagnostic(
            path,
            f"replay does one environment's episodes again, and num_envs is {width}: those of a "
            "vector begin at different steps. Use auto, or more agents with num_envs: 1",
        )


def _check_intervals(source: Source, agent: dict[str, Any], path: KeyPath) -> Iterator[Diagnostic]:
    """Atoms need a pool, and one snapshot lies at every so many boundaries."""
    snapshot, sync = agent.get("snapshot_interval", 50), agent.get("sync_interval")
    if sync is not None and source.data.get("pool") is None:
        yield source.diagnostic(
            (*path, "sync_interval"),
            "there are no atoms without a pool: add `pool: {size_mb: 256}`",
        )
    if _is_whole(snapshot) and _is_whole(sync) and sync > 0 and snapshot % sync:
        yield source.diagnostic(
            (*path, "sync_interval"),
            f"a snapshot lies at each {snapshot:,} steps (snapshot_interval), which is no multiple "
            f"of {sync:,}",
        )


def _check_isolation(source: Source, agent: dict[str, Any], path: KeyPath) -> Iterator[Diagnostic]:
    """Only the strict profile has anything to set."""
    isolation = agent.get("isolation")
    if not isinstance(isolation, dict) or isolation.get("profile") == "strict":
        return
    for key in isolation.keys() & Isolation.model_fields.keys() - {"profile"}:
        if isolation[key] not in (None, Isolation.model_fields[key].default):
            yield source.diagnostic((*path, key), "has an effect only with profile: strict")


def _check_kwargs(source: Source, value: Any, path: KeyPath) -> Iterator[Diagnostic]:
    """Keywords travel to the runner as msgpack, which ends at 64 bits."""
    inside = "kwargs" in path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _check_kwargs(source, item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_kwargs(source, item, (*path, index))
    elif inside and _is_whole(value) and not -(2**63) <= value < 2**64:
        yield source.diagnostic(
            path, "whole numbers here have at most 64 bits; use text or a float"
        )


def _is_whole(value: object) -> typing.TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _named(agents: list[Any]) -> list[tuple[str, int]]:
    """Name and number of the entries that have a usable name and count."""
    result = []
    for agent in agents:
        if not isinstance(agent, dict) or not isinstance(agent.get("name"), str):
            continue
        count = agent.get("count")
        if isinstance(count, float) and count.is_integer():
            count = int(count)
        if count is None or (_is_whole(count) and count >= 1):
            result.append((agent["name"], 1 if count is None else count))
    return result


def agent_names(name: str, count: int | None) -> list[str]:
    """The names of the agents of one entry: `a`, or with a count `a-000`, `a-001` and so on.

    The number has three digits, and more where it needs more, so that raising the count changes
    nobody's name and hence nobody's seed.
    """
    if count is None:
        return [name]
    return [f"{name}-{number:03d}" for number in range(count)]


def _check_names(source: Source, agents: list[Any]) -> Iterator[Diagnostic]:
    entries: dict[str, int] = {}
    owners: dict[str, int] = {}
    for index, agent in enumerate(agents):
        named = _named([agent])
        if not named:
            continue
        name, count = named[0]
        path: KeyPath = ("agents", index, "name")
        if name in entries:
            yield source.diagnostic(
                path, f"{quoted(name)} is already the name of agents[{entries[name]}]"
            )
            continue
        entries[name] = index
        for full in agent_names(name, None if agent.get("count") is None else count):
            if full in owners:
                other = owners[full]
                yield source.diagnostic(
                    path,
                    f"an agent {quoted(full)} comes from agents[{other}] already "
                    f"({dotted(('agents', other, 'count'))})",
                )
                break
            owners[full] = index
