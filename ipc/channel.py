"""Control channels: frames over SOCK_SEQPACKET sockets, descriptors beside them by SCM_RIGHTS.

This file owns everything that touches a control socket, and is the one place where an operating
error of a socket or a peer's nonsense becomes a typed error. It must not know what a frame means
(see frames.py) and imports no numpy: the supervisor loads it.

One frame is one datagram, so a frame is whole or not there, whoever dies. Two faces of the same
wire: `Channel` blocks with a limit (zygotes, runners, the recorder), `AsyncChannel` never blocks
(the supervisor's loop). An empty datagram can't be told from the end of the stream and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dsec.errors import (
    ChannelClosed,
    ChannelOverflow,
    ChannelTimeout,
    FrameError,
    LocalError,
    MachineError,
    PeerError,
)
from dsec.ipc import frames
from dsec.ipc.frames import FRAME_BYTES_MAX, AnyFrame

FDS_MAX = 16
FRAMES_PER_WAKE_MAX = 16
SEND_QUEUE_FRAMES_MAX = 256
SEND_QUEUE_BYTES_MAX = 4 * 1024 * 1024
RETRY_S = 0.02
TIMEOUT_DEFAULT_S = 10.0

_FD_BYTES = 4
_ANCILLARY_BYTES = socket.CMSG_SPACE(FDS_MAX * _FD_BYTES)
_RECV_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_PEER_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN})
# The kernel is short of memory or of descriptors in flight; unlike with EAGAIN, the socket stays
# writable meanwhile, so polling for writability would spin.
_SHORT_OF = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new control channel, both close-on-exec.

    Raises:
        MachineError: no descriptors are left.
    """
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise _short_of_descriptors(error, 2) from None
    for end in ends:
        # The kernel doubles this and caps it at net.core.wmem_max; a frame of the largest size
        # must fit beside its bookkeeping, or sendmsg says EMSGSIZE for ever.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * FRAME_BYTES_MAX)
    return ends


def _short_of_descriptors(error: OSError, need: int) -> MachineError:
    limit = os.sysconf("SC_OPEN_MAX")
    return MachineError(
        f"{need} more descriptors are needed, and this process may have {limit} ({error})",
        "Raise the limit with `ulimit -n`, or run fewer agents.",
    )


def _close_fds(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _check_fds(fds: Sequence[int]) -> None:
    if len(fds) > FDS_MAX:
        raise LocalError(f"{len(fds)} descriptors beside one frame; at most {FDS_MAX} fit")


def _sendmsg(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send one datagram or raise OSError; a datagram is never sent in part."""
    if fds:
        rights = b"".join(fd.to_bytes(_FD_BYTES, "little") for fd in fds)
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _SEND_FLAGS)
    else:
        sock.send(data, _SEND_FLAGS)


def _recvmsg(sock: socket.socket) -> tuple[AnyFrame, list[int]]:
    """Receive one frame and its descriptors without blocking.

    Raises:
        BlockingIOError: nothing is there.
        ChannelClosed: the other end is gone and all that it sent has been read.
        FrameError: the datagram is no frame; its descriptors are closed.
    """
    data, ancillary, flags = _recv_datagram(sock)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(payload) - len(payload) % _FD_BYTES
            fds += memoryview(payload[:whole]).cast("i")
    try:
        if flags & socket.MSG_CTRUNC:
            raise FrameError(
                f"descriptors were lost beside a frame: more than {FDS_MAX} were sent, or this"
                f" process is at its limit of {os.sysconf('SC_OPEN_MAX')} open files"
            )
        if flags & socket.MSG_TRUNC:
            raise FrameError(f"a datagram is larger than {FRAME_BYTES_MAX} bytes")
        if not data:
            raise ChannelClosed("the other end of the control channel is closed")
        return frames.decode(data), fds
    except PeerError:
        _close_fds(fds)
        raise


def _recv_datagram(sock: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int]:
    for _ in range(2):
        try:
            data, ancillary, flags, _ = sock.recvmsg(FRAME_BYTES_MAX, _ANCILLARY_BYTES, _RECV_FLAGS)
            return data, ancillary, flags
        except OSError as error:
            if error.errno not in _PEER_GONE:
                raise
            # A peer that closes with unread frames in its own queue leaves ECONNRESET here, once,
            # ahead of the frames it sent before; a second try reads those.
    raise ChannelClosed("the other end of the control channel is gone")


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
        _check_fds(fds)
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
            _sendmsg(self._sock, data, fds)
        except BlockingIOError:
            return select.POLLOUT
        except OSError as error:
            if error.errno in _SHORT_OF:
                return select.POLLHUP
            if error.errno in _PEER_GONE:
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
                return _recvmsg(self._sock)
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
        _check_fds(fds)
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
            _sendmsg(self._sock, data, fds)
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock.fileno(), self._writable)
            return False
        except OSError as error:
            if error.errno in _PEER_GONE:
                # What it sent before it died is still to be read; the reader meets the end.
                self._peer_gone = True
                return True
            if error.errno in _SHORT_OF:
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
            _close_fds(kept)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise _short_of_descriptors(error, len(fds)) from None
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
            _close_fds(fds)
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
            _close_fds(fds)
        self._queue.clear()
        self._queued_bytes = 0

    def _readable(self) -> None:
        # Bounded, so that one chatty runner can't starve the others of the loop; what is left
        # makes the descriptor readable again at once.
        for _ in range(FRAMES_PER_WAKE_MAX):
            if self.closed:
                return
            try:
                frame, fds = _recvmsg(self._sock)
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
