"""The recorder: the server that writes every committed transition of every agent to the journal.

Owns the process: its loop, its talk with the kernel, and the order of the end (journal closed,
converted, reported). How transitions get from rings to the journal is in commit.py. The recorder
never waits for the kernel: a kernel that is stopped for ten seconds finds its messages
afterwards, and no agent notices (G11).

When the supervisor dies, its end of the channel closes. The recorder then writes what the rings
hold, for at most a second, and leaves. A watchdog thread sees the same event and sets an alarm
which kills the process if that takes longer: a disk may hang for ever.
"""

from __future__ import annotations

import contextlib
import math
import select
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from dsec.errors import (
    ChannelClosed,
    ChannelTimeout,
    DsecError,
    FrameError,
    JournalError,
    LayoutError,
    PeerError,
)
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    Abandon,
    AgentProgress,
    AnyFrame,
    Corrupt,
    DiskFull,
    Failed,
    Finish,
    Finished,
    Phase,
    Progress,
    Ready,
    RecorderDone,
    RecorderStart,
    Wire,
    Wired,
)
from dsec.runners import convert
from dsec.runners.commit import INTERVAL_MAX_S, Committer
from dsec.runners.failure import EXIT_KERNEL_GONE, describe
from dsec.runners.journal import FILE_NAME, DiskError, JournalReader, JournalWriter, Kind, Run
from dsec.runners.track import Track
from dsec.runners.watchdog import Watchdog

PROGRESS_EVERY_S: Final = 0.2
JOURNAL_EVERY_S: Final = 1.0
PROGRESS_BYTES_MAX: Final = 64 * 1024
SEND_RETRY_S: Final = 0.02
FRAMES_PER_LOOK_MAX: Final = 64


