"""The files that runners and zygotes write their stdout and stderr to.

Owns their names, their size and their last lines. Files and no pipes: a pipe would have to be
drained by the supervisor, and a stopped supervisor would stop whoever prints.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections import deque
from pathlib import Path

TAIL_BYTES = 16 * 1024  # both stacks of a native crash, the compiled one and the Python one
NAME_BYTES_MAX = 180
LOOKS_PER_TICK = 100  # files whose size is looked at in one call of `rotate`
COPY_BYTES = 1 << 20


def file_name(text: str) -> str:
    """A name of any script as a file name: letters, digits, `-` and `_` stay, all else becomes
    `%XX`; distinct names stay distinct. A long one is cut, and ends in a hash and its number."""
    safe = "".join(
        c if c.isalnum() or c in "-_" else "".join(f"%{b:02X}" for b in c.encode(errors="replace"))
        for c in text
    )
    data = safe.encode()
    if len(data) <= NAME_BYTES_MAX:
        return safe
    number = re.search(r"-\d{1,9}$", safe)
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[:150].decode(errors='ignore')}~{digest}{number[0] if number else ''}"


class Logs:
    """The folder `logs` of one run: `<stem>.out` and `<stem>.err`."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._sizes: dict[str, int] = {}
        self._turn: deque[str] = deque()
        self._growing: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, stem: str, fds: list[int]) -> int:
        """Open both for appending and put their descriptors, the caller's to close, behind `fds`;
        return where on stderr this incarnation's output begins."""
        for path in (f"{self._folder}/{stem}.out", f"{self._folder}/{stem}.err"):
            fds.append(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))
            if path not in self._sizes:
                self._sizes[path] = 0
                self._turn.append(path)
        return os.fstat(fds[-1]).st_size

    def tail(self, stem: str, begin: int) -> str:
        """The last lines on stderr, none of them from before `begin`."""
        try:
            with (self._folder / f"{stem}.err").open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                begin = begin if begin <= end else 0  # rotated meanwhile
                start = file.seek(max(begin, end - TAIL_BYTES))
                data = file.read(TAIL_BYTES)
        except OSError:
            return ""
        if start > begin:
            data = data.partition(b"\n")[2] or data
        return data.decode(errors="replace").strip("\n")

    def rotate(self) -> None:
        """Cut files that have grown too large, their last part kept in `.1`. Each call looks at a
        few files in their turn, and at all that were growing quickly when they were looked at."""
        looked = set(self._growing)
        for _ in range(min(LOOKS_PER_TICK, len(self._turn))):
            looked.add(self._turn[0])
            self._turn.rotate(-1)
        for path in looked:
            # A full disk or a removed folder is for the writers to notice.
            with contextlib.suppress(OSError):
                self._look(path)

    def _look(self, path: str) -> None:
        size = os.stat(path).st_size  # noqa: PTH116 (six thousand Paths take their time)
        grown = size - self._sizes[path]
        self._sizes[path] = size
        if grown > self._bytes_max // 8 and len(self._growing) < LOOKS_PER_TICK:
            self._growing.add(path)
        else:
            self._growing.discard(path)
        if size > self._bytes_max:
            self._cut(path, size)
            self._sizes[path] = 0

    def _cut(self, path: str, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(path, "rb", buffering=0) as old:  # noqa: PTH123
            kept = os.open(f"{path}.1", flags, 0o644)
            try:
                at = size - self._bytes_max
                # To its end, where that can be reached: somebody may write quicker than we copy.
                while at < size + self._bytes_max and (
                    n := os.sendfile(kept, old.fileno(), at, COPY_BYTES)
                ):
                    at += n
            finally:
                os.close(kept)
        # The writers have it open for appending, so they go on at its new start.
        os.truncate(path, 0)
