"""The Arcade Learning Environment's emulator as a node: its system state, random state included.

Owns only the emulator; what Gymnasium's wrappers keep (frame stacks, two last screens, a generator)
is the attribute plan's. The state holds everything but the ROM and the settings of the constructor,
which another emulator has too if it was constructed in the same way. The screen is not part of it:
it is drawn by the next frame.
"""

from __future__ import annotations

import sys
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs.reading import Reader
from dsec.failover.codecs.writing import Kind, Refused, Writer


class Emulator:
    """An `ALEInterface`. Content: the bytes of its system state."""

    tag = "ale"

    def __init__(self, ale_py: Any) -> None:
        self._interface = ale_py.ALEInterface
        self._state = ale_py.ALEState

    def head(self, node: Any, writer: Writer) -> Any:
        """What tells one game from another, as far as the emulator says."""
        if node.getFloat("repeat_action_probability") > 0:
            raise Refused("holds an Atari emulator with sticky actions, whose last one it hides")
        return [str(action) for action in node.getMinimalActionSet()]

    def read(self, node: Any, writer: Writer) -> Any:
        """Clone the state with its random state; sticky actions draw from that."""
        return node.cloneState(include_rng=True).serialize()

    def find(self, head: Any, content: Any, hint: Any, reader: Reader) -> Any:
        """The emulator in place: one can't be made without its ROM."""
        if type(hint) is not self._interface:
            raise SnapshotError("the state holds an Atari emulator, and there is none here")
        if self.head(hint, Writer({})) != head:
            raise SnapshotError("the state is of another Atari game")
        return hint

    def hints(self, node: Any, content: Any, reader: Reader) -> None:
        """It has no children."""

    def fill(self, node: Any, content: Any, reader: Reader) -> None:
        """Restore the state."""
        node.restoreState(self._state(content))


def kinds() -> dict[type, Kind]:
    """What this file adds to a plan: nothing unless ale_py has been imported."""
    ale_py: Any = sys.modules.get("ale_py")
    return {ale_py.ALEInterface: Emulator(ale_py)} if hasattr(ale_py, "ALEInterface") else {}
