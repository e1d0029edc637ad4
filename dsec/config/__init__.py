"""dsec.config: from a YAML file and overrides to a checked `Config`, or to all of its mistakes.

Nothing here imports user code, numpy or Gymnasium: whether an environment or a class exists, only a
child process can tell, and `Loaded.diagnostic` puts the file's line in front of what it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec.config.changes import Change, changes, refusals
from dsec.config.check import agent_names, check
from dsec.config.models import Agent, Chaos, Config, Fault
from dsec.config.overrides import Override, apply, parse_override
from dsec.config.source import KeyPath, Source, dotted, parse, read_file, render
from dsec.errors import ConfigError, Diagnostic

__all__ = [
    "Agent",
    "Change",
    "Chaos",
    "Config",
    "Fault",
    "KeyPath",
    "Loaded",
    "Override",
    "agent_names",
    "changes",
    "dotted",
    "dump",
    "json_schema",
    "load",
    "loads",
    "parse_override",
    "refusals",
]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A sound configuration and where each of its values came from."""

    config: Config
    source: Source

    def diagnostic(self, path: KeyPath, message: str, detail: str = "") -> Diagnostic:
        """A Diagnostic about the value at `path`, found out later than at loading."""
        return self.source.diagnostic(path, message, detail)


def load(path: Path | str, overrides: Iterable[Override] = ()) -> Loaded:
    """Read, override and check a configuration file.

    Raises:
        ConfigError: with every mistake found, each with file, line, column and path.
    """
    source = read_file(Path(path))
    for override in overrides:
        apply(source, override)
    return _checked(source)


def loads(text: str, file: str) -> Loaded:
    """As `load`, of a text that is to be this file.

    Raises:
        ConfigError: with every mistake found.
    """
    return _checked(parse(text, file))


def _checked(source: Source) -> Loaded:
    config, problems = check(source)
    if config is None:
        raise ConfigError(problems)
    return Loaded(config, source)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration file, for editors."""
    schema = Config.model_json_schema()
    _for_editors(schema)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, "title": "dsec-kernel configuration", **schema}


def _for_editors(node: Any) -> None:
    """Drop the titles, which repeat the keys, and let 200_000 be a number: editors read YAML 1.2,
    where it is text."""
    if isinstance(node, list):
        for item in node:
            _for_editors(item)
    elif isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        if node.get("type") == "integer":
            node["type"] = ["integer", "string"]
            node["pattern"] = "^[0-9][0-9_]*$"
        for item in node.values():
            _for_editors(item)


def dump(config: Config) -> str:
    """The configuration as YAML, defaults filled in; loading it again gives the same one."""
    return render(config.model_dump(exclude_none=True))