class Recorder:
    """One run's recorder.

    Args:
        channel: to the kernel; the Start frame has been read from it.
        start: where to record to, and how.
        orphaned: set (by the watchdog, say) when the kernel is gone.

    Raises:
        JournalError: the journal can't be written, or is damaged.
    """

    def __init__(self, channel: Channel, start: RecorderStart, orphaned: threading.Event) -> None:
        self._channel = channel
        self._run_dir = Path(start.run_dir)
        self._tracks: dict[str, Track] = {}
        self._unreadable: set[str] = set()
        self._outgoing: deque[AnyFrame] = deque()
        self._progress_due_s = 0.0
        self._journal_due_s = 0.0
        self._finishing = self._keep = False
        self._orphaned = orphaned
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._journal: JournalWriter | None = None
        self._past: JournalReader | None = None
        if start.format != "none":
            path = self._run_dir / FILE_NAME
            self._journal = JournalWriter(path, Run(start.run_name, start.seed))
            if self._journal.index.agents:
                self._past = JournalReader(path)
        self._committer = Committer(self._journal, self._outgoing.append, start.disk_wait_s)

    def run(self) -> int:
        """Serve until the kernel says Finish or dies; return the exit code."""
        self._outgoing.append(Ready())
        try:
            while not (self._finishing and self._committer.all_finished):
                self._flush()
                self._poll.poll(self._sleep_s() * 1000)
                self._control()
                self._committer.work()
                self._tell_progress()
                self._look_for_journal()
            self._finish()
        except ChannelClosed:
            self._orphaned.set()
            self._committer.drain()
            return EXIT_KERNEL_GONE
        return 0

    def close(self) -> None:
        """Let go of files and rings; again is no error."""
        for track in self._tracks.values():
            track.close()
        for file in (self._journal, self._past):
            if file is not None:
                file.close()

    def _sleep_s(self) -> float:
        """How long nothing needs to be done unless a frame comes."""
        now = time.monotonic()
        until = min(now + INTERVAL_MAX_S, self._committer.due_s())
        if self._outgoing:
            until = min(until, now + SEND_RETRY_S)
        elif self._committer.changed:
            until = min(until, self._progress_due_s)
        return max(0.0, until - now)

    def _flush(self) -> None:
        """Send what must not be lost, as far as the kernel's socket takes it."""
        while self._outgoing and self._channel.try_send(self._outgoing[0]):
            self._outgoing.popleft()

    def _control(self) -> None:
        for _ in range(FRAMES_PER_LOOK_MAX):
            try:
                frame, fds = self._channel.recv(0.0)
            except ChannelTimeout:
                return
            if isinstance(frame, Wire):
                self._wire(frame, fds)
            elif isinstance(frame, Abandon):
                self._abandon(frame.agent)
            elif isinstance(frame, Finish):
                self._finishing, self._keep = True, frame.keep
                for track in self._tracks.values():
                    self._committer.abandon(track)
            else:
                raise FrameError(f"{type(frame).__name__} is no frame for the recorder")

    def _wire(self, wire: Wire, fds: list[int]) -> None:
        if wire.agent in self._tracks:
            raise FrameError(f"agent {wire.agent!r} is wired twice")
        past = None
        if self._past is not None:
            for known in self._past.index.agents:
                if known.declaration.agent == wire.agent:
                    past = known
        try:
            recorded = self._journal is not None
            track = Track(wire, fds, past, self._past, recorded=recorded)
        except FrameError:
            raise
        except (PeerError, LayoutError) as error:
            # The runner's fault, and that of its agent alone: the others are recorded on.
            self._unreadable.add(wire.agent)
            self._outgoing.append(Corrupt(wire.agent, str(error)))
            return
        self._tracks[wire.agent] = track
        self._outgoing.append(Wired(wire.agent))
        if past is not None and past.finished:
            # An earlier incarnation said so, but perhaps nobody heard it.
            self._outgoing.append(track.report(clean=past.ended))
            track.close()
            return
        self._committer.add(track)
        if past is not None:
            self._committer.changed[track.name] = track

    def _abandon(self, agent: str) -> None:
        if agent in self._unreadable:
            self._outgoing.append(Finished(agent, False, 0, 0, 0.0, -1, -1, "", 0))
        elif agent in self._tracks:
            self._committer.abandon(self._tracks[agent])
        else:
            raise FrameError(f"Abandon of {agent!r}, which was never wired")

    def _tell_progress(self) -> None:
        """Tell changed totals, unless the kernel is behind with reading: then the next ones."""
        now = time.monotonic()
        if not self._committer.changed or now < self._progress_due_s or self._outgoing:
            return
        self._progress_due_s = now + PROGRESS_EVERY_S
        chunk: list[AgentProgress] = []
        size = 0
        for track in [*self._committer.changed.values(), None]:
            if track is None or size > PROGRESS_BYTES_MAX:
                if not self._channel.try_send(Progress(tuple(chunk))):
                    return
                for told in chunk:
                    del self._committer.changed[told.agent]
                chunk, size = [], 0
            if track is not None:
                chunk.append(track.progress())
                size += 64 + 4 * len(track.name)

    def _look_for_journal(self) -> None:
        """Notice soon, and once, that somebody has taken the journal away. What comes now is still
        written, into the file without a name, so that the agents can drain."""
        now = time.monotonic()
        if self._journal is None or now < self._journal_due_s:
            return
        self._journal_due_s = now + JOURNAL_EVERY_S
        if why := self._journal.gone():
            self._journal_due_s = math.inf
            self._outgoing.append(DiskFull(why, lasting=True, lost=True))

    def _finish(self) -> None:
        """Close the journal, convert it, and say what became of it."""
        self._send_all()
        self._progress_due_s = 0.0
        self._tell_progress()
        self._outgoing.append(RecorderDone(*self._close_journal()))
        self._send_all()

    def _send_all(self) -> None:
        """Send everything that waits, however long the kernel takes to read it."""
        while self._outgoing:
            with contextlib.suppress(ChannelTimeout):
                self._channel.send(self._outgoing[0])
                self._outgoing.popleft()

    def _close_journal(self) -> tuple[tuple[str, ...], str]:
        """Close and convert; return the recording's files and what is to be said of them."""
        journal = self._journal
        if journal is None:
            return (), ""
        try:
            if not self._committer.gave_up and not journal.index.closed:
                journal.append(Kind.CLOSED)
            journal.sync()
        except DiskError as error:
            return (FILE_NAME,), f"the recording stays a journal: {error}"
        finally:
            self.close()
        if self._committer.gave_up:
            return (FILE_NAME,), "the disk was full: the recording ends before the run did"
        if not convert.available():
            return self._stays(f"; for Parquet: {convert.HINT}")
        try:
            result = convert.convert(self._run_dir, self._orphaned.is_set, keep=self._keep)
        except convert.ConversionStopped:
            raise ChannelClosed("the kernel died during the conversion") from None
        except Exception as error:  # pyarrow may be broken in ways of its own
            return self._stays(f", it can't be converted: {error}")
        return result.files, result.message

    def _stays(self, why: str) -> tuple[tuple[str, ...], str]:
        """The journal is the recording, if nobody has removed or cut it: no write notices that."""
        try:
            with JournalReader(self._run_dir / FILE_NAME):
                return (FILE_NAME,), f"the recording stays a journal{why}"
        except JournalError as error:
            said = f"the recording is lost: {error}"
            # Which is no run that went well.
            self._outgoing.append(DiskFull(said, lasting=True, lost=True))
            return (), said


def main(channel: Channel, start: RecorderStart) -> int:
    """Be the recorder; return the exit code.

    Raises:
        Exception: something that can't be handled; the kernel has been told.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    recorder = None
    orphaned = threading.Event()
    try:
        with Watchdog(channel.fileno(), orphaned):
            recorder = Recorder(channel, start, orphaned)
            return recorder.run()
    except ChannelClosed:
        return EXIT_KERNEL_GONE
    except Exception as error:
        with contextlib.suppress(DsecError):
            if isinstance(error, JournalError):
                channel.send(DiskFull(str(error), lasting=True))
            channel.send(Failed(phase=Phase.IDLE, seq=0, error=describe(error)))
        raise
    finally:
        if recorder is not None:
            recorder.close()
