"""Planted bugs: each is a small patch at run time, which the harness must find.

A mutant is a context in which something is wrong. Those of the kernel and its plan are in kernel.py
and plan.py, those of what runs beneath it in world.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

Mutant = Callable[[], AbstractContextManager[Any]]
MUTANTS: dict[str, Mutant] = {}


def mutant(call: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
    """Register a mutant under the name of its function."""
    MUTANTS[call.__name__] = contextmanager(call)
    return call


def instead(where: Any, name: str, made: Callable[..., Any]) -> Any:
    """Patch a function by one that gets the original first."""
    original = getattr(where, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return made(original, *args, **kwargs)

    return mock.patch.object(where, name, replacement)


def nothing(where: Any, name: str, answer: Any = None) -> Any:
    """Patch a function by one that does nothing."""
    return mock.patch.object(where, name, lambda *args, **kwargs: answer)


@contextmanager
def cell(table: Mapping[Any, Any], state: Any, event: Any, outcome: Any) -> Iterator[None]:
    """Change one cell of a table."""
    before = table[state][event]
    table[state][event] = outcome
    try:
        yield
    finally:
        table[state][event] = before
