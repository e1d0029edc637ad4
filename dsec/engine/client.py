"""The program's end: starts a kernel for itself, hears from it, and sees it gone.

Owns that process as far as its program is concerned, and no shared memory. What a program promises
to whoever wrote it is kept here: the kernel is no child of it, has nothing of its terminal, and
dies with it; a forked child of the program has no part in it. Never imports numpy.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
import uuid
import weakref

from dsec.engine import talk
from dsec.errors import ChannelClosed, DsecError, LocalError, MachineError, SandboxFailed
from dsec.ipc import datagrams, launch

_ARGV = ("-P", "-m", "dsec.engine.host")
GONE_S = 10.0  # what a kernel has to end everything, before it is killed

_alive: weakref.WeakSet[KernelProcess] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child must not keep the lines of its parent open, nor use them."""
    for each in list(_alive):
        each.mine = False
        each.forget()


os.register_at_fork(after_in_child=_forget_in_child)


class KernelProcess:
    """One kernel, which runs one order.

    Attributes:
        guardian, supervisor: its processes; 0 until it is up.
        folder: its temporary files, until it has ended.
        mine: this process started it, and is no fork of the one that did.

    Raises:
        MachineError: the system can't start it.
        FrameError: the order is too large.
    """

    def __init__(self, order: talk.Order) -> None:
        self.guardian = self.supervisor = 0
        self.folder = ""
        self.mine = True
        self._gone = -1
        self._ended = False
        data = talk.encode(order)
        mine, theirs = datagrams.pair()
        self._sock = mine
        mine.setblocking(False)
        _alive.add(self)
        with contextlib.closing(theirs):
            self._start(theirs)
        datagrams.sendmsg(mine, data, ())

    def _start(self, theirs: socket.socket) -> None:
        quiet = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        caller = os.pidfd_open(os.getpid())
        try:
            errors = 2 if _is_open(2) else quiet
            fds = {1: quiet, 2: errors, 3: theirs.fileno(), 4: caller}
            starter = launch.execute(_ARGV, fds, launch.environment(uuid.uuid4().hex))
        except OSError as error:
            self._sock.close()
            raise MachineError(
                f"no kernel can be started: {error.strerror}",
                "Free processes, memory or descriptors, or raise their limits",
            ) from None
        finally:
            os.close(quiet)
            os.close(caller)
        with contextlib.suppress(ChildProcessError):  # somebody who waits for all was faster
            os.waitpid(starter, 0)

    def receive(self, timeout_s: float) -> tuple[talk.AnyMessage, list[int]] | None:
        """The next message with its descriptors, the caller's to close; None if none came.

        Raises:
            SandboxFailed: the kernel is gone.
            LocalError: closed.
        """
        if self._sock.fileno() < 0:
            raise LocalError("this kernel was closed")
        until = time.monotonic() + timeout_s
        while True:
            try:
                message, fds = datagrams.receive(self._sock, talk.decode)
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                poll = select.poll()
                poll.register(self._sock, select.POLLIN)
                poll.poll(left * 1000)
                continue
            except ChannelClosed:
                raise SandboxFailed(
                    f"the kernel (process {self.supervisor or 'unknown'}) is gone, and all its"
                    " environments with it",
                    "Was it killed, by hand or for want of memory? `dmesg | grep -i oom` tells",
                ) from None
            if isinstance(message, talk.Up):
                self.guardian, self.supervisor = message.guardian, message.supervisor
                self.folder = message.folder
                with contextlib.suppress(ProcessLookupError):
                    self._gone = os.pidfd_open(self.guardian)
                continue
            self._ended = self._ended or isinstance(message, talk.Ended)
            return message, fds

    def close(self, grace_s: float) -> tuple[str, ...]:
        """See it gone: by itself within `grace_s`, told to leave after that, killed in the end.

        Returns:
            The files of its recording. A second call does nothing.
        """
        files: tuple[str, ...] = ()
        if self._sock.fileno() < 0:
            return files
        until = time.monotonic() + grace_s
        with contextlib.suppress(DsecError):
            while not self._ended and (left := until - time.monotonic()) > 0:
                got = self.receive(left)
                if got is not None:
                    datagrams.close_fds(got[1])
                    files = got[0].files if isinstance(got[0], talk.Ended) else files
        with contextlib.suppress(OSError):
            datagrams.sendmsg(self._sock, talk.encode(talk.Leave()), ())
        self._await_end()
        self.forget()
        return files

    def _await_end(self) -> None:
        if self._gone < 0:
            # It has not said who it is: it notices that we hang up.
            return
        poll = select.poll()
        poll.register(self._gone, select.POLLIN)
        if not poll.poll(GONE_S * 1000):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.supervisor, signal.SIGKILL)
            if not poll.poll(GONE_S * 1000):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._gone, signal.SIGKILL)
        # Orphans come to us if we are process 1 or a subreaper.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.guardian, 0 if poll.poll(0) else os.WNOHANG)
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget(self) -> None:
        """Close what is open here; says nothing to the kernel. Again is no error."""
        self._sock.close()
        if self._gone >= 0:
            os.close(self._gone)
            self._gone = -1


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
