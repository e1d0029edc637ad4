"""Which of a run's failures are mistakes in the configuration, and on which line. Pure.

Whether an environment, a module or a class exists can only be found out where user code may be
imported: in child processes. What they say comes back in the kernel's report, and here it becomes
what the reader of a configuration expects: file, line, column, key, message, and the traceback
once, however many agents met the same fault.
"""

from __future__ import annotations

import re

from dsec.config import KeyPath, Loaded
from dsec.engine.images import where_module
from dsec.errors import Diagnostic
from dsec.ipc.frames import ErrorInfo, Phase
from dsec.report import Death, RunReport

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def config_problems(loaded: Loaded, report: RunReport, *, dry: bool) -> list[Diagnostic]:
    """The mistakes in the configuration that this run brought to light, in file order.

    A name that leads nowhere and a module that can't be imported always are mistakes. An object
    that can't be constructed is one in a dry run, and in a real one if no agent of its entry got as
    far as a step: where it worked for others, it is that agent's death.

    Args:
        loaded: the configuration.
        report: how the run ended.
        dry: whether it was a dry run.
    """
    found: list[Diagnostic] = []
    if report.failure_kind == "config":
        found.append(_of_failure(loaded, report))
    for death in report.deaths:
        open_yet = may_be_a_mistake(death, dry=dry) and not group_began(report, death)
        if always_a_mistake(death) or open_yet:
            group = report.agents[death.agent].group if death.agent in report.agents else ""
            found.append(_of_death(loaded, group, death))
            for other in death.error.others if death.error is not None else ():
                path = (*_group_path(loaded, group), *parts(other.where))
                found.append(_diagnostic(loaded, path, other))
    unique: dict[tuple[str, str], Diagnostic] = {}
    for problem in found:
        known = unique.setdefault((problem.path, problem.message), problem)
        if problem.detail and not known.detail:
            unique[problem.path, problem.message] = problem
    return sorted(unique.values(), key=lambda p: (p.line == 0, p.line, p.column))


def always_a_mistake(death: Death) -> bool:
    """Whether the death shows a mistake in the configuration, whatever else happened."""
    if death.short_of_memory:
        return False
    return death.kind == "import" or (death.error is not None and death.error.lookup)


def may_be_a_mistake(death: Death, *, dry: bool) -> bool:
    """Whether the death shows one unless an agent of the same entry steps."""
    if death.phase not in (Phase.IDLE, Phase.IMPORT, Phase.CONSTRUCT):
        return False
    if death.kind == "spawn" or death.short_of_memory:
        return False
    return dry or (death.error is not None and bool(death.error.where))


def group_began(report: RunReport, death: Death) -> bool:
    """Whether an agent of the same entry as the dead one has stepped."""
    dead = report.agents.get(death.agent)
    return dead is None or any(
        agent.steps and agent.group == dead.group for agent in report.agents.values()
    )


def _of_failure(loaded: Loaded, report: RunReport) -> Diagnostic:
    error = report.failure_error
    group = _group_path(loaded, report.failure_group)
    if error is None:
        return loaded.diagnostic(group, report.failure)
    if not error.where:
        path = _image_path(loaded, report.failure) or group
        return _diagnostic(loaded, path, error, "can't be imported: ")
    return _diagnostic(loaded, (*group, *parts(error.where)), error)


def _of_death(loaded: Loaded, group: str, death: Death) -> Diagnostic:
    path = _group_path(loaded, group)
    if death.kind == "import":
        path = _image_path(loaded, death.cause) or path
        if death.error is None:
            return loaded.diagnostic(path, f"can't be imported: {death.cause}", death.stderr_tail)
        return _diagnostic(loaded, path, death.error, "can't be imported: ")
    if death.error is None:
        role: KeyPath = (death.role.name.lower(),)
        return loaded.diagnostic((*path, *role), death.cause, death.stderr_tail)
    return _diagnostic(loaded, (*path, *parts(death.error.where)), death.error)


def _diagnostic(
    loaded: Loaded, path: KeyPath, error: ErrorInfo, said: str = "can't be constructed: "
) -> Diagnostic:
    if error.lookup:
        return loaded.diagnostic(path, error.message)
    if said.startswith("can't be constructed"):
        if not error.traceback:
            return loaded.diagnostic(path, error.message)  # our own words, not an exception's
        said += f"{error.type}: "
    # An exception without a message leaves the colon in front of nothing.
    said = (said + error.message).removesuffix(": ")
    return loaded.diagnostic(path, said, error.traceback.strip("\n"))


def _image_path(loaded: Loaded, failure: str) -> KeyPath | None:
    """The key that asked for the module which a runtime image could not import.

    An image is named after the modules that it was made for.
    """
    imported = re.search(r"\bimport of ([\w.]+)", failure)
    image = re.search(r"\bimage ([\w.+]+)", failure)
    for module in [
        *(imported.groups() if imported else ()),
        *(image[1].split("+") if image else ()),
    ]:
        path = where_module(loaded.config, module)
        if path is not None:
            return path
    return None


def _group_path(loaded: Loaded, group: str) -> KeyPath:
    for index, agent in enumerate(loaded.config.agents):
        if agent.name == group:
            return ("agents", index)
    return ()


def parts(where: str) -> KeyPath:
    """`env.wrappers[0].entry` as a path."""
    return tuple(int(index) if index else name for index, name in _PART.findall(where))
