"""When a runner's state is kept for its successor, and what that may cost.

A snapshot is due after so many records that its cost stays within the runner's share of the
agent's budget, by the processor time that both have taken so far (the clock would count what
others do meanwhile); later, where a replay would be over sooner than the rest of a failover is; and
earlier where a ring is about to lose what a replay from the last snapshot needs: the records in the
runner's own ring, which the next ones overwrite, and those in the rings it reads, which it gives
back only when a snapshot has them behind it. Nothing is copied for a replay.

This file knows positions in rings and seconds. What a snapshot is, the keeping that it is given
decides: bytes in a memory file, or a sleeping clone of the process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Final

from dsec.errors import MachineError, SnapshotError
from dsec.failover.keep import Snapshot
from dsec.ipc import overflow
from dsec.ipc.frames import Kept, Protection, Role
from dsec.ipc.recall import distance
from dsec.ipc.ring import FLAG_OVERFLOW, Outbox, Reader, stride
from dsec.runners.keeping import Keeping
from dsec.runners.loop import Session

FIRST_INTERVAL: Final = 32
GIVEN_UP_INTERVAL: Final = 1024
SAMPLES_MIN: Final = 4
TOLERANCE: Final = 2.0
"""By how much the budget may be missed for want of room before `auto` does without."""
SHARES: Final = {Role.ENV: 0.8, Role.POLICY: 0.15, Role.REWARD: 0.05}
"""Of the agent's budget: they wait for each other, so what each takes adds up. Environments die
most, and theirs is the state that is dear."""
BETWEEN_MIN_S: Final = 0.001
RECORDS_MIN: Final = 5
"""What a replay may always take, in processor time and in records. To fence and to wake takes about
as long, and the step that was under way is done again anyhow: with more snapshots no failover would
be shorter that anybody would notice."""
LEARN_EVERY: Final = 8  # snapshots, once the interval is known
FAILURES_MAX: Final = 16
RETRY_RECORDS: Final = 4
TELL_EVERY_S: Final = 2.0
RECENT: Final = 9
"""Snapshots whose costs are considered: the median of them counts, so that neither what the first
ones warm up nor a preemption moves the interval."""


Instead = Callable[[tuple[str, ...]], Keeping]
"""Makes a keeping, with these notes."""


class Retained:
    """A ring whose records a runner holds for a replay.

    Args:
        nbytes: payload of a usual record.
        current: the record at hand is still to be worked on when a snapshot is taken, so that a
            replay begins with it and not after it.
    """

    __slots__ = ("_beside", "_current", "_noted", "_reader", "half", "stride")

    def __init__(self, reader: Reader, nbytes: int, *, current: bool = False) -> None:
        self._reader = reader
        self._current = current
        self.half = reader.peer.capacity // 2
        self.stride = stride(nbytes)
        self._beside: list[int] = []  # bytes beside the ring, for each held record that has some
        self._noted = -1

    @property
    def position(self) -> int:
        """Where a replay from now on begins."""
        return int(self._reader.c.start if self._current else self._reader.c.read)

    @property
    def read(self) -> int:
        """The end of what is held."""
        return int(self._reader.c.read)

    def note(self) -> None:
        """See whether the record at hand holds room beside its ring, of which there is less."""
        c = self._reader.c
        if not c.now.flags & FLAG_OVERFLOW or self._noted == c.start:
            return
        self._noted = int(c.start)
        end = int(c.now.offset + c.now.nbytes)
        _, nbytes = overflow.DESCRIPTOR.unpack_from(
            self._reader.peer.buffer, end - overflow.DESCRIPTOR.size
        )
        self._beside.append(nbytes)

    def left_beside(self) -> int:
        """How many records more may be held, where they lie beside the ring: their writer waits
        when so many bytes or records are out, and half of that is for the other readers."""
        if not self._beside:
            return overflow.IN_FLIGHT_RECORDS
        used = sum(self._beside)
        by_bytes = (overflow.IN_FLIGHT_BYTES // 2 - used) // max(1, max(self._beside))
        return min(by_bytes, overflow.IN_FLIGHT_RECORDS // 2 - len(self._beside))

    def give_back(self, *, answered: bool) -> None:
        """Nothing before `position` is needed any more, or before `read` if that is answered."""
        if self._current and not answered:
            self._beside = self._beside[-1:] if self._noted == self._reader.c.start else []
            self._reader.release_prior()
        else:
            self._beside = []
            self._reader.release()


class Guard:
    """Has one runner's state kept in time.

    Args:
        keeping: takes the snapshots.
        outbox: the runner's own.
        nbytes: payload of its usual record.
        retained: the rings that it reads.

    Attributes:
        due: the next snapshot is taken at this record, or before it.
        instead: another way, for where the one at hand turns out too dear.
    """

    def __init__(
        self,
        session: Session,
        keeping: Keeping,
        outbox: Outbox,
        nbytes: int,
        retained: Sequence[Retained],
    ) -> None:
        self._session = session
        self._keeping: Keeping | None = keeping
        self._outbox = outbox
        self._retained = retained
        self._half = outbox.capacity // 2
        self._stride = stride(nbytes)
        self._own = outbox.tail
        self._read = [ring.position for ring in retained]
        self._seq = -1
        self._budget = max(session.start.failover.budget, 1e-4)
        self._share = self._budget * SHARES[session.role]
        self._costs: deque[float] = deque(maxlen=RECENT)
        self._lengths: deque[int] = deque(maxlen=RECENT)
        self._periods: deque[float] = deque(maxlen=RECENT)
        self._steps: deque[float] = deque(maxlen=RECENT)  # by the clock
        self._cost_s = self._period_s = self._step_s = 0.0
        self._last_s = self._clock_s = self._told_s = 0.0
        self._learned = self._taken = self._failures = 0
        self._left = -1, 0  # the latest record that was asked about, and the answer
        self._too_dear = False
        strides = (self._stride, *(ring.stride for ring in retained))
        halves = (self._half, *(ring.half for ring in retained))
        self._longest = min(half // size for half, size in zip(halves, strides, strict=True))
        self._interval = FIRST_INTERVAL if keeping.paced else self._longest
        self.due = 0
        self.instead: Instead | None = None

    def inherit(self, snapshot: Snapshot, seq: int) -> None:
        """Go on from a predecessor's snapshot: what follows it is retained, and the next is due."""
        self._own = snapshot.own
        self._read = [snapshot.first, snapshot.second][: len(self._retained)]
        self._seq = snapshot.seq
        self._interval = max(1, snapshot.interval)
        paced = self._keeping is not None and self._keeping.paced
        self.due = seq + 1 if paced else seq + self._interval

    def left(self, n: int) -> int:
        """How many records more fit until a ring would lose what a replay needs; n is the latest.

        Records may be longer than usual: as long as they were since the snapshot, and a bit.
        """
        records = max(1, n - self._seq)
        used = distance(self._own, self._outbox.tail)
        left = (self._half - used) // max(self._stride, used * 5 // (4 * records))
        for ring, since in zip(self._retained, self._read, strict=True):
            used = distance(since, ring.read)
            left = min(left, (ring.half - used) // max(ring.stride, used * 5 // (4 * records)))
            left = min(left, ring.left_beside())
        return left

    def mark_after(self, n: int) -> int:
        """The record at which this guard wants to be asked next; n is the latest."""
        asked, left = self._left
        if asked != n:
            left = self.left(n)
        return min(max(self.due, n + 1), n + max(1, left - 1))

    def look(self, n: int, count: int = 0) -> None:
        """Take a snapshot at record n, if one is due. Called for every record that is not like all
        others."""
        for ring in self._retained:
            ring.note()
        self._left = n, self.left(n)
        pressing = self._keeping is not None and self._keeping.pressing
        if pressing or n >= self.due or self._left[1] < 2:
            self.keep(n, count)

    def relieve(self, n: int) -> None:
        """Record n has not come: if that is because its writer waits for room, take a snapshot."""
        if self.left(n) < 2:
            self.keep(n, answered=True)

    def keep(
        self, n: int, count: int = 0, *, answered: bool = False, boundary: bool = False
    ) -> None:
        """Take a snapshot at record n, and give back what only a replay needed.

        Args:
            count, boundary: as in Snapshot.
            answered: the record at hand is done with, although a replay usually begins with it.
        """
        measured = self._taken < RECENT or not self._taken % LEARN_EVERY
        began = time.thread_time() if measured else 0.0
        if measured and self._keeping is not None:
            began -= self._keeping.spent_s
        self._left = -1, 0
        own = self._outbox.tail
        read = [ring.read if answered else ring.position for ring in self._retained]
        if self._keeping is not None:
            try:
                self._keeping.keep(n, own, read, count, self._interval, boundary=boundary)
                self._failures = 0
            except (SnapshotError, MachineError) as error:
                self._failures += 1
                if self._keeping.paced and self.left(n) <= RETRY_RECORDS:
                    self._failures = FAILURES_MAX
                if self._failures >= FAILURES_MAX:
                    self._give_up(str(error))
                elif self._keeping.paced:
                    self.due = n + RETRY_RECORDS
                    return
        self._own, self._read = own, read
        for ring in self._retained:
            ring.give_back(answered=answered)
        if self._keeping is not None:
            self._taken += 1
            if measured:
                self._learn(n, began, time.thread_time())
                self._judge(self._keeping)
        self._seq = n
        self.due = n + self._interval

    @property
    def level(self) -> str:
        """How the state is kept; `none` if it isn't any more."""
        return "none" if self._keeping is None else self._keeping.level

    def hand_over(self, n: int, count: int, keeping: Keeping | None = None) -> bool:
        """Keep the state at record n for a successor that takes over there. Return whether it is.

        Args:
            count: as in Snapshot.
            keeping: in place of the one there was.
        """
        if keeping is not None:
            self.close()
            self._keeping = keeping
        self.keep(n, count)
        return self._keeping is not None and self._seq == n

    def _judge(self, keeping: Keeping) -> None:
        """Tell now and then what was chosen; give up what can't be had for the budget."""
        if self._too_dear and self._session.start.failover.standby == "auto":
            if self.instead is None:
                self._give_up(self._why_too_dear(keeping))
            else:
                self._do_instead(keeping, self.instead)
            return
        now_s = time.monotonic()
        if self._taken > 2 and now_s - self._told_s > TELL_EVERY_S:
            self._told_s = now_s
            self._session.channel.try_send(Kept(0, self._protection(keeping)))

    def _do_instead(self, keeping: Keeping, instead: Instead) -> None:
        """Have the state kept in another way, which is judged anew."""
        notes = (*keeping.notes, self._why_too_dear(keeping))
        keeping.close()
        self._keeping, self.instead, self._too_dear = instead(notes), None, False
        self._costs.clear()
        self._interval, self._taken = self._longest, 0
        self._session.channel.send(Kept(0, Protection(self._keeping.level, notes=notes)))

    def _give_up(self, why: str) -> None:
        """The run goes on without protection, and says so."""
        self.close()
        self._interval = GIVEN_UP_INTERVAL
        self._session.channel.try_send(Kept(0, Protection("none", notes=(why,))))

    def keeps(self, keeping: Keeping) -> bool:
        """Whether it still takes its snapshots so."""
        return self._keeping is keeping

    def close(self) -> None:
        """Keep nothing any more."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.close()

    def _why_too_dear(self, keeping: Keeping) -> str:
        cost = f"{keeping.level} would cost {self._cost_s * 1e3:.2g} ms every"
        record_s = self._step_s if keeping.paced else self._period_s
        period = f"records of {record_s * 1e6:.0f} us"
        budget = f"the budget is {self._budget:.0%}"
        if keeping.paced:
            reach = "for how far the rings reach"
            return f"{cost} {self._longest} {period}, {reach}; {budget}. Use more ring_slots"
        return f"{cost} {median_low(self._lengths)} {period}, for how short episodes are; {budget}"

    def _learn(self, n: int, began: float, ended: float) -> None:
        """Let the interval follow what snapshots and records cost."""
        records, clock_s = n - self._learned, time.monotonic()
        if self._taken > 1 and records > 0:  # the first one warms up what it uses
            self._costs.append(ended - began)
            self._lengths.append(n - self._seq)
            self._periods.append((began - self._last_s) / records)
            self._steps.append((clock_s - self._clock_s) / records)
            self._cost_s, self._period_s = median_low(self._costs), median_low(self._periods)
            self._step_s = median_low(self._steps)
        if len(self._costs) >= SAMPLES_MIN and self._keeping is not None:
            reach_s = median_low(self._lengths) * self._period_s
            if self._keeping.paced:
                # What is too much for one who waits most of the time may be little for the agent.
                reach_s = self._longest * self._step_s
                between_s = max(self._cost_s / self._share, BETWEEN_MIN_S)
                wanted = between_s / max(self._period_s, 1e-9)
                self._interval = int(min(max(RECORDS_MIN, wanted + 1.0), self._longest))
            self._too_dear = self._cost_s / self._budget > TOLERANCE * reach_s
        self._last_s, self._clock_s, self._learned = ended, clock_s, n

    def _protection(self, keeping: Keeping) -> Protection:
        """What was chosen, and measured so far; a replay takes half an interval on average."""
        interval = self._interval if keeping.paced else median_low(self._lengths or (0,))
        return Protection(
            level=keeping.level,
            codec=keeping.codec,
            interval=interval,
            step_us=round(self._period_s * 1e6, 3),
            snapshot_us=round(self._cost_s * 1e6, 3),
            recovery_ms=round((self._cost_s + self._period_s * interval / 2) * 1e3, 3),
            notes=keeping.notes,
        )
