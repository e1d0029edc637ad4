"""One frame as one datagram with its descriptors: the system calls below both faces of a channel.

This file owns SCM_RIGHTS, the flags and the error numbers of SOCK_SEQPACKET sockets, and turns
them into typed errors. It waits for nothing and knows no loop (see channel.py) and no meaning of
a frame (see frames.py). It imports no numpy: the supervisor loads it.

A frame is whole or not there, whoever dies. An empty datagram can't be told from the end of the
stream and ends it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dsec.errors import ChannelClosed, FrameError, LocalError, MachineError, PeerError
from dsec.ipc import frames
from dsec.ipc.frames import FRAME_BYTES_MAX, AnyFrame

FDS_MAX = 16

_FD_BYTES = 4
_ANCILLARY_BYTES = socket.CMSG_SPACE(FDS_MAX * _FD_BYTES)
_RECV_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
PEER_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN})
# The kernel is short of memory or of descriptors in flight; unlike with EAGAIN, the socket stays
# writable meanwhile, so polling for writability would spin.
SHORT_OF = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM})
RETRY_S = 0.02  # hence the time to the next try


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new control channel, both close-on-exec.

    Raises:
        MachineError: no descriptors are left.
    """
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise short_of_descriptors(error, 2) from None
    for end in ends:
        # The kernel doubles this and caps it at net.core.wmem_max; a frame of the largest size
        # must fit beside its bookkeeping, or sendmsg says EMSGSIZE for ever.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * FRAME_BYTES_MAX)
    return ends


def short_of_descriptors(error: OSError, need: int) -> MachineError:
    """Return the error that says how many descriptors are missing and how to get them."""
    limit = os.sysconf("SC_OPEN_MAX")
    return MachineError(
        f"{need} more descriptors are needed, and this process may have {limit} ({error})",
        "Raise the limit with `ulimit -n`, or run fewer agents.",
    )


def close_fds(fds: Iterable[int]) -> None:
    """Close all of them, whatever happens with one."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def check_fds(fds: Sequence[int]) -> None:
    """Raise LocalError if they don't fit beside one frame."""
    if len(fds) > FDS_MAX:
        raise LocalError(f"{len(fds)} descriptors beside one frame; at most {FDS_MAX} fit")


def sendmsg(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send one datagram or raise OSError; a datagram is never sent in part."""
    if fds:
        rights = b"".join(fd.to_bytes(_FD_BYTES, "little") for fd in fds)
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _SEND_FLAGS)
    else:
        sock.send(data, _SEND_FLAGS)


T = TypeVar("T")


def recvmsg(sock: socket.socket) -> tuple[AnyFrame, list[int]]:
    """`receive` for the frames of control channels."""
    return receive(sock, frames.decode)


def receive(sock: socket.socket, decode: Callable[[bytes], T]) -> tuple[T, list[int]]:
    """Receive one message, which `decode` makes of a datagram, and its descriptors; don't block.

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
        return decode(data), fds
    except PeerError:
        close_fds(fds)
        raise


def _recv_datagram(sock: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int]:
    for _ in range(2):
        try:
            data, ancillary, flags, _ = sock.recvmsg(FRAME_BYTES_MAX, _ANCILLARY_BYTES, _RECV_FLAGS)
            return data, ancillary, flags
        except OSError as error:
            if error.errno not in PEER_GONE:
                raise
            # A peer that closes with unread frames in its own queue leaves ECONNRESET here, once,
            # ahead of the frames it sent before; a second try reads those.
    raise ChannelClosed("the other end of the control channel is gone")
