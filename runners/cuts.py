"""A role's part of its agent's atoms: its state at each boundary, where the atoms' server looks.

The marker says where: E at observation n, P before it acts on that one, R when it has rewarded the
transition that led there. So what the roles keep at n is one consistent cut: everything as it was
before action n. A snapshot that is kept for a successor anyway is the same one; where none is, it
goes into a memory file for atoms only. Nobody waits for anybody here: who is slow to look finds a
later boundary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsec.errors import MachineError, SnapshotError
from dsec.runners.keeping import StateKeeping
from dsec.sml.atom import Faith

if TYPE_CHECKING:
    from dsec.runners.guard import Guard
    from dsec.runners.loop import Session

NO_CODEC = "none"


class Cuts:
    """Takes one role's sections.

    Args:
        state: how its state is captured; None where nothing captures it. The atom says so then.
        guard: keeps snapshots for a successor; of the same `state`, perhaps.
        beside: what else belongs to a section.
    """

    def __init__(
        self,
        session: Session,
        state: StateKeeping | None,
        guard: Guard | None,
        beside: Callable[[], Sequence[bytes]] = tuple,
    ) -> None:
        if state is None:
            state = StateKeeping(session, tuple, NO_CODEC, faith=Faith.UNFAITHFUL)
        state.beside = beside
        self._guard = guard
        self._state = state
        self._apart: StateKeeping | None = None
        self._complained = False

    def take(self, n: int, count: int = 0) -> None:
        """Keep the state at boundary n. One that can't be captured there makes no atom.

        Args:
            count: what this role counts: the env its episodes, a policy its rollouts.
        """
        guard, state = self._guard, self._state
        if guard is not None and guard.keeps(state):
            guard.keep(n, count, boundary=True)
            return
        if self._apart is None:
            self._apart = state.apart()
        try:
            self._apart.keep(n, 0, (), count, 0, boundary=True)
        except (SnapshotError, MachineError) as error:
            if not self._complained:
                self._complained = True
                sys.stderr.write(f"no atom at step {n}: {error}\n")

    def close(self) -> None:
        """Let go of the memory file; again is no error."""
        if self._apart is not None:
            self._apart.close()
