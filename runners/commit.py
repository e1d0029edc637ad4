"""From rings to the journal: which agent is looked at next, and what happens when the disk refuses.

Owns the data path of the recorder. What is complete in the rings is the join's business (track.py),
bytes on disk are journal.py's, and frames come and go in recorder.py. Nothing here waits.

Nobody wakes the recorder. Each agent is looked at when its fullest ring should be a quarter full,
going by how it filled so far, and at least every INTERVAL_MAX_S (longer with very many agents).
A ring that is full all the same holds its writer back until the next look, which wakes it.

While the disk is full nothing is taken, so the agents pause at their full rings. When it stays
full for `disk_wait_s`, writing is given up for good: the journal ends at a whole block.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import select
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dsec.ipc.frames import AnyFrame, Corrupt, DiskFull, DiskOk
from dsec.runners.journal import Abandoned, DiskError, JournalWriter, Kind, Trailer
from dsec.runners.track import Track

BATCH_BYTES_MAX: Final = 4 << 20
FILL_TARGET: Final = 0.25
INTERVAL_MIN_S: Final = 0.002
INTERVAL_FIRST_S: Final = 0.02
INTERVAL_MAX_S: Final = 0.2
INTERVAL_PER_AGENT_S: Final = 0.002
DISK_RETRY_S: Final = 0.5
VISITS_PER_LOOK_MAX: Final = 256
DRAIN_S: Final = 0.9
DRAIN_QUIET_S: Final = 0.05
DRAIN_PAUSE_S: Final = 0.002


class Committer:
    """Writes the tracks' transitions to the journal, each track in its turn.

    Args:
        journal: where to; None counts and gives back without writing.
        tell: takes the frames that must reach the kernel.
        disk_wait_s: how long a disk may refuse before writing is given up.

    Attributes:
        changed: tracks with new totals, by name; whoever tells them takes them out.
        gave_up: nothing is written any more.
    """

    def __init__(
        self, journal: JournalWriter | None, tell: Callable[[AnyFrame], None], disk_wait_s: float
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._disk_wait_s = disk_wait_s
        self._declared = len(journal.index.agents) if journal is not None else 0
        self._tracks: list[Track] = []
        self._queue: list[tuple[float, int, Track]] = []
        self._ticket = itertools.count()  # so that tracks due at the same time aren't compared
        self._disk_since_s: float | None = None
        self._disk_retry_s = 0.0
        self._stuck: Track | None = None
        self.changed: dict[str, Track] = {}
        self.gave_up = False

    def add(self, track: Track) -> None:
        """Look after one more agent."""
        self._tracks.append(track)
        track.visited_s = time.monotonic()
        self._schedule(track, track.visited_s + INTERVAL_FIRST_S)

    def abandon(self, track: Track) -> None:
        """Its writers are fenced: take what there is, then end it."""
        if not track.finished:
            track.abandoned = True
            self._schedule(track, 0.0)

    @property
    def all_finished(self) -> bool:
        """Whether every stream is journaled to its end."""
        return all(track.finished for track in self._tracks)

    def due_s(self) -> float:
        """When `work` has something to do next, on the monotonic clock."""
        if self._disk_since_s is not None:
            return self._disk_retry_s
        return self._queue[0][0] if self._queue else float("inf")

    def _schedule(self, track: Track, due_s: float) -> None:
        """Look at this agent at that time; an earlier entry of it in the queue becomes void."""
        track.due_s = due_s
        heapq.heappush(self._queue, (due_s, next(self._ticket), track))

    def work(self) -> None:
        """Look at the agents whose time has come, each once before any is looked at again."""
        now = time.monotonic()
        if self._disk_since_s is not None:
            if now < self._disk_retry_s:
                return
            stuck, self._stuck = self._stuck, None
            if stuck is not None:
                self._visit(stuck, now)
            if self._stuck is None and not self.gave_up:
                self._disk_since_s = None
                self._tell(DiskOk())
        for _ in range(VISITS_PER_LOOK_MAX):
            if self._disk_since_s is not None or not self._queue or self._queue[0][0] > now:
                return
            due_s, _, track = heapq.heappop(self._queue)
            if due_s == track.due_s and not track.finished:
                self._visit(track, now)

    def look(self, track: Track) -> None:
        """Look at one agent now, out of its turn."""
        if self._disk_since_s is None and not track.finished:
            self._visit(track, time.monotonic())

    def _visit(self, track: Track, now: float) -> None:
        """Write what one agent has complete, at most a batch, and see whether that was all."""
        more: bool | None = None
        if not self.gave_up:
            try:
                more = self._write_batch(track)
                if more is None and (track.ended or track.abandoned):
                    self._end(track)
                    return
            except DiskError as error:
                self._disk_refused(track, str(error), now)
                return
        elif track.abandoned:
            self._end(track)
            return
        if self.gave_up or (track.corrupt and not track.abandoned):
            return  # Abandon comes when the writers are fenced
        if more or track.abandoned:
            self._schedule(track, now)
        elif track.ending:
            self._schedule(track, now + INTERVAL_MIN_S)
        else:
            longest = max(INTERVAL_MAX_S, INTERVAL_PER_AGENT_S * len(self._tracks))
            self._schedule(track, now + min(longest, max(INTERVAL_MIN_S, track.interval_s)))

    def _write_batch(self, track: Track) -> bool | None:
        """Write one batch.

        Returns:
            None if nothing is complete, else whether there may be more.

        Raises:
            DiskError: the batch stays taken, to be written by the next visit.
        """
        self._declare(track)
        fill = track.fill()
        batch = track.take(BATCH_BYTES_MAX)
        track.interval_s = track.pace(time.monotonic(), fill, FILL_TARGET)
        if batch is None:
            if track.corrupt and not track.corrupt_told:
                track.corrupt_told = True
                self._tell(Corrupt(track.name, track.corrupt))
            return None
        if batch.count or not track.saw_first:
            self._append(
                Kind.BATCH,
                *(batch.env, batch.policy, batch.reward),
                agent=track.index,
                count=batch.count,
                first_seq=batch.first_seq,
                trailer=track.trailer,
            )
        track.committed()
        self.changed[track.name] = track
        return len(batch.env) + len(batch.policy) + len(batch.reward) > BATCH_BYTES_MAX // 2

    def _declare(self, track: Track) -> None:
        if track.index >= 0:
            return
        declaration = track.declaration(self._declared)
        self._append(Kind.DECLARATION, msgspec.msgpack.encode(declaration), agent=self._declared)
        track.index = self._declared
        self._declared += 1

    def _append(
        self,
        kind: Kind,
        *parts: bytes | memoryview,
        agent: int,
        count: int = 0,
        first_seq: int = 0,
        trailer: Trailer | None = None,
    ) -> None:
        """Append to the journal, if there is one."""
        if self._journal is not None:
            self._journal.append(
                kind, *parts, agent=agent, count=count, first_seq=first_seq, trailer=trailer
            )

    def _disk_refused(self, track: Track, message: str, now: float) -> None:
        """Wait with everything and try this agent again, or give up if that lasts."""
        self._stuck = track
        if self._disk_since_s is None:
            self._disk_since_s = now
            self._tell(DiskFull(message, lasting=False))
        self._disk_retry_s = now + DISK_RETRY_S
        if now - self._disk_since_s < self._disk_wait_s:
            return
        self.gave_up = True
        self._disk_since_s = None
        if self._journal is not None:
            self._journal.give_back_room()
        self._tell(DiskFull(message, lasting=True))
        for other in self._tracks:
            if other.abandoned and not other.finished:
                self._schedule(other, now)

    def _end(self, track: Track) -> None:
        """Write down that the agent's stream is complete, or what there is of it; tell.

        Raises:
            DiskError: to be called again.
        """
        clean = track.ended
        report = track.report(clean=clean)
        if not self.gave_up:
            self._declare(track)
            if clean:
                totals = msgspec.msgpack.encode(track.totals)
                self._append(Kind.END, totals, agent=track.index, first_seq=track.seq_committed)
            else:
                self._write_remainder(track)
                lost = Abandoned(
                    track.corrupt, report.seq_last, report.seq_committed, report.action_last
                )
                self._append(
                    *(Kind.ABANDONED, msgspec.msgpack.encode(lost)),
                    agent=track.index,
                    first_seq=track.seq_committed,
                )
        track.finished = True
        self._tell(report)
        track.close()

    def _write_remainder(self, track: Track) -> None:
        """Write what is published but no whole transition, once."""
        parts = track.remainder()
        if track.remainder_written or not any(map(len, parts)):
            return
        self._append(Kind.REMAINDER, *parts, agent=track.index, first_seq=track.seq_committed + 1)
        track.remainder_written = True

    def drain(self) -> None:
        """The kernel is dead and the writers die: write what they left, for a limited time."""
        if self._journal is None or self.gave_up:
            return
        end = time.monotonic() + DRAIN_S
        heard = time.monotonic()
        tracks = [track for track in self._tracks if not track.finished]
        with contextlib.suppress(DiskError):
            while (now := time.monotonic()) < end and now - heard < DRAIN_QUIET_S:
                for track in tracks:
                    if not track.finished and self._write_batch(track) is not None:
                        heard = time.monotonic()
                    elif not track.finished and track.ended:
                        self._end(track)
                select.poll().poll(DRAIN_PAUSE_S * 1000)
            for track in tracks:
                if not track.finished:
                    self._write_remainder(track)
            self._journal.sync()
