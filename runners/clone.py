"""Snapshots of any environment at all: the env runner forks itself, and the copy sleeps.

A clone is the runner's plain child until the runner dies; then it comes to the supervisor. It has
everything as it was between two records, but nothing that is not its own: not its parent's channel
(it has one, whose other end goes to the kernel), not its outbox (a forked child never has that
mapped), and a lifeline of its own. It sleeps until Takeover comes or its channel ends. Before it
takes over it forks once more, and that copy sleeps in its place.

A process that a fork would not copy whole (shared.py) is not cloned, and it is said why. Whether
the clone goes on as its parent did is seen when its replay is compared.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Sequence
from typing import NamedTuple

from dsec.errors import SnapshotError
from dsec.failover.keep import Snapshot
from dsec.ipc import crash
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import RUNNER_MARK, Clone, Takeover
from dsec.runners import isolate, shared
from dsec.runners.loop import Session


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
    """One clone at a time; an older one is ended when the kernel has the newer one's channel, and
    waited for when the next one is made: to take its memory down is the system's work, and long."""

    level = "fork"
    codec = ""
    paced = True
    spent_s = 0.0

    def __init__(self, session: Session, notes: tuple[str, ...] = (), *, look: bool = True) -> None:
        """`look`: say in the notes at once what is in the way, before anything is kept."""
        self._session = session
        self._clone = self._ended = 0
        self._lost = False
        self.notes = (*notes, *(self._obstacles() if look else ()))

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
        """Fork. What a process is can't be put into an atom, so boundaries are nothing special.

        Raises:
            SnapshotError: the copy would not be one, or the system refuses.
            ClonedError: in the clone.
        """
        self._session.pressed = False  # where this fails it is tried again, but not at each record
        if found := self._obstacles():
            raise SnapshotError("; ".join(found))
        first, second = (*read, 0)[:2]
        self._fork(Snapshot(seq, own, first, second, count, interval, "", ()))

    def stay_behind(self, snapshot: Snapshot) -> None:
        """Fork once more, in a clone that is about to take over and has done nothing since it was
        made: if it is killed before it has made a clone of its own, there is still this one.

        Raises:
            SnapshotError: the system refuses.
            ClonedError: in the clone that stays behind.
        """
        self._fork(snapshot)

    def _fork(self, snapshot: Snapshot) -> None:
        try:
            files = shared.reopen(self._own_fds())
        except OSError as error:
            raise SnapshotError(f"an open file can't be opened for a copy: {error}") from None
        kernels, clones = pair()
        drawn = random.getstate()
        try:
            pid = os.fork()
        except OSError as error:
            kernels.close()
            clones.close()
            shared.let_go(files)
            raise SnapshotError(f"the runner can't be forked: {error.strerror}") from None
        if pid == 0:
            self._clone = self._ended = 0  # which are no children of this process
            kernels.close()
            shared.replace(files)
            random.setstate(drawn)  # Python seeds it anew in each forked child
            become(self._session, Channel(clones))
            raise ClonedError(snapshot)
        with contextlib.suppress(
            OSError
        ):  # whoever ends this group must not meet a late riser in it
            os.setpgid(pid, pid)
        clones.close()
        shared.let_go(files)
        self._session.channel.send(Clone(pid, snapshot.seq), (kernels.fileno(),))
        kernels.close()
        self._wait()
        self._end()
        self._clone, self._lost = pid, False
        self._listen()
        self._heard()

    @property
    def pressing(self) -> bool:
        """The clone was killed: who dies now would have no successor."""
        return self._lost

    def _listen(self) -> None:
        """Hear of the clone's end, unless user code listens to its own children."""
        known = signal.getsignal(signal.SIGCHLD)
        if known is signal.SIG_DFL or isinstance(getattr(known, "__self__", None), ForkKeeping):
            signal.signal(signal.SIGCHLD, self._heard)
            signal.siginterrupt(signal.SIGCHLD, False)  # user code's calls are none of our business

    def _heard(self, *_: object) -> None:
        if self._clone and not self._lost and shared.ended(self._clone):
            self._lost = self._session.pressed = self._session.attention = True

    def _own_fds(self) -> tuple[int, int]:
        return self._session.channel.fileno(), self._session.lifeline

    def _obstacles(self) -> tuple[str, ...]:
        return shared.obstacles(self._own_fds(), (self._clone, self._ended))

    def _end(self) -> None:
        """Kill the clone there is."""
        pid, self._clone = self._clone, 0
        if pid:
            # Until it is waited for its number is nobody else's, unless user code waits for all.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._ended = pid

    def _wait(self) -> None:
        """Wait for the one that was killed last."""
        pid, self._ended = self._ended, 0
        if pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def close(self) -> None:
        """End the clone there is; again is no error."""
        self._session.pressed = False
        self._wait()
        self._end()
        self._wait()


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
    session.attention = session.pressed = False
    crash.arm(channel.fileno())


class Promoted(NamedTuple):
    """A clone that takes over: where it stands, and what has charge of the one that sleeps on."""

    snapshot: Snapshot
    keeping: ForkKeeping


def await_takeover(session: Session, snapshot: Snapshot) -> tuple[Takeover, list[int], Promoted]:
    """Sleep until it is this clone's turn; another one that is just like it sleeps on then.

    Raises:
        RunnerExit: the kernel's end of the channel is closed.
        FrameError: something else than Takeover came.
    """
    while True:
        frame, fds = session.expect(Takeover)
        keeping = ForkKeeping(session, look=False)  # nothing is between its turn and the fork
        if not frame.truncate:  # where an episode is given up there is nothing to be done again
            try:
                keeping.stay_behind(snapshot)
            except ClonedError:
                for fd in fds:
                    os.close(fd)
                continue
            except SnapshotError:
                pass  # a machine that is short of something: the next one may be luckier
        return frame, fds, Promoted(snapshot, keeping)
