"""What binds a process to the kernel's life and separates it from its siblings.

Descriptors, parent, lifeline, limits: each function does one of these to the calling process.
The order in which a runner needs them is in bootstrap.py. Only the standard library is used, for
all of this runs before user code and in processes that have loaded nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dsec.runners.failure import UserCodeError

REPARENT_TIMEOUT_S = 60.0
MEMORY_HEADROOM_BYTES = 32 * 1024 * 1024

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class OrphanedError(Exception):
    """The process that this one belongs to is gone, or was never its parent."""


def await_parent(between_pid: int, supervisor_pid: int) -> None:
    """Return once the supervisor is the parent: the process in between has exited.

    A runner is forked by a process that exits at once, so that the supervisor, a subreaper,
    inherits it. Until that has happened a parent-death signal would come from the wrong death.

    Raises:
        OrphanedError: somebody else inherited this process, or REPARENT_TIMEOUT_S has passed.
    """
    if os.getppid() == between_pid:
        # Readable once that process has exited, and by then its children have been handed on.
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(between_pid)
            try:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(REPARENT_TIMEOUT_S * 1000)
            finally:
                os.close(pidfd)
    parent = os.getppid()
    if parent != supervisor_pid:
        raise OrphanedError(f"process {parent} is the parent, not the supervisor {supervisor_pid}")


def die_with_parent(supervisor_pid: int) -> None:
    """Have the system send SIGKILL when the supervisor dies.

    Raises:
        OrphanedError: it died before the signal was armed.
    """
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        raise OrphanedError(f"the supervisor {supervisor_pid} died while this process started")


def set_parent_death_signal(signum: int) -> None:
    """prctl(PR_SET_PDEATHSIG); 0 takes it back."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")


class Lifeline:
    """The read end of a pipe whose write end only the supervisor holds: its end is our SIGKILL.

    The system sends the signal, so it reaches a process in a busy loop with all signals blocked.
    The owner of such a signal belongs to the open file, not to the process, so each process opens
    the pipe anew. The descriptor must stay open; nobody reads from it.
    """

    def __init__(self, inherited: int) -> None:
        """Arm it.

        Raises:
            OrphanedError: the write end is closed already.
        """
        self.fd = os.open(f"/proc/self/fd/{inherited}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(self.fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_ASYNC)
        # Only a change sends a signal: an end that came before the arming is seen here.
        poll = select.poll()
        poll.register(self.fd, 0)
        if poll.poll(0):
            raise OrphanedError("the lifeline had ended before this process was bound to it")

    def disarm(self) -> None:
        """Unbind: a server drains after the supervisor's death, for its own limited time."""
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~os.O_ASYNC)
        fcntl.fcntl(self.fd, fcntl.F_SETSIG, 0)


def open_descriptors() -> list[int]:
    """The numbers of this process's open descriptors, ascending."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (a Path for each is waste here)
        fd = int(name)
        with contextlib.suppress(OSError):  # the one that listed the directory is closed again
            fcntl.fcntl(fd, fcntl.F_GETFD)
            found.append(fd)
    return sorted(found)


def close_all_but(keep: Iterable[int], held: Collection[int] = ()) -> None:
    """Close every descriptor that is not in `keep`.

    Args:
        held: numbers that some object still takes for its own. They lead nowhere afterwards, but
            are not given to anybody else: such an object closes its number when it is collected,
            and that would close another's.
    """
    kept, hold = set(keep), nowhere()
    for fd in open_descriptors():
        if fd not in kept and fd != hold:
            with contextlib.suppress(OSError):
                if fd in held:
                    os.dup2(hold, fd, inheritable=False)
                else:
                    os.close(fd)
    os.close(hold)


def nowhere() -> int:
    """A descriptor that refuses whatever is done with it, as a closed one does (EBADF)."""
    return os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)


def set_standard_streams(stdout: int, stderr: int) -> None:
    """Put /dev/null on 0 and the given files on 1 and 2; stdout becomes line buffered."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for fd, number in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(fd, number, inheritable=True)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, errors="backslashreplace")


def set_limits(limits: dict[str, int]) -> None:
    """Apply `open_files` and `memory_mb` (0 or absent: none), and forbid core files.

    Memory is RLIMIT_DATA: private writable memory, whether touched or not. What a process may
    share with its zygote counts in full, and shared segments do not count.

    Raises:
        UserCodeError: `memory_mb` leaves no room beyond what the process has already.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    open_files = limits.get("open_files", 0)
    if open_files > 0:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    memory_bytes = limits.get("memory_mb", 0) * 1024 * 1024
    if memory_bytes > 0:
        have = data_bytes()
        if memory_bytes < have + MEMORY_HEADROOM_BYTES:
            need_mb = -(-(have + MEMORY_HEADROOM_BYTES) // (1024 * 1024))
            raise UserCodeError(
                f"{memory_bytes >> 20} MB are too few: the preloaded modules have"
                f" {have >> 20} MB, so set at least {need_mb}",
                where="limits.memory_mb",
                lookup=True,
            )
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def set_cpus(cpus: Sequence[int]) -> None:
    """Run on these cores only, and what is started from here, too; all of them if empty.

    Raises:
        UserCodeError: none of them is there, or allowed to this process.
    """
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise UserCodeError(
            f"can't run on the cores {', '.join(map(str, cpus))}: {error.strerror}",
            where="limits.cpus",
            lookup=True,
        ) from None


def data_bytes() -> int:
    """Private writable memory of this process as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def thread_count() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208
