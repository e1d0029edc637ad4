"""An eventfd: how a ring wakes somebody who sleeps in an event loop.

A futex can't be waited for by asyncio. The writer of a ring writes this descriptor instead, only
while the reader says that it sleeps (`Reader.arm`). No numpy here: the kernel uses it too.
"""

from __future__ import annotations

import os


class Doorbell:
    """One eventfd, non-blocking and CLOEXEC.

    Args:
        fd: an eventfd received from another process, which this object then owns; a new one is
            made by default.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int = -1) -> None:
        if fd < 0:
            fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd = fd

    @property
    def fd(self) -> int:
        """The descriptor, for `add_reader` of a ring or of an event loop; -1 after close."""
        return self._fd

    def ring(self) -> None:
        """Make the descriptor readable. A counter that is full has been rung enough."""
        try:
            os.eventfd_write(self._fd, 1)
        except BlockingIOError:
            return

    def drain(self) -> int:
        """Return how often it was rung since the last call, 0 if not at all."""
        try:
            return os.eventfd_read(self._fd)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
