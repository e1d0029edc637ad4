"""Which of a run's failures are mistakes in the configuration, and on which line. Pure.

Whether an environment, a module or a class exists can only be found out where user code may be
imported: in child processes. What they say comes back in the kernel's report, and here it becomes
what the reader of a configuration expects: file, line, column, key, message, and the traceback
once, however many agents met the same fault.
"""

from __future__ import annotations

import re

from dsec.config import KeyPath, Loaded
from dsec.engine.plan import where_module
from dsec.errors import Diagnostic
from dsec.ipc.frames import ErrorInfo, Phase
from dsec.kernel.report import Death, RunReport

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_EARLY = (Phase.IDLE, Phase.IMPORT, Phase.CONSTRUCT)


def config_problems(loaded: Loaded, report: RunReport, *, dry: bool) -> list[Diagnostic]:
    """The mistakes in the configuration that this run brought to light, in file order.

    A name that leads nowhere always is one. An object that can't be constructed is one in a dry
    run, and in a real one if no agent got as far as a step: it may well have worked for others,
    or once, and then it is that agent's death.

    Args:
        loaded: the configuration.
        report: how the run ended.
        dry: whether it was a dry run.
    """
    found: list[Diagnostic] = []
    if report.failure_kind == "config":
        found.append(_of_failure(loaded, report))
    never_began = dry or all(agent.steps == 0 for agent in report.agents.values())
    groups = {agent.name: agent.group for agent in report.agents.values()}
    for death in report.deaths:
        if death.kind == "peer":
            continue
        error = death.error
        lookup = error is not None and error.lookup
        in_constructor = death.phase in _EARLY and (dry or bool(error and error.where))
        if lookup or (never_began and in_constructor):
            found.append(_of_death(loaded, groups.get(death.agent, ""), death))
    unique: dict[tuple[str, str], Diagnostic] = {}
    for problem in found:
        unique.setdefault((problem.path, problem.message), problem)
    return sorted(unique.values(), key=lambda p: (p.line == 0, p.line, p.column))


def _of_failure(loaded: Loaded, report: RunReport) -> Diagnostic:
    error = report.failure_error
    path = _group_path(loaded, report.failure_group)
    if error is None:
        return loaded.diagnostic(_image_path(loaded, report.failure) or path, report.failure)
    if not error.where:
        path = _image_path(loaded, report.failure) or path
    return _diagnostic(loaded, (*path, *parts(error.where)), error)


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


def _of_death(loaded: Loaded, group: str, death: Death) -> Diagnostic:
    path = _group_path(loaded, group)
    if death.error is None:
        role: KeyPath = (death.role.name.lower(),)
        tail = death.stderr_tail
        return loaded.diagnostic((*path, *role), death.cause, tail)
    return _diagnostic(loaded, (*path, *parts(death.error.where)), death.error)


def _diagnostic(loaded: Loaded, path: KeyPath, error: ErrorInfo) -> Diagnostic:
    if error.lookup:
        return loaded.diagnostic(path, error.message)
    message = f"can't be constructed: {error.type}: {error.message}"
    return loaded.diagnostic(path, message.strip().rstrip(":"), error.traceback.strip("\n"))


def _group_path(loaded: Loaded, group: str) -> KeyPath:
    for index, agent in enumerate(loaded.config.agents):
        if agent.name == group:
            return ("agents", index)
    return ()


def parts(where: str) -> KeyPath:
    """`env.wrappers[0].entry` as a path."""
    return tuple(int(index) if index else name for index, name in _PART.findall(where))
