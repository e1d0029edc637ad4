"""The rules for planned faults that need more than one key: which phases a role has, and whether
there is such an agent. As check.py, this reads raw values, to speak also where something else in
the document is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from dsec.config.source import KeyPath, Source, quoted
from dsec.errors import Diagnostic

PHASES = {"env": ("reset", "step"), "policy": ("act", "learn"), "reward": ("reward",)}
"""By role, the calls of user code in which a fault can be planned."""


def check_faults(source: Source, entries: Sequence[tuple[str, int]]) -> Iterator[Diagnostic]:
    """What is wrong with `chaos.faults`.

    Args:
        entries: names and numbers of the agents; an entry with `count` counts from 000.
    """
    chaos = source.data.get("chaos")
    faults = chaos.get("faults") if isinstance(chaos, dict) else None
    if not isinstance(faults, list):
        return
    counted = _counted(source)
    known = dict(entries)
    for index, fault in enumerate(faults):
        if isinstance(fault, dict):
            path: KeyPath = ("chaos", "faults", index)
            yield from _check_phase(source, fault, path)
            name = fault.get("agent")
            if isinstance(name, str) and not _is_agent(name, known, counted):
                yield source.diagnostic((*path, "agent"), _unknown(name, known, counted))


def _check_phase(source: Source, fault: dict[str, Any], path: KeyPath) -> Iterator[Diagnostic]:
    role, phase = fault.get("role"), fault.get("phase")
    phases = PHASES.get(role) if isinstance(role, str) else None
    known = {each for names in PHASES.values() for each in names}
    if phases is not None and phase in known and phase not in phases:
        those = " or ".join(phases)
        yield source.diagnostic((*path, "phase"), f"a runner of role {role} has {those}")
    if phase == "reset" and fault.get("instant") == "after":
        yield source.diagnostic((*path, "instant"), "a reset has only before")


def _counted(source: Source) -> set[str]:
    """Entries whose agents have numbers."""
    agents = source.data.get("agents") or ()
    return {a["name"] for a in agents if isinstance(a, dict) and a.get("count") is not None}


def _is_agent(name: str, known: dict[str, int], counted: set[str]) -> bool:
    if name in known and name not in counted:
        return True
    entry, dash, number = name.rpartition("-")
    if not dash or entry not in counted or not number.isdecimal():
        return False
    return int(number) < known.get(entry, 0) and number == f"{int(number):03d}"


def _unknown(name: str, known: dict[str, int], counted: set[str]) -> str:
    names = [f"{each}-000" if each in counted else each for each in known]
    close = get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    if name in counted:
        hint = f" (they have numbers: {name}-000 to {name}-{known[name] - 1:03d})"
    return f"no agent is called {quoted(name)}{hint}"
