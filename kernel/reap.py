"""Children and orphans: watched by pidfd, reaped as PID 1 would, and killed to the last one.

A watched child has a pidfd, so its end is an
event, and a signal can't reach another process with the same number. What it leaves behind comes
to us, for we are a child subreaper, and is found by looking.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

from dsec.ipc.frames import RUNNER_MARK
from dsec.ipc.proc import GONE, Exit
from dsec.ipc.system import SYSTEM, System


class Reaper:
    """Watches the children of one supervisor and reaps what comes to it.

    Args:
        mark: empty if all children of this process are ours. Otherwise one that nobody watches
            counts as ours if it is in the group of one of our runners, or has `mark` in its
            environment (which can't be seen any more once it is dead).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, mark: str, system: System = SYSTEM) -> None:
        self._loop, self._mark, self._system = loop, mark.encode(), system
        self._watched: dict[int, tuple[int, Callable[[Exit], None]]] = {}
        self._ours: set[int] = set()
        self._ended_lately: set[int] = set()
        self._seen: set[int] = set()

    def watch(self, pid: int, on_exit: Callable[[Exit], None]) -> None:
        """Call `on_exit` once, from the loop, when this child has ended and is reaped.

        Raises:
            OSError: there is no such child (any more), or no descriptor is left for its pidfd.
        """
        self._system.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        pidfd = self._system.pidfd_open(pid)
        self._watched[pid] = (pidfd, on_exit)
        self._ours.add(pid)
        self._loop.add_reader(pidfd, self._ended, pid)

    def watches(self, pid: int) -> bool:
        """Say whether it is a child that is watched, and so not reaped yet."""
        return pid in self._watched

    def kill(self, pid: int, signum: int = signal.SIGKILL) -> None:
        """Signal a watched child; nothing happens if it is not watched (any more)."""
        if pid in self._watched:
            with contextlib.suppress(ProcessLookupError):
                self._system.pidfd_send_signal(self._watched[pid][0], signum)

    def past_writing(self, pid: int) -> bool:
        """Whether a watched child that ends by itself has come so far that no thread of it will
        execute an instruction of its program again. It can't be reaped before its memory is torn
        down, which takes milliseconds."""
        if pid not in self._watched or not self._system.read_stat(pid).exiting:
            return False
        self.kill(pid)  # one who is killed makes no new thread, which could be overlooked
        system = self._system
        with contextlib.suppress(*GONE):
            system.killpg(pid, signal.SIGKILL)  # what it made goes before its successor comes
        return all(system.read_stat(thread).exiting for thread in system.threads_of(pid))

    def _ended(self, pid: int) -> None:
        pidfd, on_exit = self._watched[pid]
        self._loop.remove_reader(pidfd)
        # While it is not reaped its number can't be anybody else's group.
        with contextlib.suppress(*GONE):
            self._system.killpg(pid, signal.SIGKILL)
        try:
            _, status, usage = self._system.wait4(pid, 0)
        except ChildProcessError:
            end = Exit(0, 255)  # another part of this program reaped it, and has its status
        else:
            code = os.waitstatus_to_exitcode(status)
            end = Exit(max(0, -code), max(-1, code), usage.ru_maxrss * 1024)
        self._system.close(pidfd)
        del self._watched[pid]
        self._ended_lately.add(pid)
        on_exit(end)

    def sweep(self) -> None:
        """Deal with orphans that came to us; call it a few times a second.

        The dead are reaped if they were seen dead and unwatched twice in a row: a runner may die
        before the zygote's answer says that it exists. The living are killed if the runner in
        whose group they are, or which their environment names, is dead; others may serve a runner
        that lives, until the run ends.
        """
        ended, self._ended_lately, system = self._ended_lately, set(), self._system
        marks = {f"{RUNNER_MARK}={pid}".encode() for pid in ended}
        for pid in self._strangers() if ended else ():
            group, told = system.read_stat(pid).group, system.environment_of(pid)
            if group in ended or marks.intersection(told):
                self._ours.add(pid)  # to be known when it is dead
                system.kill(pid)
        dead: set[int] = set()
        with contextlib.suppress(ChildProcessError):
            first = system.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if first is not None and first.si_pid not in self._watched:
                dead = set(self._strangers(dead=True))
                for pid in dead & self._seen:
                    system.waitpid(pid, os.WNOHANG)
        self._seen = dead

    def kill_all(self) -> list[int]:
        """SIGKILL to all that is ours; return who is left, be it only to be reaped."""
        for pid in self._watched:
            self.kill(pid)
        orphans = self._strangers()
        self._ours.update(orphans)
        for pid in orphans + self._system.descendants_of(*orphans, *self._watched):
            self._system.kill(pid)
        return [*self._watched, *orphans, *self._strangers(dead=True)]

    def _strangers(self, dead: bool = False) -> list[int]:
        """Children that nobody watches and that are ours, the living or the dead."""
        found, system = [], self._system
        for pid in system.descendants_of(system.getpid(), depth=1):
            stat = system.read_stat(pid)
            if pid in self._watched or (stat.state in "ZX") != dead:
                continue
            if (
                not self._mark
                or {stat.group, pid} & self._ours
                or self._mark in system.environment_of(pid)
            ):
                found.append(pid)
        return found
