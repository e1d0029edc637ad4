"""How one snapshot of a runner's state is taken: the protocol, and the way by codecs.

Behind the states of the objects lies what is the process's own (failover/codecs/ambient.py).

When it is taken is guard.py's business, or a boundary's (cuts.py). What is beside the state, the
observation or the latest rewards, is for the agent's atom only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dsec.failover.keep import Keeper, Snapshot
from dsec.ipc.frames import Kept
from dsec.runners.loop import Session
from dsec.sml.atom import Faith


class Keeping(Protocol):
    """How one snapshot is taken."""

    level: str
    codec: str
    notes: tuple[str, ...]
    paced: bool
    """Whether snapshots are taken as often as the budget allows; else only where it is `pressing`,
    and where a ring asks for one."""

    @property
    def pressing(self) -> bool:
        """Whether one is to be taken at this very record."""

    @property
    def spent_s(self) -> float:
        """Processor time that the next one has taken already, outside of `keep`."""

    def keep(
        self,
        seq: int,
        own: int,
        read: Sequence[int],
        count: int,
        interval: int,
        *,
        boundary: bool = False,
    ) -> None:
        """Keep the state at `seq`. Arguments as in Snapshot.

        Raises:
            SnapshotError: this state can't be kept; a later one perhaps can.
            MachineError: the machine has no room for it.
        """

    def close(self) -> None:
        """Let go of what is kept; again is no error."""


class StateKeeping:
    """Snapshots by codecs, one for each object.

    Args:
        capture: the states of the objects, as bytes.
        codec: its name, for the successor.
        faith: how far it can be trusted, for the atom.
        inheritable: false where only atoms are made of them.

    Attributes:
        beside: what else is taken at a boundary, behind the states.
    """

    level = "state"
    paced = True
    pressing = False
    spent_s = 0.0

    def __init__(
        self,
        session: Session,
        capture: Callable[[], Sequence[bytes]],
        codec: str,
        notes: tuple[str, ...] = (),
        *,
        faith: Faith = Faith.UNKNOWN,
        inheritable: bool = True,
    ) -> None:
        self._session = session
        self._capture = capture
        self._keeper = Keeper(session.start.agent, history=session.start.atoms)
        self._faith = int(faith)
        self._inheritable = inheritable
        self.beside: Callable[[], Sequence[bytes]] = tuple
        self.codec = codec
        self.notes = notes

    def keep(
        self,
        seq: int,
        own: int,
        read: Sequence[int],
        count: int,
        interval: int,
        *,
        boundary: bool = False,
    ) -> None:
        """Write it into the memory file; hand that to the kernel when it is a new one."""
        first, second = (*read, 0, 0)[:2]
        parts, keeper = (*self._capture(), self._session.ambient.capture()), self._keeper
        beside = self.beside() if boundary else ()
        where = seq, own, first, second, count, interval
        if keeper.put(
            Snapshot(*where, self.codec, (*parts, *beside), boundary, self._faith, len(beside))
        ):
            kept = Kept(keeper.size, inheritable=self._inheritable)
            self._session.channel.send(kept, (keeper.fd,))

    def apart(self) -> StateKeeping:
        """The same for atoms only, in a memory file of its own."""
        faith = Faith(self._faith)
        apart = StateKeeping(
            self._session, self._capture, self.codec, faith=faith, inheritable=False
        )
        apart.beside = self.beside
        return apart

    def close(self) -> None:
        """Let go of the memory file; the kernel has a descriptor of its own."""
        self._keeper.close()
