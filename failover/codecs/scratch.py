"""A forked copy of this process in which anything may be tried, and nothing reaches the original.

Owns the isolation of that copy: it inherits memory by copy-on-write, and everything else that the
two would share is cut or guarded. Sockets and pipes lead nowhere (a control channel must not seem
alive because a copy holds it), files are reopened so that offsets are its own, and nothing can be
written to any; output goes nowhere, signal handlers (a crash handler writes into shared memory) are
reset. It dies with its parent and at its deadline, whatever it hangs in. Knows nothing of what is
tried.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import stat
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

RESULT_BYTES_MAX = 256 << 20
_FDS = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended. `result` is None where it did not end by itself; then `why` says how."""

    result: bytes | None
    why: str
    fork_us: float


class Scratch:
    """A running trial: a forked copy that computes `function` and sends back what it returns.

    Args:
        keep: pipes that the copy goes on using; all others are closed there.
    """

    def __init__(
        self, function: Callable[[], bytes], timeout_s: float, keep: Iterable[int] = ()
    ) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._result, result_end = os.pipe2(os.O_CLOEXEC)
        lifeline, self._lifeline_end = os.pipe2(os.O_CLOEXEC)
        started = time.thread_time()  # the clock would count what others do meanwhile
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other threads: none of theirs is needed there
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._lifeline_end)
            _child(function, result_end, lifeline, timeout_s, set(keep))
        self.fork_us = (time.thread_time() - started) * 1e6
        os.close(result_end)
        os.close(lifeline)

    def ready(self, wait_s: float) -> bool:
        """Whether `finish` would not wait, now or within that time."""
        poll = select.poll()
        poll.register(self._result, select.POLLIN)
        left = min(wait_s, self._deadline - time.monotonic())
        return bool(poll.poll(max(0.0, left) * 1000)) or time.monotonic() >= self._deadline

    def abandon(self) -> None:
        """End it; what it found is not wanted."""
        self._deadline = 0.0
        self.finish()

    def finish(self) -> Outcome:
        """Wait until it has ended by itself, or end it at its deadline. Never raises for what
        happens in there: a crash, an exit, an exception and a hang are outcomes."""
        try:
            data = self._collect()
            if data is None:
                os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        finally:
            os.close(self._result)
            os.close(self._lifeline_end)
        if data is None:
            return Outcome(None, f"took longer than {self._timeout_s:g} s", self.fork_us)
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return Outcome(None, f"was killed by {name}", self.fork_us)
        if not data:
            code = os.WEXITSTATUS(status)
            return Outcome(None, f"ended its process with exit code {code}", self.fork_us)
        if data[:1] == b"-":
            return Outcome(None, data[1:].decode(), self.fork_us)
        return Outcome(bytes(data[1:]), "", self.fork_us)

    def _collect(self) -> bytes | None:
        """Everything written until the other end is closed; None if that takes too long."""
        poll = select.poll()
        poll.register(self._result, select.POLLIN)
        data = bytearray()
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            piece = os.read(self._result, 65536)
            if not piece:
                return bytes(data)
            data += piece
            if len(data) > RESULT_BYTES_MAX:
                return None


def run(function: Callable[[], bytes], timeout_s: float) -> Outcome:
    """Run `function` in a forked copy, and give back what it returns."""
    return Scratch(function, timeout_s).finish()


def _child(
    function: Callable[[], bytes], result: int, lifeline: int, timeout_s: float, keep: set[int]
) -> None:
    """The copy's life. Never returns, and runs no exit handler of the original."""
    try:
        try:
            _die_with_parent(lifeline)
            _reset_signals(timeout_s)
            _cut_loose({result, lifeline} | keep)
            data = b"+" + function()
        except Exception as error:
            data = b"-" + str(error).encode("utf-8", "replace")
        except SystemExit as error:
            data = b"-" + f"called sys.exit({error.code!r})".encode()
        view = memoryview(data)
        while view:
            view = view[os.write(result, view) :]
        os._exit(0)
    finally:
        os._exit(1)


def _die_with_parent(lifeline: int) -> None:
    """The read end of a pipe whose write end only the parent has kills at its end of file."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _reset_signals(timeout_s: float) -> None:
    """Default handlers for all; SIGALRM ends even a loop in C a little after the deadline."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGXFSZ}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.setitimer(signal.ITIMER_REAL, timeout_s + 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _cut_loose(keep: set[int]) -> None:
    """Reopen every descriptor that the original would notice being used, or let it lead nowhere.

    None is closed: the object that it belongs to lives on in this copy, and closes the number when
    it is collected, which by then would be that of a pipe of ours.
    """
    nowhere = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in _open_fds() - keep - {0, 1, 2}:
        with contextlib.suppress(OSError):
            kind = os.fstat(fd).st_mode
            if stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind):
                os.dup2(nowhere, fd, inheritable=False)
    for fd, path in _regular_files():
        if path.startswith("/memfd:"):
            os.dup2(nowhere, fd, inheritable=False)
        else:
            _reopen(fd, nowhere)


def _reopen(fd: int, nowhere: int) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
    try:
        position = os.lseek(fd, 0, os.SEEK_CUR)
        mine = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    except OSError:
        os.dup2(nowhere, fd, inheritable=False)  # an error in the trial, not one offset for two
        return
    os.lseek(mine, position, os.SEEK_SET)
    os.dup2(mine, fd, inheritable=False)
    os.close(mine)


def _open_fds() -> set[int]:
    return {int(name) for name in os.listdir(_FDS)}  # noqa: PTH208  (cheaper, in a fresh fork)


def _regular_files() -> list[tuple[int, str]]:
    found = []
    for fd in _open_fds():
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                found.append((fd, str((_FDS / str(fd)).readlink())))
    return found
