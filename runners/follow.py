"""The hash chain's values out of a journal that somebody is writing: for atoms, as a run goes on.

Owns no more than a place in the file. Only headers and the trailers of batches are read, so an
agent's value at a boundary costs some microseconds and no numpy, whatever its records hold. What
isn't committed yet has no value yet: the recorder writes at least five times a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsec.errors import JournalError
from dsec.runners.blocks import (
    ALIGN,
    BATCHES,
    Declaration,
    Kind,
    parse_header,
    read_trailer,
    unpack_block,
)
from dsec.runners.journal import FILE_NAME
from dsec.sml.chain import BEGIN, START, Mark, unpack

MARKS_KEPT: Final = 1024


class ChainFollower:
    """Looks up chains at boundaries, in the journal of a run that goes on.

    Args:
        run_dir: the run directory; there may be no journal in it yet.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self._path = Path(run_dir) / FILE_NAME
        self._fd = -1
        self._offset = ALIGN
        self._agents: list[str] = []
        self._values: dict[str, dict[int, Mark]] = {}

    def at(self, agent: str, seq: int) -> bytes:
        """The value of the agent's chain at `seq`, which must be a boundary; 16 bytes.

        Returns:
            Nothing while the transitions before it are not committed, where they are no boundary,
            where that was more than MARKS_KEPT boundaries ago, or where nothing is recorded.

        Raises:
            JournalError: the journal is damaged.
        """
        if seq == 0:
            return START
        found = self.mark(agent, seq)
        return b"" if found is None else found.value

    def mark(self, agent: str, seq: int) -> Mark | None:
        """All that it takes to go on with the chain at `seq`; None where `at` has nothing. Raises
        as `at`."""
        if seq == 0:
            return BEGIN
        found = self._values.get(agent, {}).get(seq)
        if found is None:
            self._read_on()
            found = self._values.get(agent, {}).get(seq)
        return found

    def _read_on(self) -> None:
        """Take in what has been written since."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
        size = os.fstat(self._fd).st_size
        path = str(self._path)
        while self._offset + ALIGN <= size:
            header = parse_header(os.pread(self._fd, ALIGN, self._offset), self._offset, path)
            if header.end > size:
                return  # it is being written
            if header.kind is Kind.DECLARATION:
                self._agents.append(unpack_block(self._fd, header, path, Declaration).agent)
            elif header.kind in BATCHES:
                self._keep(header.agent, read_trailer(self._fd, header, path).marks)
            self._offset = header.end

    def _keep(self, agent: int, marks: bytes | memoryview) -> None:
        if agent >= len(self._agents):
            raise JournalError(f"{self._path}: agent {agent} was never declared")
        values = self._values.setdefault(self._agents[agent], {})
        for mark in unpack(marks):
            values[mark.seq] = mark
        for old in list(values)[: max(0, len(values) - MARKS_KEPT)]:
            del values[old]

    def close(self) -> None:
        """Close the journal; again is no error."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
