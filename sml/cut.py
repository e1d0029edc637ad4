"""The consistent cut: which boundary all roles of an agent have kept their state at. Pure.

Each role keeps sections, at the same boundaries but in its own time; it may die, be replaced, and
keep a section once more. A cut is one section of each role, all of the same boundary. It never goes
back, the first section of a role at a boundary is the one that counts, and what a missing role
would complete is waited for only as long as it can come.

This file knows no memory and no process: what is somewhere is told by its boundaries, and fetched
when a cut needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Generic, TypeVar

HELD_MAX = 16
"""Sections of a role that are held until the other roles come to their boundary."""

Section = TypeVar("Section")


class Cuts(Generic[Section]):
    """The cuts of one agent, one after the other.

    Args:
        roles: those that give sections.
        last: the boundary of the latest cut there is already; -1 before the first.
    """

    def __init__(self, roles: Iterable[int], last: int = -1) -> None:
        self.roles = frozenset(roles)
        self.last = last
        self._held: dict[int, dict[int, Section]] = {role: {} for role in self.roles}

    def hold(self, role: int, seq: int, section: Section) -> None:
        """Keep a section whose place is about to be given up. Late and doubled ones are nothing."""
        if role in self.roles and seq > self.last:
            held = self._held[role]
            held.setdefault(seq, section)
            if len(held) > HELD_MAX:
                del held[min(held)]

    def next(
        self, seen: Mapping[int, Set[int]], fetch: Callable[[int, int], Section | None]
    ) -> tuple[int, dict[int, Section]] | None:
        """The newest cut beyond the last one, which it then is; None if there is none.

        Args:
            seen: by role, the boundaries of which there is a section somewhere.
            fetch: gets the section of a role at a boundary; None if it is not there any more.
        """
        if not self.roles:
            return None
        found = [seen.get(role, set()) | self._held[role].keys() for role in self.roles]
        for seq in sorted(frozenset.intersection(*map(frozenset, found)), reverse=True):
            if seq <= self.last:
                return None
            cut = self._at(seq, fetch)
            if cut is not None:
                self.last = seq
                for held in self._held.values():
                    for old in [each for each in held if each <= seq]:
                        del held[old]
                return seq, cut
        return None

    def _at(
        self, seq: int, fetch: Callable[[int, int], Section | None]
    ) -> dict[int, Section] | None:
        cut = {}
        for role in sorted(self.roles):
            held = self._held[role].get(seq)
            section = held if held is not None else fetch(role, seq)
            if section is None:
                return None
            cut[role] = section
        return cut
