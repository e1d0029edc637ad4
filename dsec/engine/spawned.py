"""A served kernel beside this program: its process, from the start to the last word.

Owns it as far as the program is concerned. What it promises to whoever wrote the program: the
kernel is no child of it, has nothing of its terminal, and dies with it, however that goes; a forked
child of the program has no part in it. Never imports numpy.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import uuid
import weakref

from dsec.errors import EngineDied, MachineError
from dsec.ipc import launch

_ARGV = ("-P", "-m", "dsec.engine.host")
GONE_S = 10.0  # what a kernel has to end everything, before it is killed
TAIL_BYTES = 4000

_alive: weakref.WeakSet[EngineProcess] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child must not keep the lines of its parent open, nor use them."""
    for each in list(_alive):
        each.mine = False
        each.forget()


os.register_at_fork(after_in_child=_forget_in_child)


class EngineProcess:
    """One kernel.

    Attributes:
        sock: the stream on which it is talked to; never blocks.
        mine: this process started it, and is no fork of the one that did.

    Raises:
        MachineError: the system can't start it.
    """

    def __init__(self) -> None:
        self.mine = True
        self._guardian = 0
        self._gone = -1
        try:
            self._stderr = os.memfd_create("dsec:engine:stderr")
            try:
                self._end, self._start_end = os.pipe()
                self.sock, theirs = socket.socketpair()
            except OSError:
                os.close(self._stderr)
                raise
        except OSError as error:
            raise _cannot(error) from None
        self.sock.setblocking(False)
        _alive.add(self)
        caller = -1
        try:
            caller = os.pidfd_open(os.getpid())
            fds = {1: self._stderr, 2: self._stderr, 3: theirs.fileno(), 4: caller}
            fds[5] = self._start_end
            starter = launch.execute(_ARGV, fds, launch.environment(uuid.uuid4().hex))
        except OSError as error:
            self.forget()
            raise _cannot(error) from None
        finally:
            theirs.close()
            os.close(self._start_end)
            if caller >= 0:
                os.close(caller)
        with contextlib.suppress(ChildProcessError):  # somebody who waits for all was faster
            os.waitpid(starter, 0)

    def known(self, guardian: int) -> None:
        """It has said which process is gone last."""
        self._guardian = guardian
        with contextlib.suppress(ProcessLookupError):
            self._gone = os.pidfd_open(guardian)

    @property
    def end(self) -> int:
        """A descriptor that is readable when all of it is gone."""
        return self._end

    def death(self) -> EngineDied:
        """The error that says how it ended. It has hung up already, so that is a matter of a
        moment; one that lives on is killed."""
        self.await_end()
        code: int | None = None
        with contextlib.suppress(OSError, ValueError):
            code = int(os.read(self._end, 16))
        tail = b""
        with contextlib.suppress(OSError):
            size = os.fstat(self._stderr).st_size
            tail = os.pread(self._stderr, TAIL_BYTES, max(0, size - TAIL_BYTES))
        if code is None:
            how = "its guardian was killed"
        elif code > 128:
            how = f"ended by signal {code - 128}"
        else:
            how = f"exit code {code}"
        who = f"process {self._guardian}" if self._guardian else "which never answered"
        message = f"the kernel ({who}) is gone, and all that it ran with it: {how}"
        died = EngineDied(message, code, tail.decode(errors="replace"))
        if tail:
            died.add_note(died.stderr_tail)
        return died

    def await_end(self) -> None:
        """See it gone; what is still there after GONE_S is killed."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        if not poll.poll(GONE_S * 1000):
            self.kill()
            poll.poll(GONE_S * 1000)
        if self._guardian:
            # Orphans come to us if we are process 1 or a subreaper. One that is gone is a zombie
            # for a moment, at most.
            gone = select.poll()
            if self._gone >= 0:
                gone.register(self._gone, select.POLLIN)
                gone.poll(GONE_S * 1000)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._guardian, 0 if self._gone >= 0 else os.WNOHANG)

    def kill(self) -> None:
        """Kill it; what is below it is killed by what it has arranged for that."""
        if self._gone >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._gone, signal.SIGKILL)

    def forget(self) -> None:
        """Close what is open here; says nothing to the kernel. Again is no error."""
        self.sock.close()
        for fd in (self._end, self._stderr, self._gone):
            if fd >= 0:
                os.close(fd)
        self._end = self._stderr = self._gone = -1


def _cannot(error: OSError) -> MachineError:
    return MachineError(
        f"no kernel can be started: {error.strerror}",
        "Free processes, memory or descriptors, or raise their limits",
    )
