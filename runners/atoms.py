"""The server of the atoms: the one process that writes the pool.

Owns the process: its loop and its talk with the kernel. It looks again and again at what the roles
of each agent keep (sections.py), makes an atom of each newest cut, and has it stored (store.py).
How often it looks follows from what a look costs: no agent waits for it, and where boundaries come
faster than it looks, the newest counts. One that dies is started again, finds in the pool which
boundaries there are, and goes on.

When the supervisor dies, its end of the channel closes: what the roles have kept is taken a last
time and written to disk, for at most a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from typing import Final

from dsec.errors import ChannelClosed, ChannelTimeout, DsecError, FrameError, SnapshotError
from dsec.ipc import segment
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    AnyFrame,
    AtomCount,
    Captured,
    Enrol,
    ErrorInfo,
    Failed,
    Finish,
    Phase,
    PoolDone,
    PoolStart,
    Ready,
    Settled,
    Taken,
    Wired,
)
from dsec.ipc.frames import (
    Sections as SectionsFrame,
)
from dsec.runners.failure import EXIT_KERNEL_GONE
from dsec.runners.follow import ChainFollower
from dsec.runners.replicas import Replicas
from dsec.runners.sections import Sections, make_atom
from dsec.runners.store import Refused, Store
from dsec.runners.watchdog import Watchdog

LOOK_MIN_S: Final = 0.005
LOOK_MAX_S: Final = 0.25
SHARE: Final = 0.03
"""Of a processor, that looking and storing may take."""
TELL_EVERY_S: Final = 0.2
SEND_RETRY_S: Final = 0.02
FRAMES_PER_LOOK_MAX: Final = 64
TOLD_AT_ONCE: Final = 500


class AtomsServer:
    """The atoms of one run.

    Args:
        channel: to the kernel; the PoolStart frame has been read from it.
        store: the pool, and the folder beside it.
    """

    def __init__(self, channel: Channel, start: PoolStart, store: Store) -> None:
        self._channel = channel
        self._store = store
        self._agents: dict[str, Sections] = {}
        self._outgoing: deque[AnyFrame] = deque((Ready(),))
        self._chains = ChainFollower(store.run_dir)
        self._replicas: Replicas | None = None
        if start.peers:
            self._replicas = Replicas(start, store.space, self._chains)
            store.stored = self._replicas.stored
        self._news: dict[str, AtomCount] = {}
        self._tell_at_s = 0.0
        self._look_at_s = 0.0
        self._finishing = False
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def run(self) -> int:
        """Serve until the kernel says Finish or dies; return the exit code."""
        try:
            while not self._finishing:
                self._flush()
                self._poll.poll(self._sleep_s() * 1000)
                self._control()
                if time.monotonic() >= self._look_at_s:
                    self._look()
                self._tell()
            self._finish()
        except ChannelClosed:
            self._take_all()
            self._store.close()
            return EXIT_KERNEL_GONE
        return 0

    def close(self) -> None:
        """Let go of everything; again is no error. A pool that may not outlive the run is gone."""
        for sections in self._agents.values():
            sections.close()
        if self._replicas is not None:
            self._replicas.close()
        self._store.close()

    def _sleep_s(self) -> float:
        now = time.monotonic()
        until = min(self._look_at_s, now + SEND_RETRY_S) if self._outgoing else self._look_at_s
        return max(0.0, until - now)

    def _flush(self) -> None:
        while self._outgoing and self._channel.try_send(self._outgoing[0]):
            self._outgoing.popleft()

    def _control(self) -> None:
        for _ in range(FRAMES_PER_LOOK_MAX):
            try:
                frame, fds = self._channel.recv(0.0)
            except ChannelTimeout:
                return
            if isinstance(frame, Enrol):
                self._enrol(frame)
            elif isinstance(frame, SectionsFrame) and len(fds) == 1:
                self._replace(frame, fds[0])
            elif isinstance(frame, Settled):
                self._settle(frame.agent)
            elif isinstance(frame, Finish):
                self._finishing = True
            else:
                raise FrameError(f"{type(frame).__name__} is no frame for the server of the atoms")

    def _enrol(self, frame: Enrol) -> None:
        if frame.agent in self._agents:
            raise FrameError(f"agent {frame.agent!r} is enrolled twice")
        self._agents[frame.agent] = Sections(frame, self._store.last(frame.rank))
        if self._replicas is not None:
            self._replicas.enrol(frame.agent, frame.rank)
        self._outgoing.append(Wired(frame.agent))

    def _replace(self, frame: SectionsFrame, fd: int) -> None:
        try:
            segment.check(fd, frame.size)
            self._agents[frame.agent].replace(frame.role, fd)
        except (KeyError, SnapshotError, DsecError) as error:
            os.close(fd)
            raise FrameError(f"sections of {frame.agent!r}: {error}") from None

    def _settle(self, agent: str) -> None:
        sections = self._agents[agent]
        self._take(sections)
        self._warn(self._store.spill(sections.agent.rank))
        if self._replicas is not None:
            self._replicas.settled(agent, sections.agent.rank)
        self._tell(now=True)
        self._outgoing.append(Taken(agent, sections.missing))
        sections.close()

    def _look(self) -> None:
        """Take what is there, and look again when that is paid for."""
        began = time.thread_time()
        for sections in self._agents.values():
            self._take(sections)
        self._warn(self._store.tend())
        if self._replicas is not None:
            self._outgoing += self._replicas.look()
        spent = time.thread_time() - began
        pause_s = min(max(spent / SHARE, LOOK_MIN_S), LOOK_MAX_S)
        self._look_at_s = time.monotonic() + pause_s

    def _take(self, sections: Sections) -> None:
        cut = sections.look()
        if cut is None:
            return
        agent = sections.agent
        atom_id, atom_uuid = self._store.name(agent.rank, cut.seq)
        chain = self._chains.at(agent.agent, cut.seq)
        atom = make_atom(agent, cut, atom_id, atom_uuid, chain)
        try:
            nbytes = self._store.put(atom, agent.snapshot_interval)
        except Refused as refused:
            self._outgoing.append(Captured((), str(refused), refused.key))
            return
        before = self._news.get(agent.agent, AtomCount(agent.agent, 0, 0, -1))
        self._news[agent.agent] = AtomCount(
            agent.agent, before.atoms + 1, before.nbytes + nbytes, cut.seq
        )

    def _warn(self, problem: str) -> None:
        """Tell what keeps an atom from the disk, if anything does."""
        if problem:
            self._outgoing.append(Captured((), problem))

    def _tell(self, *, now: bool = False) -> None:
        """Tell what was stored, unless the kernel is behind with reading."""
        due = time.monotonic() >= self._tell_at_s and not self._outgoing
        if not self._news or not (due or now):
            return
        self._tell_at_s = time.monotonic() + TELL_EVERY_S
        for name in list(self._news)[:TOLD_AT_ONCE]:
            self._outgoing.append(Captured((self._news.pop(name),)))

    def _take_all(self) -> None:
        """The last look at everybody, the newest atoms to disk."""
        for sections in self._agents.values():
            self._take(sections)
            self._warn(self._store.spill(sections.agent.rank))

    def _finish(self) -> None:
        self._take_all()
        self._tell(now=True)
        if self._replicas is not None:
            self._replicas.over()
        atoms, nbytes = self._store.held()
        spilled = self._store.spilled
        self.close()
        self._outgoing.append(PoolDone(atoms, nbytes, spilled))
        while self._outgoing:
            with contextlib.suppress(ChannelTimeout):
                self._channel.send(self._outgoing[0])
                self._outgoing.popleft()


def main(channel: Channel, start: PoolStart) -> int:
    """Be the server of the atoms; return the exit code.

    Raises:
        Exception: something that can't be handled; the kernel has been told.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    server = None
    orphaned = threading.Event()
    try:
        with Watchdog(channel.fileno(), orphaned):
            server = AtomsServer(channel, start, Store(start))
            return server.run()
    except ChannelClosed:
        return EXIT_KERNEL_GONE
    except Exception as error:
        with contextlib.suppress(DsecError):
            key = getattr(error, "key", "")
            info = ErrorInfo(type(error).__name__, str(error), where=key, lookup=bool(key))
            channel.send(Failed(phase=Phase.IDLE, seq=0, error=info))
        sys.stderr.flush()
        raise
    finally:
        if server is not None:
            server.close()
