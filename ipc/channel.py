"""Control channels: frames over SOCK_SEQPACKET sockets, descriptors beside them.

This file owns the waiting and the queueing. Two faces of the same wire: `Channel` blocks with a
limit (zygotes, runners, the recorder), `AsyncChannel` never blocks (the supervisor's loop). The
system calls are in datagrams.py; what a frame means is no matter of either. It imports no numpy:
the supervisor loads it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from dsec.errors import (
    ChannelClosed,
    ChannelOverflow,
    ChannelTimeout,
    FrameError,
    LocalError,
    PeerError,
)
from dsec.ipc import frames
from dsec.ipc.datagrams import (
    FDS_MAX,
    PEER_GONE,
    SHORT_OF,
    check_fds,
    close_fds,
    pair,
    recvmsg,
    sendmsg,
    short_of_descriptors,
)
from dsec.ipc.frames import AnyFrame

__all__ = ["FDS_MAX", "AsyncChannel", "Channel", "pair"]

FRAMES_PER_WAKE_MAX = 16
SEND_QUEUE_FRAMES_MAX = 256
SEND_QUEUE_BYTES_MAX = 4 * 1024 * 1024
RETRY_S = 0.02
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


class AsyncChannel:
    """The face for an asyncio or uvloop loop: nothing here waits, nothing raises into the loop.

    `on_frame(frame, fds)` gets each frame and owns its descriptors. `on_close(reason)` is called
    at most once, from the loop, and never after `close()`: None if the other end is gone (frames
    that it sent before have been delivered), FrameError if it sent nonsense, ChannelOverflow if
    it let SEND_QUEUE_FRAMES_MAX frames or SEND_QUEUE_BYTES_MAX bytes pile up. The channel is
    closed by then.

    Args:
        sock: one end of `pair()`; the channel owns it from now on.
        loop: the running loop if None.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[AnyFrame, list[int]], None],
        on_close: Callable[[PeerError | None], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_close = on_close
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._queue: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._queued_bytes = 0
        self._writing = False
        self._retry: asyncio.TimerHandle | None = None
        self._peer_gone = False
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def closed(self) -> bool:
        """True once closed, from either side."""
        return self._sock.fileno() < 0

    @property
    def queued(self) -> int:
        """Frames accepted and not yet with the kernel."""
        return len(self._queue)

    def fileno(self) -> int:
        """Return the descriptor, -1 after close."""
        return self._sock.fileno()

    def send(self, frame: AnyFrame, fds: Sequence[int] = ()) -> bool:
        """Send a frame now or as soon as the other end reads; the caller may close `fds` at once.

        Returns:
            False if the channel is closed, or was closed by this call because the queue reached
            its bound, or the other end is known to be gone; `on_close` tells (or told) why.

        Raises:
            LocalError, FrameError: too many descriptors, a bad one, or too large a frame.
            MachineError: no descriptors are left to keep `fds` for later.
        """
        check_fds(fds)
        data = frames.encode(frame)
        if self.closed or self._peer_gone:
            return False
        if not self._queue and self._send_now(data, fds):
            return not self._peer_gone
        if (
            len(self._queue) >= SEND_QUEUE_FRAMES_MAX
            or self._queued_bytes + len(data) > SEND_QUEUE_BYTES_MAX
        ):
            overflow = ChannelOverflow(
                f"{type(frame).__name__}: {len(self._queue)} frames ({self._queued_bytes} bytes)"
                " already wait for an end that doesn't read"
            )
            # Not called from here: the caller is in the middle of something.
            self.close()
            self._loop.call_soon(self._on_close, overflow)
            return False
        self._queue.append((data, self._keep(fds)))
        self._queued_bytes += len(data)
        return True

    def _send_now(self, data: bytes, fds: Sequence[int]) -> bool:
        """Return True if the datagram needs no further attention: it is sent, or can't ever be."""
        try:
            sendmsg(self._sock, data, fds)
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock.fileno(), self._writable)
            return False
        except OSError as error:
            if error.errno in PEER_GONE:
                # What it sent before it died is still to be read; the reader meets the end.
                self._peer_gone = True
                return True
            if error.errno in SHORT_OF:
                self._stop_writing()
                if self._retry is None:
                    self._retry = self._loop.call_later(RETRY_S, self._retry_now)
                return False
            raise LocalError(f"can't send on the control channel: {error}") from None
        return True

    def _keep(self, fds: Sequence[int]) -> tuple[int, ...]:
        kept: list[int] = []
        try:
            for fd in fds:
                kept.append(os.dup(fd))
        except OSError as error:
            close_fds(kept)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise short_of_descriptors(error, len(fds)) from None
            raise LocalError(f"can't keep descriptor for sending: {error}") from None
        return tuple(kept)

    def _writable(self) -> None:
        while self._queue:
            data, fds = self._queue[0]
            try:
                if not self._send_now(data, fds):
                    return
            except LocalError as error:
                self._end(PeerError(str(error)))
                return
            if self._peer_gone:
                break
            self._queue.popleft()
            self._queued_bytes -= len(data)
            close_fds(fds)
        self._drop_queue()
        self._stop_writing()

    def _retry_now(self) -> None:
        self._retry = None
        self._writable()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _drop_queue(self) -> None:
        for _, fds in self._queue:
            close_fds(fds)
        self._queue.clear()
        self._queued_bytes = 0

    def _readable(self) -> None:
        # Bounded, so that one chatty runner can't starve the others of the loop; what is left
        # makes the descriptor readable again at once.
        for _ in range(FRAMES_PER_WAKE_MAX):
            if self.closed:
                return
            try:
                frame, fds = recvmsg(self._sock)
            except BlockingIOError:
                return
            except ChannelClosed:
                self._end(None)
                return
            except FrameError as error:
                self._end(error)
                return
            except OSError as error:
                self._end(PeerError(f"can't read the control channel: {error}"))
                return
            self._on_frame(frame, fds)

    def _end(self, reason: PeerError | None) -> None:
        self.close()
        self._on_close(reason)

    def close(self) -> None:
        """Close this end, dropping what is queued; a second time does nothing."""
        if self.closed:
            return
        self._drop_queue()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._stop_writing()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
