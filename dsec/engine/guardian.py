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
from collections.abc import Callable, Sequence

from dsec import signals
from dsec.ipc.proc import PR_SET_PDEATHSIG, descendants_of, kill, prctl, set_subreaper
from dsec.report import signal_name
from dsec.spec import SERVERS_DRAIN_S

KILL_MAX_S = 10.0

_guardian = 0


def orphaned() -> bool:
    """Say whether this is a supervisor whose guardian is gone."""
    return _guardian not in (0, os.getppid())


def run(main: Callable[[], int], own: Sequence[int] = ()) -> int:
    """Run `main` as the supervisor in a child process and return its exit code.

    The code is 128+n if signal n ended it. In the child this function does not return. `own` are
    descriptors that only the supervisor keeps.
    """
    global _guardian
    sys.stdout.flush()
    sys.stderr.flush()
    set_subreaper(True)
    awaited = {*signals.asked(), signal.SIGTSTP, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    guardian, pid = os.getpid(), os.fork()
    if pid == 0:
        _guardian = guardian
        _be_supervisor(main, mask)
    for fd in own:
        os.close(fd)
    code = _wait(pid, awaited)
    kill_descendants(SERVERS_DRAIN_S if code < 0 else 0.0)
    signals.ignore()  # what came too late to be passed on must not cut off the last words
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if code < 0:
        end = f"was killed by {signal_name(-code)}; what was recorded is whole"
        sys.stderr.write(f"dsec-kernel: the supervisor {end}\n")
    return code if code >= 0 else 128 - code


def kill_descendants(grace_s: float) -> None:
    """Wait until nothing is below this process, and kill what is still there after `grace_s`."""
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < grace_s + KILL_MAX_S:
        _reap()
        below = descendants_of(os.getpid())
        if not below:
            return
        for pid in below if spent >= grace_s else ():
            kill(pid)
        signal.sigtimedwait([signal.SIGCHLD], 0.02)


def _be_supervisor(main: Callable[[], int], mask: set[int]) -> None:
    code = 70
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it writes from the background
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = 128 + signal.SIGTERM if orphaned() else main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _reap() -> dict[int, int]:
    """Reap all dead children: their exit codes, -n for signal n, by pid."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _wait(supervisor: int, awaited: set[signal.Signals]) -> int:
    while True:
        number = signal.sigwaitinfo(awaited).si_signo
        if number == signal.SIGCHLD:
            if supervisor in (ended := _reap()):
                return ended[supervisor]
        elif number == signal.SIGTSTP:
            below = [supervisor, *descendants_of(supervisor)]
            for pid in below:
                kill(pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            for pid in reversed(below):
                kill(pid, signal.SIGCONT)
        else:
            os.kill(supervisor, number)
