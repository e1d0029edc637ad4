"""What differs between the configuration that a run began with and the one it is to go on with.

Owns which differences are harmless, because what is recorded doesn't depend on them: agents that go
on must do what they would have done, and a key that could change that has to be allowed by name.
Pure; knows no run directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsec.config.models import Config
from dsec.config.source import KeyPath, Source, dotted, quoted
from dsec.errors import Diagnostic

HARMLESS: Final = (
    ("agents", "*", "deadlines"),
    ("agents", "*", "limits"),
    ("agents", "*", "failover"),
    ("agents", "*", "ipc"),
    ("agents", "*", "snapshot_interval"),
    ("agents", "*", "sync_interval"),
    ("record", "disk_wait_s"),
    ("chaos",),
    ("pool",),
)
"""What decides how long, how safely and at what cost, but not what. `*` stands for any index."""
GROWING: Final = (("run", "steps"), ("run", "episodes"))
"""Harmless where they become more: what has been done is the beginning of that, too."""
FIXED: Final = {("record", "format"): "a recording is of one format"}
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One key with another value than before; None stands for none at all."""

    path: KeyPath
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {shown(self.old)} -> {shown(self.new)}"


def shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    return "(none)" if value is None else quoted(str(value)).strip('"')


def changes(old: Config, new: Config) -> list[Change]:
    """All keys that differ, in the order of the configuration; each as deep inside as possible."""
    return list(_compare((), _plain(old), _plain(new)))


def refusals(found: Iterable[Change], source: Source, allowed: Sequence[str]) -> list[Diagnostic]:
    """What stands against going on with these changes.

    Args:
        source: of the new configuration, for the places.
        allowed: keys that may differ, with all that is below them.
    """
    problems = []
    for change in found:
        if reason := _reason(change, allowed):
            message = f"was {shown(change.old)}, is {shown(change.new)} now: {reason}"
            problems.append(source.diagnostic(change.path, message))
    return problems


def _reason(change: Change, allowed: Sequence[str]) -> str:
    path = change.path
    if path in FIXED:
        return f"{FIXED[path]}, so it can't change where a run is resumed"
    key = dotted(path)
    if any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in allowed):
        return ""
    if any(_within(path, pattern) for pattern in HARMLESS):
        return ""
    if path in GROWING and change.old is not None and change.new is not None:
        if change.new > change.old:
            return ""
        return f"less than the run was to do. To resume it all the same: --allow {key}"
    return (
        f"the agents would not go on as they began. To resume the run all the same: --allow {key}"
    )


def _within(path: KeyPath, pattern: tuple[str, ...]) -> bool:
    return len(path) >= len(pattern) and all(
        part in ("*", where) for part, where in zip(pattern, path, strict=False)
    )


def _plain(config: Config) -> Any:
    plain = config.model_dump()
    plain["record"]["format"] = plain["record"]["format"] or "parquet"  # which is the default
    return plain


def _compare(path: KeyPath, old: Any, new: Any) -> Iterable[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _compare((*path, key), old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        for i in range(max(len(old), len(new))):
            yield from _compare((*path, i), *(x[i] if i < len(x) else _ABSENT for x in (old, new)))
    elif old is _ABSENT or new is _ABSENT or old != new or type(old) is not type(new):
        yield Change(path, *(None if x is _ABSENT else x for x in (old, new)))
