"""The writer and the reader of the journal, where each committed transition stands once.

Owns how a journal grows and how it is read back; its bytes are described in blocks.py. Must not
know rings, layouts or frames. It is here, apart from the recorder, because what is promised of
the file (whole blocks only, after a full disk and after a kill at any instruction) can be proven
of this file alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec
import xxhash

from dsec.errors import JournalError
from dsec.runners.blocks import (
    ALIGN,
    BATCHES,
    Abandoned,
    Block,
    Declaration,
    Header,
    Kind,
    Run,
    Totals,
    Trailer,
    file_header,
    pack_header,
    parse_header,
    read_block,
    read_trailer,
)
from dsec.runners.scan import AgentIndex, Index, scan
from dsec.sml.chain import MARK_EVERY, START, unpack

__all__ = [
    "FILE_NAME",
    "KEPT_NAME",
    "Abandoned",
    "AgentIndex",
    "Block",
    "Declaration",
    "DiskError",
    "Index",
    "JournalReader",
    "JournalWriter",
    "Kind",
    "Run",
    "Totals",
    "Trailer",
]

FILE_NAME: Final = "journal.dsj"
KEPT_NAME: Final = "kept.dsj"
"""What the journal is called where Parquet files were made of it although the run may go on."""

RESERVE_BYTES: Final = 1 << 20

_ZEROS: Final = bytes(ALIGN)
_DISK_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


class DiskError(JournalError):
    """The file system refused a write (full, over quota, I/O error). The file ends, or will be
    made to end before the next write, at the last whole block; the append may be tried again."""


class JournalWriter:
    """Appends blocks to one journal. One writer at a time (the run directory's lock sees to it).

    A path that exists is continued, which is what a restarted recorder does: a torn tail is cut
    off and `index` then says what is there. No append is buffered: when one returns, the bytes
    are the kernel's and outlive this process, and when it raises, none of them count.

    Some room on the disk is kept aside by an unnamed file, where the file system lets us: a run
    that ends because the disk is full can then still write its summary (`give_back_room`).

    Raises:
        JournalError: the file can't be opened, is no journal, or is damaged before its tail.
        DiskError: there is no room even for the file's header.
    """

    def __init__(self, path: str | Path, run: Run) -> None:
        self.path = Path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise JournalError(f"can't write the journal {self.path}: {error.strerror}") from None
        self.index = Index()
        self._reserve = _reserve(self.path.parent)
        self.end = 0
        self._untidy = False
        try:
            self._begin(run)
        except BaseException:
            self.close()
            raise

    def _begin(self, run: Run) -> None:
        if os.fstat(self._fd).st_size:
            self.index = scan(self._fd, str(self.path), cut_last=True)
            self._untidy = self.index.torn_bytes > 0
        if self.index.end >= ALIGN:
            self.end = self.index.end
        else:
            self._write([file_header()])
        if self.index.run is None:
            self.append(Kind.RUN, msgspec.msgpack.encode(run))
            self.index.run = run

    def append(
        self,
        kind: Kind,
        env: bytes | memoryview = b"",
        policy: bytes | memoryview = b"",
        reward: bytes | memoryview = b"",
        *,
        agent: int = 0,
        count: int = 0,
        first_seq: int = 0,
        trailer: Trailer | None = None,
    ) -> None:
        """Append one block; its payload is the three parts, which are written as they lie, and
        behind a batch its trailer.

        Raises:
            DiskError: nothing was appended; the same call may be made again.
            JournalError: the writer is closed or the file can't be written at all.
        """
        last = (trailer or Trailer()).pack() if kind in BATCHES else b""
        length = len(env) + len(policy) + len(reward) + len(last)
        digest = xxhash.xxh3_64()
        parts = [part for part in (env, policy, reward, last) if len(part)]
        for part in parts:
            digest.update(part)
        header = Header(
            self.end, kind, agent, count, first_seq, length, len(env), len(policy),
            digest.intdigest(),
        )  # fmt: skip
        self._write([pack_header(header), *parts, _ZEROS[: -length % ALIGN]])

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Write all of `buffers` at the end, or leave the file ending where it did."""
        if self._fd < 0:
            raise JournalError(f"the journal {self.path} is closed")
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        position = self.end
        try:
            if self._untidy:
                os.ftruncate(self._fd, self.end)
                self._untidy = False
            while views:
                written = os.pwritev(self._fd, views, position)
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                position += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if views and written:
                    views[0] = views[0][written:]
        except OSError as error:
            self._untidy = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.end)
                self._untidy = False
            kind = DiskError if error.errno in _DISK_ERRNOS else JournalError
            raise kind(f"can't write the journal {self.path}: {error.strerror}") from None
        self.end = position

    def gone(self) -> str:
        """What became of the file, should it not be the one at its path any more; else empty. No
        write notices that."""
        try:
            there, mine = self.path.stat(), os.fstat(self._fd)
        except OSError as error:
            return f"the journal {self.path} is gone: {error.strerror}"
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            return f"the journal {self.path} is gone: another file is in its place"
        return ""

    def sync(self) -> None:
        """Have everything appended so far on the disk itself.

        Raises:
            DiskError: the disk didn't take it.
        """
        try:
            if self._untidy:
                os.ftruncate(self._fd, self.end)
                self._untidy = False
            os.fsync(self._fd)
        except OSError as error:
            raise DiskError(f"can't sync the journal {self.path}: {error.strerror}") from None

    def give_back_room(self) -> None:
        """Let others have the room that was kept aside; again is no error."""
        if self._reserve >= 0:
            fd, self._reserve = self._reserve, -1
            os.close(fd)

    def close(self) -> None:
        """Close the file; again is no error."""
        self.give_back_room()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _reserve(folder: Path) -> int:
    """An unnamed file that takes RESERVE_BYTES; -1 where that can't be had."""
    fd = -1
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(fd, 0, RESERVE_BYTES)
    except OSError:
        if fd >= 0:
            os.close(fd)
        return -1
    return fd


