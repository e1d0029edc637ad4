"""The asyncio face of a control channel: frames to and from many peers on one loop.

This file owns the queueing: nothing here waits. The blocking face is in channel.py, the system
calls below both in datagrams.py. It imports no numpy: the supervisor loads it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence

from dsec.errors import ChannelClosed, ChannelOverflow, FrameError, LocalError, PeerError
from dsec.ipc import frames
from dsec.ipc.datagrams import (
    PEER_GONE,
    RETRY_S,
    SHORT_OF,
    check_fds,
    close_fds,
    recvmsg,
    sendmsg,
    short_of_descriptors,
)
from dsec.ipc.frames import AnyFrame

FRAMES_PER_WAKE_MAX = 16
SEND_QUEUE_FRAMES_MAX = 256
SEND_QUEUE_BYTES_MAX = 4 * 1024 * 1024


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
        # No deque: an empty one takes ten times the memory, and there may be thousands of channels.
        self._queue: list[tuple[bytes, tuple[int, ...]]] = []
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
            del self._queue[0]
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
