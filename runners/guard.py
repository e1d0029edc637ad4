"""When a runner's state is kept for its successor, and what that may cost.

A snapshot is due after so many records that its cost stays within the budget, by the processor time
that both have taken so far (the clock would count what others do meanwhile); and earlier where a
ring is about to lose what a replay from the last snapshot needs: the records in the runner's own
ring, which the next ones overwrite, and those in the rings it reads, which it gives back only when
a snapshot has them behind it. Nothing is copied for a replay.

This file knows positions in rings and seconds. What a snapshot is, the keeper that it is given
decides: bytes in a memory file (StateKeeping), or a sleeping clone of the process (clone.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dsec.errors import MachineError, SnapshotError
from dsec.failover.keep import Keeper, Snapshot
from dsec.ipc.frames import Kept, Protection
from dsec.ipc.recall import distance
from dsec.ipc.ring import Outbox, Reader, stride
from dsec.runners.loop import Session

FIRST_INTERVAL: Final = 32
GIVEN_UP_INTERVAL: Final = 1024
INTERVAL_MAX: Final = 1 << 20
TELL_EVERY_S: Final = 2.0
_SMOOTHING: Final = 0.25
_OUTLIER: Final = 4.0


class Keeping(Protocol):
    """How one snapshot is taken."""

    level: str
    codec: str
    notes: tuple[str, ...]

    def keep(self, seq: int, own: int, read: Sequence[int], count: int, interval: int) -> None:
        """Keep the state that follows record `seq`. Arguments as in Snapshot."""


class StateKeeping:
    """Snapshots by codecs, one for each object.

    Args:
        capture: the states, as bytes.
        codec: its name, for the successor.
    """

    level = "state"

    def __init__(
        self,
        session: Session,
        capture: Callable[[], Sequence[bytes]],
        codec: str,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._session = session
        self._capture = capture
        self._keeper = Keeper(session.start.agent)
        self.codec = codec
        self.notes = notes

    def keep(self, seq: int, own: int, read: Sequence[int], count: int, interval: int) -> None:
        """Write it into the memory file; hand that to the kernel when it is a new one."""
        first, second = (*read, 0)[:2]
        parts = self._capture()
        keeper = self._keeper
        if keeper.put(Snapshot(seq, own, first, second, count, interval, self.codec, parts)):
            self._session.channel.send(Kept(keeper.size), (keeper.fd,))


class Guard:
    """Has one runner's state kept in time.

    Args:
        keeping: takes the snapshots.
        outbox: the runner's own.
        readers: of the rings whose records it keeps for a replay.
        own, read: positions of the snapshot that there is already, in the own ring and in those.
        bytes_own: payload of the runner's usual record; `bytes_read` of those that it reads.

    Attributes:
        due: at this record, or before it, the next snapshot is taken.
    """

    def __init__(
        self,
        session: Session,
        keeping: Keeping,
        outbox: Outbox,
        readers: Sequence[Reader],
        bytes_own: int,
        bytes_read: Sequence[int],
    ) -> None:
        self._session = session
        self._keeping: Keeping | None = keeping
        self._outbox = outbox
        self._readers = readers
        self._strides = (stride(bytes_own), *map(stride, bytes_read))
        self._halves = (outbox.capacity // 2, *(reader.peer.capacity // 2 for reader in readers))
        self._since = self._positions()
        self._budget = max(session.start.failover.budget, 1e-4)
        self._interval = FIRST_INTERVAL
        self._cost_s = self._period_s = 0.0
        self._last_s = 0.0
        self._last_seq = -1
        self._told_s = 0.0
        self._taken = 0
        self.due = 0

    def inherit(self, own: int, read: Sequence[int], seq: int, interval: int) -> None:
        """Go on from a predecessor's snapshot: what follows it is retained, and the next is due."""
        self._since = (own, *read)
        self._interval = max(1, interval)
        self.due = seq + 1

    def _positions(self) -> tuple[int, ...]:
        return (self._outbox.tail, *(int(reader.c.read) for reader in self._readers))

    def left(self) -> int:
        """How many usual records fit until a ring would lose what a replay needs."""
        return min(
            (half - distance(since, now)) // size
            for half, now, since, size in zip(
                self._halves, self._positions(), self._since, self._strides, strict=True
            )
        )

    def mark_after(self, n: int) -> int:
        """The record at which this guard wants to be asked next; n is the last one published."""
        return min(max(self.due, n + 1), n + max(1, self.left() - 1))

    def look(self, n: int, count: int) -> None:
        """Take a snapshot after record n, which is published, if one is due."""
        if n >= self.due or self.left() < 2:
            self.keep(n, count)

    def keep(self, n: int, count: int) -> None:
        """Take a snapshot after record n, and give back what only a replay needed."""
        began = time.thread_time()
        own, *read = self._positions()
        if self._keeping is not None:
            try:
                self._keeping.keep(n, own, read, count, self._interval)
            except (SnapshotError, MachineError) as error:
                self._give_up(str(error))
        self._since = (own, *read)
        for reader in self._readers:
            reader.release()
        ended = time.thread_time()
        if self._keeping is not None:
            self._learn(n, began, ended)
            if self._taken > 2 and time.monotonic() - self._told_s > TELL_EVERY_S:
                self._told_s = time.monotonic()
                self._session.channel.try_send(Kept(0, self._protection(self._keeping)))
        self.due = n + self._interval

    def _give_up(self, why: str) -> None:
        """The run goes on without protection, and says so."""
        self._keeping = None
        self._interval = GIVEN_UP_INTERVAL
        self._session.channel.try_send(Kept(0, Protection("none", notes=(why,))))

    def _learn(self, n: int, began: float, ended: float) -> None:
        """Let the interval follow what snapshots and records cost."""
        self._taken += 1
        cost, records = ended - began, n - self._last_seq
        if self._taken > 1 and records > 0:  # the first one warms up what it uses
            period = (began - self._last_s) / records
            self._cost_s = _smoothed(self._cost_s, cost)
            self._period_s = _smoothed(self._period_s, period)
            wanted = self._cost_s / (self._budget * max(self._period_s, 1e-9))
            self._interval = int(min(max(1.0, wanted + 1.0), INTERVAL_MAX))
        self._last_seq, self._last_s = n, ended

    def _protection(self, keeping: Keeping) -> Protection:
        """What was chosen, and measured so far; a replay takes half an interval on average."""
        return Protection(
            level=keeping.level,
            codec=keeping.codec,
            interval=self._interval,
            step_us=round(self._period_s * 1e6, 3),
            snapshot_us=round(self._cost_s * 1e6, 3),
            recovery_ms=round((self._cost_s + self._period_s * self._interval / 2) * 1e3, 3),
            notes=keeping.notes,
        )


def _smoothed(value: float, sample: float) -> float:
    """A running mean that a single preemption can't throw."""
    if value <= 0.0:
        return sample
    return value + _SMOOTHING * (min(sample, _OUTLIER * value) - value)