class JournalReader:
    """Reads one journal, of a finished run or of one that is still being written.

    The index is built at once from the headers alone; payloads are read, and verified, on demand.

    Args:
        salvage: end at the first damage instead of raising; `index.damage` then names it.

    Raises:
        JournalError: there is no such file, it is no journal, or it is damaged.
    """

    def __init__(self, path: str | Path, *, salvage: bool = False) -> None:
        self.path = Path(path)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"can't read the journal {self.path}: {error.strerror}") from None
        try:
            self.index = scan(self._fd, str(self.path), salvage=salvage)
        except BaseException:
            self.close()
            raise

    def read(self, offset: int) -> Block:
        """Read and verify the block at `offset`.

        Raises:
            JournalError: the block is damaged, or none begins there.
        """
        if self._fd < 0:
            raise JournalError(f"the journal {self.path} is closed")
        return read_block(self._fd, self._header(offset), str(self.path))

    def _header(self, offset: int) -> Header:
        return parse_header(os.pread(self._fd, ALIGN, offset), offset, str(self.path))

    def blocks(self) -> Iterator[Block]:
        """All whole blocks, in file order, each verified."""
        offset = ALIGN
        while offset < self.index.end:
            yield self.read(offset)
            offset = self._header(offset).end

    def batches(self, agent: int) -> Iterator[Block]:
        """The batches of one agent, in order."""
        for offset in self.index.agents[agent].batches:
            yield self.read(offset)

    def trailer(self, offset: int) -> Trailer:
        """The trailer of the batch at `offset`, without the batch.

        Raises:
            JournalError: it is damaged, or no batch begins there.
        """
        return read_trailer(self._fd, self._header(offset), str(self.path))

    def link(self, agent: AgentIndex) -> bytes:
        """The value of an agent's hash chain after all that is journaled of it; empty where nobody
        vouches for it.

        Raises:
            JournalError: the last batch is damaged.
        """
        if not agent.batches:
            return b"" if agent.declaration.first else START
        last = self.trailer(agent.batches[-1]).last
        return last.value if last is not None else b""

    def marks(self, agent: AgentIndex) -> list[bytes]:
        """The values of an agent's hash chain at the multiples of MARK_EVERY.

        Raises:
            JournalError: a batch is damaged.
        """
        found: dict[int, bytes] = {}
        for offset in agent.batches:
            for mark in unpack(self.trailer(offset).marks):
                if mark.seq and mark.seq % MARK_EVERY == 0:
                    found[mark.seq] = mark.value
        return list(found.values())

    def close(self) -> None:
        """Close the file; again is no error."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
