"""What the supervisor asks of the operating system, all of it in one place.

The kernel room makes no other system call, so a machine that is only simulated can stand under the
same kernel (tests/simulation). This file decides nothing and holds nothing: each name is the call
that it says, and what may come out of it is written where that one is.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable

from dsec.ipc import channel, launch, proc, segment
from dsec.ipc.logs import Logs


class System:
    """The machine under a supervisor. A subclass may be another one."""

    # Processes: those that are children, and what is known of any.
    getpid = staticmethod(os.getpid)
    waitid = staticmethod(os.waitid)
    waitpid = staticmethod(os.waitpid)
    wait4 = staticmethod(os.wait4)
    killpg = staticmethod(os.killpg)
    pidfd_open = staticmethod(os.pidfd_open)
    pidfd_send_signal = staticmethod(signal.pidfd_send_signal)
    kill = staticmethod(proc.kill)
    read_stat = staticmethod(proc.read_stat)
    threads_of = staticmethod(proc.threads_of)
    descendants_of = staticmethod(proc.descendants_of)
    environment_of = staticmethod(proc.environment_of)
    set_subreaper = staticmethod(proc.set_subreaper)

    # What a child gets: environment, files for its output, a channel, the lifeline.
    environment = staticmethod(launch.environment)
    exec_zygote = staticmethod(launch.exec_zygote)
    inherited = staticmethod(launch.inherited)
    logs = Logs
    pair = staticmethod(channel.pair)
    pipe = staticmethod(launch.lifeline)
    close = staticmethod(os.close)

    # Segments, by their descriptors.
    create_segment = staticmethod(segment.create)
    adopt_segment = staticmethod(segment.adopt)
    hand_out = staticmethod(segment.hand_out)
    readonly = staticmethod(segment.readonly)
    progress_word = segment.ProgressWord
    read_crash = staticmethod(segment.read_crash)

    def cores(self) -> int:
        """How many processors this process may use."""
        return len(os.sched_getaffinity(0))

    def socket_of(self, fd: int) -> socket.socket:
        """The socket that came as a descriptor, under one of its own."""
        return socket.socket(fileno=os.dup(fd))

    def close_all(self, fds: Iterable[int]) -> None:
        """Close descriptors."""
        for fd in fds:
            self.close(fd)


SYSTEM = System()
