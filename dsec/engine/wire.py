"""Bytes in and out of a stream that somebody else made: a pipe, a socket, a terminal or a file.

Owns what the kinds need so that nobody ever waits: whatever comes may be shared with the program at
the other end, so its flags stay as they are, and a reader or writer that would have to wait says
so. Knows no loop and no protocol.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

READ_BYTES = 256 * 1024
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Wire:
    """One stream in both directions; takes its descriptors over.

    Attributes:
        source, sink: descriptors to be watched for reading and writing.
        watched: they can be; a regular file can't, and never makes anybody wait.
    """

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.watched = not stat.S_ISREG(os.fstat(source).st_mode)
        self._in = _as_socket(source)
        self._out = self._in if sink == source else _as_socket(sink)
        if self._out is None and not stat.S_ISREG(os.fstat(sink).st_mode):
            # A description of our own, whose flags are nobody else's.
            with contextlib.suppress(OSError):
                own = os.open(f"/proc/self/fd/{sink}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.close(sink)
                self.sink = own

    def read(self) -> bytes:
        """What is there; empty at the end. Call it when `source` is readable.

        Raises:
            BlockingIOError: nothing is there.
        """
        try:
            if self._in is not None:
                return self._in.recv(READ_BYTES, socket.MSG_DONTWAIT)
            return os.read(self.source, READ_BYTES)
        except ConnectionError:
            return b""
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal that was hung up
                return b""
            raise

    def write(self, data: bytes | memoryview) -> int:
        """How many of these bytes are sent.

        Raises:
            BlockingIOError: none can be at the moment.
            OSError: nobody reads them any more.
        """
        if self._out is not None:
            return self._out.send(data, _SEND_FLAGS)
        return os.write(self.sink, data)

    def close(self) -> None:
        """Close both; again is no error."""
        if self.source < 0:
            return
        for fd in {self.source, self.sink}:
            with contextlib.suppress(OSError):
                os.close(fd)
        for each in (self._in, self._out):
            if each is not None:
                each.detach()
        self.source = self.sink = -1


def _as_socket(fd: int) -> socket.socket | None:
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        return None
    return socket.socket(fileno=fd)


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a Unix socket, as it was when they were connected."""
    # struct ucred: pid, uid and gid, 32 bits each.
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], "little")
