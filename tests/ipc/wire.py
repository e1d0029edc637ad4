"""What the channel tests share: descriptors to send, raw datagrams, a process out of descriptors.

Owns helpers only; knows nothing of frames or channels.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import resource
import socket
from collections.abc import Iterator


def descriptors() -> set[int]:
    """Open descriptors of this process, without that of the listing."""
    names = {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    return {fd for fd in names if is_open(fd)}


def is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def memfds(count: int) -> list[int]:
    return [os.memfd_create(f"test-{i}") for i in range(count)]


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def send_raw(sock: socket.socket, data: bytes, fds: list[int] | None = None) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
