"""From a name in the config to the object it names, with the best possible answer if there is none.

This file imports modules and reads attributes; it constructs nothing (see construct.py) and knows
no Gymnasium. Zygotes use it too, so it needs the standard library only.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from dsec.runners.failure import UserCodeError, describe

# What the project's extras install, and who forgot one is told which.
_EXTRAS = {
    **dict.fromkeys(("ale_py", "Box2D", "cv2", "minigrid", "mujoco", "pygame"), "envs"),
    "pettingzoo": "multi",
    "stable_baselines3": "sb3",
    "torch": "torch",
}
_NEAR = 0.75  # of modules there are hundreds, and by chance one always is a little alike


def did_you_mean(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    """` (did you mean X?)` for the candidate nearest to `word`, or nothing if none is near."""
    near = difflib.get_close_matches(word, sorted(set(candidates)), n=1, cutoff=cutoff)
    return f" (did you mean {near[0]}?)" if near else ""


def import_module(name: str, where: str) -> ModuleType:
    """Import `name`.

    Raises:
        UserCodeError: with `lookup` if there is no such module; without, and with the cause's
            traceback, if it is there and raises while it is imported.
    """
    if not name or any(not part.isidentifier() for part in name.split(".")):
        raise UserCodeError(_not_a_module(name), where=where, lookup=True)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserCodeError(_no_module(name, error.name), where=where, lookup=True) from None
        raise UserCodeError(f'module "{name}" needs {error.name}: {error}', where=where) from error
    except SystemExit as error:
        message = f'module "{name}" called sys.exit({error.code!r}) while it was imported'
        raise UserCodeError(message, where=where) from error
    except Exception as error:
        said = describe(error)
        message = f'module "{name}" raised {said.type} while it was imported: {said.message}'
        raise UserCodeError(message, where=where) from error


def resolve(entry: str, where: str) -> Any:
    """The object that `entry` names, as `module:Attr` or `module:Outer.inner`.

    Raises:
        UserCodeError: nothing there; `lookup` as in `import_module`.
    """
    name, colon, path = entry.partition(":")
    if not colon or not name or not path:
        head, _, tail = entry.rpartition(".")
        hint = f' (did you mean "{head}:{tail}"?)' if head and tail and not colon else ""
        raise UserCodeError(
            f'"{entry}" is not of the form module:name{hint}', where=where, lookup=True
        )
    value: Any = import_module(name, where)
    seen = f'module "{name}"'
    for attribute in path.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            hint = did_you_mean(attribute, (n for n in dir(value) if not n.startswith("__")))
            message = f'{seen} has no "{attribute}"{hint}'
            raise UserCodeError(message, where=where, lookup=True) from None
        seen = f'"{name}:{attribute}"'
    return value


def _not_a_module(name: str) -> str:
    if name.endswith(".py"):
        module = name[:-3].strip("./").replace("/", ".")
        return f'"{name}" is a file; a module is named without .py (did you mean {module}?)'
    return f'"{name}" is no module name'


def _no_module(name: str, missing: str) -> str:
    """The words for a module that isn't there; `missing` is the part of `name` that failed."""
    parent, _, last = missing.rpartition(".")
    if not parent:
        importable = {module.name for module in pkgutil.iter_modules()}
        hint = did_you_mean(missing, importable | set(sys.builtin_module_names), _NEAR)
        place = "installed, in the working directory or on PYTHONPATH"
        extra = f': pip install "dsec-kernel[{_EXTRAS[missing]}]"' if missing in _EXTRAS else ""
        return f'no module "{missing}"{hint}; it must be {place}{extra}'
    package = sys.modules.get(parent)
    inside = [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))]
    near = difflib.get_close_matches(last, inside, n=1)
    hint = f" (did you mean {parent}.{near[0]}?)" if near else ""
    return f'no module "{missing}"{hint}'
