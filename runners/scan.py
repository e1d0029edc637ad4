"""What a whole journal says: its blocks in order, which of them count, and where it is damaged.

Owns the scan and the index that comes of it. Only headers are read, and payloads of the few kinds
that say something about an agent or the run as a whole.
"""

from __future__ import annotations

import bisect
import os
from array import array
from dataclasses import dataclass, field
from typing import Final

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
    damaged,
    file_header,
    parse_header,
    read_block,
    value_of,
    why_not,
)

_ZEROS: Final = bytes(ALIGN)
_SCAN_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class AgentIndex:
    """Where one agent's blocks are. Sixteen bytes a batch: a long run has millions of them.

    Attributes:
        batches, firsts: where each batch that counts is, and its first transition.
        totals: what the whole stream adds up to, where its end says so.
    """

    declaration: Declaration
    batches: array[int] = field(default_factory=lambda: array("Q"))
    firsts: array[int] = field(default_factory=lambda: array("Q"))
    remainders: list[int] = field(default_factory=list)
    seq_committed: int = -1
    abandoned: Abandoned | None = None
    ended: bool = False
    totals: Totals | None = None

    @property
    def transitions(self) -> int:
        """How many are committed."""
        return self.seq_committed + 1 - self.declaration.first

    @property
    def finished(self) -> bool:
        """Whether the stream was journaled to its end, clean or not."""
        return self.ended or self.abandoned is not None


@dataclass(slots=True)
class Index:
    """What a journal holds.

    Attributes:
        agents: by agent index.
        end: the offset after the last whole block.
        torn_bytes: what follows it: the tail that a killed writer left.
        closed: whether the recorder said that the file is complete.
        damage: with `salvage`, what ended the scan before the file's end; else empty.
    """

    run: Run | None = None
    agents: list[AgentIndex] = field(default_factory=list)
    end: int = 0
    torn_bytes: int = 0
    closed: bool = False
    damage: str = ""


def _zeros_from(fd: int, offset: int) -> bool:
    while chunk := os.pread(fd, _SCAN_CHUNK_BYTES, offset):
        if chunk.count(0) != len(chunk):
            return False
        offset += len(chunk)
    return True


def scan(fd: int, path: str, *, salvage: bool = False, cut_last: bool = False) -> Index:
    """Walk the headers and index the blocks.

    Args:
        salvage: let the first damage end the index instead of raising.
        cut_last: count a last block whose payload is wrong to the torn tail. A resuming writer
            may: it advances a cursor only after the write, so what it cuts off is still there.
    """
    index = Index()
    size = os.fstat(fd).st_size
    head = os.pread(fd, ALIGN, 0)
    if head != file_header()[: len(head)]:
        raise JournalError(f"{path}: {why_not(head)}")
    offset = ALIGN if size >= ALIGN else 0
    while ALIGN <= offset < size:
        try:
            head = os.pread(fd, ALIGN, offset)
            if len(head) < ALIGN or (head == _ZEROS and _zeros_from(fd, offset)):
                break
            header = parse_header(head, offset, path)
            if header.end > size:
                break
            last = header.end == size
            plain = header.kind not in (*BATCHES, Kind.REMAINDER)
            if cut_last and last:
                try:
                    read_block(fd, header, path)
                except JournalError:
                    break
            block = read_block(fd, header, path) if plain or last else None
            _index(index, header, block, path)
        except JournalError as error:
            if not salvage:
                raise
            index.damage = str(error)
            break
        offset = header.end
    index.end = offset
    index.torn_bytes = size - offset
    return index


def _index(index: Index, header: Header, block: Block | None, path: str) -> None:
    """Take one block into the index, if it makes sense after those before it."""
    kind = header.kind
    if kind is Kind.RESUMED:
        index.closed = False
        return
    if index.closed:
        raise damaged(path, header.offset, f"a {kind.name} block after the end of the journal")
    if block is not None and kind is Kind.RUN:
        index.run = value_of(block, Run)
        return
    if kind is Kind.CLOSED:
        index.closed = True
        return
    if block is not None and kind is Kind.DECLARATION:
        declaration = value_of(block, Declaration)
        if declaration.index != len(index.agents):
            raise damaged(path, header.offset, f"agent {declaration.agent!r} out of order")
        index.agents.append(AgentIndex(declaration, seq_committed=declaration.first - 1))
        return
    if header.agent >= len(index.agents):
        raise damaged(path, header.offset, f"agent {header.agent} was never declared")
    agent = index.agents[header.agent]
    if kind is Kind.CUT:
        _cut(agent, header, path)
    elif agent.finished:
        name = agent.declaration.agent
        raise damaged(path, header.offset, f"a {kind.name} block after the end of {name!r}")
    elif kind is Kind.BATCH:
        _add(agent, header, path)
    elif kind is Kind.REMAINDER:
        agent.remainders.append(header.offset)
    elif kind is Kind.END:
        agent.ended = True
        if block is not None and len(block.parts[0]):
            agent.totals = value_of(block, Totals)
    elif block is not None:
        agent.abandoned = value_of(block, Abandoned)


def _cut(agent: AgentIndex, header: Header, path: str) -> None:
    """Forget what the agent had from a batch on, its end included; the block's own comes instead.

    A cut that nothing remains of is a batch without a transition, and not one of those that count.
    """
    kept = bisect.bisect_left(agent.firsts, header.first_seq)
    del agent.batches[kept:], agent.firsts[kept:]
    agent.remainders.clear()
    agent.abandoned, agent.ended, agent.totals = None, False, None
    agent.seq_committed = header.first_seq - 1
    if not kept and header.first_seq != agent.declaration.first:
        raise damaged(path, header.offset, f"a cut at {header.first_seq}, where no batch begins")
    if header.count:
        _add(agent, header, path)


def _add(agent: AgentIndex, header: Header, path: str) -> None:
    """Take a batch in."""
    empty_yet = header.first_seq == agent.declaration.first and not agent.batches
    if (header.count == 0 and not empty_yet) or header.first_seq != agent.seq_committed + 1:
        raise damaged(
            path, header.offset,
            f"{header.count} transitions of {agent.declaration.agent!r} from {header.first_seq} on,"
            f" where {agent.seq_committed + 1} was next",
        )  # fmt: skip
    agent.batches.append(header.offset)
    agent.firsts.append(header.first_seq)
    agent.seq_committed += header.count
