"""Getting a journal ready to go on: each agent's part of it is cut back to where that begins again.

An agent goes on from a sequence number n. What the journal has of it before transition n stays, and
observation n, which stands with transition n - 1; everything from transition n on is done again.
One block says so for each agent (a CUT, see blocks.py), so that a kill at any instruction leaves
the former recording or the one to go on with. Knows raw records, and no space.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
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


def go_on(path: Path, first: Mapping[str, int], ending: Collection[str] = ()) -> None:
    """Cut a journal back, and open it again if it was closed.

    Args:
        path: the journal; nobody else writes it.
        first: for each agent that goes on the first transition that is to come. Agents of which
            the journal holds nothing need no cut; others are left as they are.
        ending: agents that end right there: their streams' last observation stays the last.

    Raises:
        JournalError: it is damaged, or holds less of an agent than that; it is as it was then.
        DiskError: there is no room; some agents may be cut and others not yet.
    """
    with JournalReader(path) as journal:
        cuts = {}
        for agent in journal.index.agents:
            name = agent.declaration.agent
            if name in first:
                goes_on = name not in ending
                block = _cut(journal, agent, first[name], goes_on=goes_on)
                cuts[agent.declaration.index] = block
        run = journal.index.run or Run("", 0)
    writer = JournalWriter(path, run)
    try:
        writer.append(Kind.RESUMED)
        for number, block in cuts.items():
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
    place = max(i for i, each in enumerate(agent.firsts) if each < n)
    block = journal.read(agent.batches[place])
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
