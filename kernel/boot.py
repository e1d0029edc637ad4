"""The guardian: a process that only waits, so that something outlives the supervisor.

`run` forks before any thread or loop exists. The child is the supervisor, in a process group of
its own; the parent passes signals on, and when the supervisor has ended, however that was, kills
what it left and returns its exit code.

Ctrl-Z stops everything: guardian, supervisor and runners; `fg` lets everything go on, the
supervisor last, whose late tick then extends all deadlines by the time that was lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from dsec.kernel.reap import PR_SET_PDEATHSIG, descendants_of, prctl, set_subreaper

SERVERS_DRAIN_S = 1.0  # what servers have after the supervisor's death
KILL_MAX_S = 10.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_lifeline = -1


def guardian_fd() -> int:
    """A descriptor that becomes readable when the guardian is gone; -1 if there is none."""
    return _lifeline


def run(main: Callable[[], int]) -> int:
    """Run `main` as the supervisor in a child process and return its exit code.

    The code is 128+n if signal n ended it. In the child this function does not return.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    set_subreaper(True)
    reading, writing = os.pipe()
    # What was ignored from the start (nohup, a job in the background) stays so.
    asked = (*_PASSED_ON, signal.SIGTSTP)
    awaited = {number for number in asked if signal.getsignal(number) != signal.SIG_IGN}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*awaited, signal.SIGCHLD})
    guardian = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        _be_supervisor(main, guardian, reading, mask)
    os.close(reading)
    code = _wait(pid, {*awaited, signal.SIGCHLD})
    kill_descendants(0.0 if code < 128 else SERVERS_DRAIN_S)
    os.close(writing)
    if code > 128:
        name = signal.Signals(code - 128).name
        text = f"dsec-kernel: the supervisor was killed by {name}; what was recorded is whole\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return code


def kill_descendants(grace_s: float) -> bool:
    """Wait until nothing is below this process, and kill what is still there after `grace_s`.

    Returns:
        False if something could not be killed within KILL_MAX_S.
    """
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < grace_s + KILL_MAX_S:
        _reap()
        below = descendants_of(os.getpid())
        if not below:
            return True
        for pid in below if spent >= grace_s else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], 0.02)
    return False


def _be_supervisor(main: Callable[[], int], guardian: int, lifeline: int, mask: set[int]) -> None:
    global _lifeline
    code = 70
    try:
        _lifeline = lifeline
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it writes from the background
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = main() if os.getppid() == guardian else 128 + signal.SIGTERM
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _reap(awaited: int = 0) -> int | None:
    """Reap every dead child; return the exit code of `awaited` if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == awaited:
                code = os.waitstatus_to_exitcode(ended[1])
                found = code if code >= 0 else 128 - code
    return found


def _wait(supervisor: int, awaited: set[signal.Signals]) -> int:
    while True:
        number = signal.sigwaitinfo(awaited).si_signo
        if number == signal.SIGCHLD:
            if (code := _reap(supervisor)) is not None:
                return code
        elif number == signal.SIGTSTP:
            _suspend(supervisor)
        else:
            os.kill(supervisor, number)


def _suspend(supervisor: int) -> None:
    below = [supervisor, *descendants_of(supervisor)]
    for number, pids in ((signal.SIGSTOP, below), (signal.SIGCONT, below[::-1])):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            os.kill(os.getpid(), signal.SIGSTOP)
