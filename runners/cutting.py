"""Getting a journal ready to go on: each agent's part of it is cut back to where that begins again.

An agent goes on from a sequence number n. What the journal has of it before transition n stays, and
observation n, which stands with transition n - 1; everything from transition n on is done again.
One block says so for each agent (a CUT, see blocks.py), so that a kill at any instruction leaves
the former recording or the one to go on with. What is to be written is known, and all that stays is
proven, before anything is written. Knows raw records, and no space.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.errors import CorruptRingError, JournalError
from dsec.ipc.join import Record, iter_records
from dsec.ipc.ring import FLAG_END, stride
from dsec.ipc.terms import FLAG_ASIDE, FLAG_INFRA
from dsec.runners.blocks import Block, Declaration, Trailer
from dsec.runners.journal import AgentIndex, JournalReader, JournalWriter, Kind, Run
from dsec.sml.chain import MARK_BYTES, unpack

_FLAGS: Final = struct.Struct("<H")
_FLAGS_AT: Final = 26
"""Where a record's header has its flags (dsec_head of ipc/record.h)."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """What is to be written into a journal, so that it goes on.

    Attributes:
        path: where the journal lay when this was decided.
        end: its length without a torn tail.
        cuts: the block of each agent that is cut back, by its index.
    """

    path: Path
    end: int
    run: Run
    cuts: Mapping[int, Block]


def decide(path: Path, first: Mapping[str, int], ending: Collection[str] = ()) -> Cutting:
    """Find out how a journal is cut back, and read all of it that stays. Changes nothing.

    Args:
        path: the journal; nobody else writes it.
        first: for each agent that goes on the first transition that is to come. Agents of which
            the journal holds nothing need no cut; others stay as they are.
        ending: agents that end right there: their streams' last observation stays the last.

    Raises:
        JournalError: what stays is damaged, or is less of an agent than that.
    """
    with JournalReader(path) as journal:
        cuts = {}
        for agent in journal.index.agents:
            name = agent.declaration.agent
            n = first.get(name)
            stays = agent.batches if n is None else agent.batches[: _needed(agent, n)]
            for offset in stays:
                journal.read(offset)
            if n is not None:
                goes_on = name not in ending
                cuts[agent.declaration.index] = _cut(journal, agent, n, goes_on=goes_on)
        return Cutting(path, journal.index.end, journal.index.run or Run("", 0), cuts)


def carry_out(decided: Cutting, path: Path) -> None:
    """Cut a journal back, and open it again if it was closed.

    Args:
        path: where it lies by now.

    Raises:
        JournalError: it can't be written, or is not what it was.
        DiskError: there is no room; some agents may be cut and others not yet.
    """
    writer = JournalWriter(path, decided.run)
    try:
        if writer.index.end != decided.end:
            raise JournalError(f"{path} was written by somebody else meanwhile")
        writer.append(Kind.RESUMED)
        for number, block in decided.cuts.items():
            writer.append(
                *(Kind.CUT, *block.parts),
                agent=number,
                count=block.count,
                first_seq=block.first_seq,
                trailer=block.trailer,
            )
        writer.sync()
    finally:
        writer.close()


def _needed(agent: AgentIndex, n: int) -> int:
    """How many batches begin before transition n."""
    return bisect.bisect_left(agent.firsts, n)


def _cut(journal: JournalReader, agent: AgentIndex, n: int, *, goes_on: bool) -> Block:
    """What takes the place of the last batch that is needed, and of all after it."""
    declared = agent.declaration
    if n > agent.seq_committed + 1:
        raise JournalError(
            f"{journal.path} holds {agent.seq_committed + 1} transitions of {declared.agent}, which"
            f" is to go on after {n}"
        )
    nothing = memoryview(b"")
    if n <= declared.first:
        return Block(0, Kind.CUT, declared.index, 0, declared.first, (nothing,) * 3)
    # The batch in which transition n - 1 is.
    block = journal.read(agent.batches[_needed(agent, n) - 1])
    try:
        return _part(block, n, declared, goes_on=goes_on)
    except CorruptRingError as error:
        raise JournalError(f"{journal.path}: block at offset {block.offset}: {error}") from None


def _part(block: Block, n: int, declared: Declaration, *, goes_on: bool) -> Block:
    """The transitions of a batch that come before n."""
    env, policy, reward = block.parts
    kept = bytearray(_before(env, n + 1))
    lost = 0
    for begin, record in _placed(env):
        ends = record.payload[declared.flags_off : declared.flags_off + declared.num_envs]
        if record.seq > n:
            lost += sum(bool(each & (FLAG_INFRA | FLAG_ASIDE)) for each in ends)
        elif record.seq == n:  # where a drain may have ended the stream
            flags = record.flags & ~FLAG_END if goes_on else record.flags | FLAG_END
            _FLAGS.pack_into(kept, begin + _FLAGS_AT, flags)
    marks = b"".join(mark.pack() for mark in unpack(block.trailer.marks) if mark.seq <= n)
    known = bool(marks) and unpack(marks[-MARK_BYTES:])[0].seq == n
    return Block(
        block.offset,
        Kind.CUT,
        block.agent,
        n - block.first_seq,
        block.first_seq,
        (memoryview(kept), _before(policy, n), _before(reward, n)),
        Trailer(marks if known else b"", block.trailer.lost - lost),
    )


def _placed(raw: memoryview) -> Iterator[tuple[int, Record]]:
    """Records with the place where each begins."""
    at = 0
    for record in iter_records(raw):
        yield at, record
        at += stride(len(record.payload))


def _before(raw: memoryview, seq: int) -> memoryview:
    """The records below a sequence number; they ascend."""
    end = next((begin for begin, record in _placed(raw) if record.seq >= seq), len(raw))
    return raw[:end]
