"""Output that can't fail: whoever reads it may go away, the run goes on.

`dsec-kernel run … | head` closes the pipe after ten lines, a terminal may be hung up, a disk behind
a redirection may be full. None of that may end a run, so a stream that fails falls silent.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def standard_streams() -> tuple[SafeStream, SafeStream]:
    """Stdout and stderr of this process. Where one was closed from outside (`>&-`) its number must
    not fall to the next thing that is opened, a socket or the journal."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    # Where Python found one closed it has None, which most code doesn't expect.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    return SafeStream(sys.stdout), SafeStream(sys.stderr)


class SafeStream:
    """Wraps stdout or stderr; enough of a text file for rich, structlog and click."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.silent = False
        # A character that the terminal's encoding lacks is no reason to fail, either.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]

    @property
    def encoding(self) -> str:
        """As of the wrapped stream."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether a person sits at the other end."""
        try:
            return not self.silent and self._stream.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        """As of the wrapped stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write, or do nothing if the stream has failed before."""
        if not self.silent:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._fall_silent()
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing if the stream has failed before."""
        if not self.silent:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._fall_silent()

    def line(self, text: str = "") -> None:
        """Write one line and flush it."""
        self.write(text + "\n")
        self.flush()

    def _fall_silent(self) -> None:
        self.silent = True
        # What is buffered can't be written; at exit Python would complain about it.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), self._stream.fileno())
