"""Changes to a document from the command line: `--set agents[0].count=4`, `--steps`, `--seed`.

Works on plain values before any model sees them, so an override is checked by the same rules and
reported in the same way as the file, with `--set` in the place of the file's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dsec.config.source import KeyPath, Source, dotted, parse, quoted
from dsec.errors import ConfigError, Diagnostic

_PATH = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\.\d{1,9}(?![\w-])|\[\d{1,9}\])*")
_PART = re.compile(r"\.?([A-Za-z_][\w-]*)|[.\[](\d+)\]?")


@dataclass(frozen=True, slots=True)
class Override:
    """Put `value` at `path`; None takes away what is there. `origin` stands for the file's name."""

    path: KeyPath
    value: Any
    origin: str = "--set"


def parse_override(text: str, origin: str = "--set") -> Override:
    """Parse `a.b[0].c=VALUE`, or the same as `a.b.0.c=VALUE`, where VALUE is YAML.

    Raises:
        ConfigError: no `=`, a path that is none, a value that is no YAML.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        message = f"expected path=value such as run.steps=1000, got {quoted(text)}"
        raise ConfigError([Diagnostic("", message, file=origin)])
    if not _PATH.fullmatch(name):
        message = f"{quoted(name)} is no path such as run.steps or agents[0].env.id"
        raise ConfigError([Diagnostic("", message, file=origin)])
    path: KeyPath = tuple(word if word else int(index) for word, index in _PART.findall(name))
    try:
        source = parse(value, origin)
    except ConfigError as error:
        raise ConfigError(
            [Diagnostic(name, problem.message, file=origin) for problem in error.diagnostics]
        ) from None
    if source.problems:
        raise ConfigError(
            [Diagnostic(name, problem.message, file=origin) for problem in source.problems]
        )
    return Override(path, source.data, origin)


def apply(source: Source, override: Override) -> None:
    """Put an override into the document; what doesn't fit goes to `source.problems`."""
    if source.data is None:
        source.data = {}
    if not isinstance(source.data, dict):
        return  # nothing fits into a file that is no mapping, and that much is said of the file
    holder = source.data
    for depth, part in enumerate(override.path[:-1]):
        here = override.path[: depth + 1]
        if not _fits(source, holder, here, override.origin):
            return
        if isinstance(holder, dict):
            if holder.get(part) is None:
                if override.value is None:
                    return  # nothing there to take away
                holder[part] = {}
                source.marks[here] = source.marks.get(here, source.locate(here))
            holder = holder[part]
        else:
            holder = holder[part]
    if not _fits(source, holder, override.path, override.origin):
        return
    holder[override.path[-1]] = override.value
    source.replace(override.path, override.origin)


def _fits(source: Source, holder: Any, path: KeyPath, origin: str) -> bool:
    part, outer = path[-1], dotted(path[:-1])
    if isinstance(holder, dict) and isinstance(part, str):
        return True
    if isinstance(holder, list) and isinstance(part, int):
        if part < len(holder):
            return True
        there = f"{outer} has indexes 0 to {len(holder) - 1}" if holder else f"{outer} is empty"
        message = f"no such entry; {there}"
    elif isinstance(holder, dict):
        message = f"{outer or 'the document'} is a mapping and takes names, not an index"
    elif isinstance(holder, list):
        message = f"{outer} is a list and takes an index, as in {outer}[0]"
    else:
        message = f"{outer or 'the document'} is a plain value, with nothing inside it"
    source.problems.append(Diagnostic(dotted(path), message, file=origin))
    return False
