"""Snapshots of any environment at all: the env runner forks itself, and the copy sleeps.

A clone is the runner's plain child until the runner dies; then it comes to the supervisor. It has
everything as it was between two records, but nothing that is not its own: not its parent's channel
(it has one, whose other end goes to the kernel), not its outbox (a forked child never has that
mapped), and a lifeline of its own. It sleeps until Takeover comes or its channel ends.

What a fork does not copy is named in the notes: threads, and what a child process or a file knows
of its parent. Whether the clone goes on as its parent did is seen when its replay is compared.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dsec.errors import SnapshotError
from dsec.failover.keep import Snapshot
from dsec.ipc import crash
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import RUNNER_MARK, Clone
from dsec.runners import isolate
from dsec.runners.loop import Session

FILES_SHOWN: Final = 4


class ClonedError(BaseException):
    """This process is the clone: leave the loop, and sleep. Not an Exception, so that no handler
    of user code takes it.

    Attributes:
        snapshot: where it stands; without parts, for it is the state itself.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot.seq)
        self.snapshot = snapshot


class ForkKeeping:
    """One clone at a time; an older one is ended when the kernel has the newer one's channel."""

    level = "fork"
    codec = ""

    def __init__(self, session: Session, notes: tuple[str, ...] = ()) -> None:
        self._session = session
        self._clone = 0
        self.notes = (*notes, *uncovered())

    def keep(self, seq: int, own: int, read: Sequence[int], count: int, interval: int) -> None:
        """Fork.

        Raises:
            SnapshotError: the system refuses.
            ClonedError: in the clone.
        """
        kernels, clones = pair()
        drawn = random.getstate()
        try:
            pid = os.fork()
        except OSError as error:
            kernels.close()
            clones.close()
            raise SnapshotError(f"the runner can't be forked: {error.strerror}") from None
        if pid == 0:
            kernels.close()
            random.setstate(drawn)  # Python seeds it anew in each forked child
            first, second = (*read, 0)[:2]
            become(self._session, Channel(clones))
            raise ClonedError(Snapshot(seq, own, first, second, count, interval, "", ()))
        clones.close()
        self._session.channel.send(Clone(pid, seq), (kernels.fileno(),))
        kernels.close()
        self.close()
        self._clone = pid

    def close(self) -> None:
        """End the clone there is; again is no error."""
        pid, self._clone = self._clone, 0
        if pid:
            # Until it is waited for its number is nobody else's, unless user code waits for all.
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def become(session: Session, channel: Channel) -> None:
    """Be a process of one's own, as the runner's start made that one (bootstrap.py)."""
    os.setpgid(0, 0)
    os.environ[RUNNER_MARK] = str(os.getpid())
    line = isolate.Lifeline(session.lifeline)
    session.channel.close()
    os.close(session.lifeline)
    session.lifeline = line.fd
    session.channel = channel
    session.pid = os.getpid()
    session.attention = False
    crash.arm(channel.fileno())


def uncovered() -> tuple[str, ...]:
    """Sentences on what this process has that a fork doesn't copy."""
    notes = []
    threads = isolate.thread_count()
    if threads > 1:
        names = sorted(thread.name for thread in threading.enumerate())
        notes.append(f"a clone has none of this process' {threads - 1} other threads ({names})")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(OSError):
        found = children.read_text().split()
        if found:
            notes.append(f"a clone shares {len(found)} child processes with its parent ({found})")
    files = []
    for fd in isolate.open_descriptors():
        with contextlib.suppress(OSError):
            target = str(Path(f"/proc/self/fd/{fd}").readlink())
            if fd > 2 and target.startswith("/") and not target.startswith(("/memfd:", "/dev/")):
                files.append(target)
    if files:
        shown = ", ".join(files[:FILES_SHOWN]) + (" ..." if len(files) > FILES_SHOWN else "")
        notes.append(f"a clone shares the offsets of {len(files)} open files ({shown})")
    return tuple(notes)
