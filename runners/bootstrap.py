"""From a fork of the zygote to a runner: the order of everything before user code, and the end.

Each step's reason is in isolate.py; the order is here, because most steps are only right in it.
Descriptors that the zygote's modules opened while they were imported lead nowhere in the runner:
two processes would share their offsets. Rule: no way out of `main` but `os._exit`, or the child
would go on as a second zygote.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from typing import NoReturn

from dsec.errors import ChannelClosed, DsecError, FrameError, PeerError
from dsec.ipc import crash
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    RUNNER_MARK,
    Done,
    Failed,
    Hello,
    Phase,
    PoolStart,
    RecorderStart,
    Role,
    Start,
)
from dsec.runners import isolate, isolation
from dsec.runners.failure import (
    EXIT_FAILED,
    EXIT_KERNEL_GONE,
    RunnerExit,
    UserCodeError,
    clean,
    describe,
    exit_code,
)
from dsec.runners.loop import DrainedEarly, Session, await_frame

REPORT_TIMEOUT_S = 5.0
LOGGED_CHARS_MAX = 200_000

_ROLE_MODULES = {
    Role.ENV: "dsec.runners.env_life",
    Role.POLICY: "dsec.runners.policy",
    Role.REWARD: "dsec.runners.reward",
}

_SERVER_MODULES = {
    RecorderStart: "dsec.runners.recorder",
    PoolStart: "dsec.runners.atoms",
}


def main(
    between_pid: int, supervisor_pid: int, fds: Sequence[int], held: Collection[int]
) -> NoReturn:
    """Be a runner until the end.

    Args:
        between_pid: the parent, which exits now.
        supervisor_pid: the parent after that.
        fds: control socket, lifeline, stdout file and stderr file.
        held: descriptors that imported modules take for theirs.

    Exit codes: 0 after Done; EXIT_FAILED (70) after Failed, or where not even that could be
    said; the code of user code's own `sys.exit(n)`; EXIT_KERNEL_GONE if the channel ended.
    """
    code = EXIT_FAILED
    try:
        code = _live(between_pid, supervisor_pid, fds, held)
    except RunnerExit as end:
        code = end.code
    except BaseException as error:
        _write_traceback(error)
        if isinstance(error, ChannelClosed):
            code = EXIT_KERNEL_GONE
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        os._exit(code)


def _live(between_pid: int, supervisor_pid: int, fds: Sequence[int], held: Collection[int]) -> int:
    control, lifeline, stdout, stderr = fds
    isolate.await_parent(between_pid, supervisor_pid)
    # A group, but no session of its own: Linux schedules sessions against each other (autogroup),
    # and a yield passes the processor on within one only, so polling would hand nothing over.
    os.setpgid(0, 0)
    os.environ[RUNNER_MARK] = str(os.getpid())
    isolate.die_with_parent(supervisor_pid)
    line = isolate.Lifeline(lifeline)
    isolate.set_standard_streams(stdout, stderr)
    isolate.close_all_but((0, 1, 2, control, line.fd), held)
    channel = Channel.from_fd(control)
    _set_signals(control)
    channel.send(Hello(pid=os.getpid()))
    frame, extra = await_frame(channel)
    if extra or not isinstance(frame, Start | RecorderStart | PoolStart):
        raise FrameError(f"{type(frame).__name__} came where Start was due")
    if isinstance(frame, RecorderStart | PoolStart):
        # It drains for a limited time after the supervisor's death; the guardian ends it then.
        isolate.set_parent_death_signal(0)
        line.disarm()
        server = importlib.import_module(_SERVER_MODULES[type(frame)])
        return int(server.main(channel, frame) or 0)
    return _run_role(Session(channel, frame, line.fd))


def _set_signals(control: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(file=2, all_threads=True)
    crash.arm(control)  # after faulthandler, which it hands the signal on to
    # How the kernel asks a runner that it takes for hung where it is.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True, chain=False)


def _run_role(session: Session) -> int:
    try:
        isolate.set_limits(session.start.limits)
        isolate.set_cpus(session.start.cpus)
        session.open = isolation.enter(session.start.isolation)  # no user code has run so far
        session.reseed()
        module = _ROLE_MODULES[session.role]
        if session.role is Role.ENV and session.start.caller:
            module = "dsec.runners.caller"
        importlib.import_module(module).run(session)
        return 0
    except DrainedEarly:
        session.channel.send(Done(role=session.role, seq=0))
        return 0
    except RunnerExit:
        raise
    except BaseException as error:
        _report(session, error)
        return exit_code(error)


def _report(session: Session, error: BaseException) -> None:
    """Send Failed. Where memory is what failed, a shorter one."""
    if os.getpid() != session.pid:
        # User code forked, and its child came back up to here: it has nothing to say for us.
        _write_traceback(error)
        raise RunnerExit(EXIT_FAILED) from None
    if not (isinstance(error, UserCodeError) and error.lookup):
        _write_traceback(error)
    if isinstance(error, PeerError):
        session.phase = Phase.IDLE  # somebody else's fault: no user code of this runner is to blame
    info = describe(error, where=session.where)
    for attempt in (info, describe(UserCodeError(info.type))):
        try:
            session.channel.send(
                Failed(phase=session.phase, seq=session.seq, error=attempt), (), REPORT_TIMEOUT_S
            )
            return
        except ChannelClosed:
            raise RunnerExit(EXIT_KERNEL_GONE) from None
        except (DsecError, MemoryError):
            continue


def _write_traceback(error: BaseException) -> None:
    """To the log, whose size is limited: a message of megabytes would push out all the rest."""
    with contextlib.suppress(BaseException):
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(clean(text, LOGGED_CHARS_MAX))
