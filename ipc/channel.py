"""Control channels: frames over SOCK_SEQPACKET sockets, descriptors beside them.

This file owns the waiting of the blocking face: `Channel` waits with a limit (zygotes, runners, the
recorder). The other face of the same wire, for the supervisor's loop, is in async_channel.py, apart
because asyncio costs every runner time and memory. The system calls are in datagrams.py; what a
frame means is no matter of either.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Sequence

from dsec.errors import ChannelClosed, ChannelTimeout, LocalError
from dsec.ipc import frames
from dsec.ipc.datagrams import (
    FDS_MAX,
    PEER_GONE,
    RETRY_S,
    SHORT_OF,
    check_fds,
    pair,
    recvmsg,
    sendmsg,
)
from dsec.ipc.frames import AnyFrame

__all__ = ["FDS_MAX", "Channel", "pair"]

TIMEOUT_DEFAULT_S = 10.0


class Channel:
    """The blocking face of one end. Not for use by two threads at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._poll_in = select.poll()
        self._poll_in.register(sock, select.POLLIN)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Take over an inherited descriptor (and its closing); it becomes close-on-exec.

        Raises:
            LocalError: `fd` is no SOCK_SEQPACKET unix socket.
        """
        try:
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise LocalError(f"descriptor {fd} is no control channel: {error}") from None
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            sock.detach()
            raise LocalError(f"descriptor {fd} is no SOCK_SEQPACKET unix socket")
        sock.set_inheritable(False)
        return cls(sock)

    def fileno(self) -> int:
        """Return the descriptor, -1 after close."""
        return self._sock.fileno()

    def send(
        self, frame: AnyFrame, fds: Sequence[int] = (), timeout_s: float = TIMEOUT_DEFAULT_S
    ) -> None:
        """Send a frame with at most 16 descriptors, which stay the caller's to close.

        Raises:
            ChannelTimeout: the other end did not read for `timeout_s`; nothing was sent.
            ChannelClosed: the other end is gone.
            LocalError, FrameError: too many descriptors, too large a frame, or closed here.
        """
        check_fds(fds)
        data = frames.encode(frame)
        deadline = time.monotonic() + timeout_s
        while wait_for := self._try_sendmsg(data, fds):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ChannelTimeout(
                    f"{type(frame).__name__}: the other end took nothing for {timeout_s:g} s"
                )
            poll = select.poll()
            poll.register(self._sock, wait_for)
            poll.poll(min(left_s, RETRY_S) * 1000)

    def try_send(self, frame: AnyFrame) -> bool:
        """Send a frame if that needs no waiting; False says that it was dropped.

        Raises:
            ChannelClosed: the other end is gone.
            LocalError, FrameError: closed here, or too large a frame.
        """
        return not self._try_sendmsg(frames.encode(frame), ())

    def _try_sendmsg(self, data: bytes, fds: Sequence[int]) -> int:
        """Send; return 0 if it is sent, else the poll events to wait for before the next try."""
        self._check_open()
        try:
            sendmsg(self._sock, data, fds)
        except BlockingIOError:
            return select.POLLOUT
        except OSError as error:
            if error.errno in SHORT_OF:
                return select.POLLHUP
            if error.errno in PEER_GONE:
                raise ChannelClosed(f"the control channel's other end is gone: {error}") from None
            raise LocalError(f"can't send on the control channel: {error}") from None
        return 0

    def recv(self, timeout_s: float) -> tuple[AnyFrame, list[int]]:
        """Wait for the next frame; its descriptors (close-on-exec) are the caller's to close.

        Signals don't cut the wait short; their handlers run meanwhile.

        Raises:
            ChannelTimeout: nothing came for `timeout_s`.
            ChannelClosed: the other end is gone and all it sent has been read.
            FrameError: a datagram that is no frame; it is dropped, its descriptors closed.
            LocalError: closed here.
        """
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return recvmsg(self._sock)
            except BlockingIOError:
                left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ChannelTimeout(f"no control frame for {timeout_s:g} s")
            self._poll_in.poll(left_s * 1000)

    def pending(self) -> bool:
        """Say whether `recv` would return or raise at once (a frame, or the end, is there)."""
        self._check_open()
        return bool(self._poll_in.poll(0))

    def arm_sigio(self, signum: int = signal.SIGIO) -> None:
        """Have an arriving frame (or the peer's end) send `signum` to this process.

        It is how a frame interrupts a runner that sleeps on a ring. A frame that came before is
        not announced, and one that comes just before the sleep is not noticed by it: look at
        `pending()` first, and sleep in slices. Where the signal has its default action, which
        would kill, or is ignored, which would wake nobody, a handler that does nothing is set.

        Raises:
            LocalError: closed, or not called from the main thread.
        """
        self._check_open()
        if signal.getsignal(signum) in (signal.SIG_DFL, signal.SIG_IGN):
            try:
                signal.signal(signum, _do_nothing)
            except ValueError as error:
                raise LocalError(f"arm_sigio: {error}") from None
        fd = self._sock.fileno()
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signum)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)

    def _check_open(self) -> None:
        if self._sock.fileno() < 0:
            raise LocalError("the control channel is closed on this side")

    def close(self) -> None:
        """Close this end; a second time does nothing."""
        self._sock.close()


def _do_nothing(_signum: int, _frame: object) -> None:
    """Exist: a handler that is a function makes a system call return EINTR."""
