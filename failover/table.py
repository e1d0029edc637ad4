"""State tables: written as text that a person can check, read as a mapping of every cell.

A row says `EVENT > STATE action action, ...`; `EVENT|EVENT` are alike, `=` is the state itself.
What a row doesn't list changes nothing, for it is late or said twice. This file knows no machine in
particular.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)
Table = Mapping[S, Mapping[E, tuple[S, tuple[str, ...]]]]


def table(rows: Mapping[str, str], states: type[S], events: type[E]) -> Table[S, E]:
    """Every cell of a table: those that `rows` lists, and for the rest the state itself."""
    table: dict[S, dict[E, tuple[S, tuple[str, ...]]]] = {}
    for state in states:
        cells: dict[E, tuple[S, tuple[str, ...]]] = dict.fromkeys(events, (state, ()))
        for entry in filter(None, map(str.strip, rows[state.name].split(","))):
            names, _, outcome = entry.partition(" > ")
            target, *actions = outcome.split()
            for name in names.split("|"):
                to = state if target == "=" else states[target]
                cells[events[name]] = (to, tuple(actions))
        table[state] = cells
    return table


def diagram(table: Table[S, E]) -> str:
    """The table as a Mermaid state diagram; docs/ARCHITECTURE.md holds what this returns."""
    lines = ["stateDiagram-v2"]
    for state, row in table.items():
        arrows: dict[S, list[str]] = {}
        for event, (target, actions) in row.items():
            if target is not state or actions:
                arrows.setdefault(target, []).append(event.name)
        lines += [f"    {state.name} --> {to.name}: {', '.join(e)}" for to, e in arrows.items()]
    return "\n".join(lines) + "\n"
