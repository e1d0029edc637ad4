"""The bytes of a journal: blocks, and their headers.

This file owns the format of `journal.dsj`'s blocks; scan.py judges a whole file of them, journal.py
has the writer and the reader. It must not know what is in a record: the ring's bytes go in as they
are and come out as they were, so that committing costs one checksum and one write, and so that this
file needs neither numpy nor the layouts.

Format (little endian; everything starts at a multiple of 64 bytes)

    file   = file header, block*
    block  = block header (64 bytes), payload, zeros up to the next multiple of 64

A file header is the magic, the version and a checksum. A block header carries kind, agent index,
transition count, first sequence number, payload length, the lengths of the first two of the three
parts of a batch, the payload's checksum and, last, its own. Both checksums are xxh3-64; that of a
header is seeded with its place in the file, so a block in the wrong place is no block.

A batch ends with a trailer: the agent's hash chain at every boundary in it and at its end (marks
of sml/chain.py), then 16 bytes that say how many marks there are and how many steps of the agent
were lost with their environment so far. Who only wants these reads nothing else.

Nothing that is written is ever changed. Where an agent goes on from an earlier transition than its
last (a run that is resumed from an atom), a *cut* says so: it is a batch that takes the place of
all that the agent had from its first transition on, its end included.

Two kinds of damage are told apart. A *torn tail* is what a killed writer leaves: the file ends
inside a block, or in zeros (a file system that kept the size and lost the data). It is no error:
the recording ends at the last whole block. Anything else that doesn't add up, one flipped bit
included, is a `JournalError` which names the offset.
"""

from __future__ import annotations

import enum
import os
import struct
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import xxhash

from dsec.errors import JournalError
from dsec.sml.chain import MARK_BYTES, Mark, unpack

VERSION: Final = 2
ALIGN: Final = 64
BLOCK_BYTES_MAX: Final = 1 << 40

_FILE_MAGIC: Final = b"DSECJRNL"
_FILE_HEADER: Final = struct.Struct("<8sI44xQ")
_BLOCK_MAGIC: Final = b"DSJB"
_BLOCK_HEADER: Final = struct.Struct("<4sIIIqQQQQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_TRAILER: Final = struct.Struct("<QII")

assert _FILE_HEADER.size == ALIGN
assert _BLOCK_HEADER.size == ALIGN


class Kind(enum.IntEnum):
    """What a block is. The numbers are on disk; never renumber."""

    RUN = 1
    DECLARATION = 2
    BATCH = 3
    REMAINDER = 4
    ABANDONED = 5
    END = 6
    CLOSED = 7
    RESUMED = 8
    CUT = 9


BATCHES: Final = frozenset({Kind.BATCH, Kind.CUT})
"""Kinds of block that hold transitions, and a trailer behind them."""


class Run(msgspec.Struct, frozen=True):
    """The first block: what run this is."""

    name: str
    seed: int


class Declaration(msgspec.Struct, frozen=True):
    """One agent, and what is needed to take its records apart.

    `spaces` is what `ipc.layout.encode_spaces` made. The offsets into the env role's records are
    written down so that a reader with another layout notices it instead of reading nonsense.
    `first` is the agent's first transition here: others than 0 are of agents that were forked, or
    came from another host; of those `chain` is the mark that their hash chain goes on from.
    """

    agent: str
    index: int
    group: str
    num_envs: int
    spaces: bytes
    reward_off: int
    flags_off: int
    obs_off: int
    fixed_bytes: int
    first: int = 0
    chain: bytes = b""


class Totals(msgspec.Struct, frozen=True):
    """In the block that ends an agent's stream: what it adds up to, for who reads no records."""

    steps: int
    episodes: int
    return_sum: float
    returns_last: float
    chain: str = ""


class Abandoned(msgspec.Struct, frozen=True):
    """The agent's writers were fenced before their streams ended."""

    cause: str
    seq_last: int
    seq_committed: int
    action_last: str


@dataclass(frozen=True, slots=True)
class Trailer:
    """What stands at the end of a batch.

    Attributes:
        marks: the agent's chain at the batch's boundaries and, last, at its end; packed.
        lost: steps of the agent so far that were lost with their environment.
    """

    marks: bytes | memoryview = b""
    lost: int = 0

    @property
    def last(self) -> Mark | None:
        """The chain at the batch's end."""
        return unpack(self.marks[-MARK_BYTES:])[0] if self.marks else None

    def pack(self) -> bytes:
        """As bytes."""
        return b"".join((self.marks, _TRAILER.pack(self.lost, len(self.marks) // MARK_BYTES, 0)))


@dataclass(frozen=True, slots=True)
class Block:
    """One block, read and verified.

    `parts` are the raw records of the env, policy and reward role for BATCH and REMAINDER, and
    (payload, empty, empty) for every other kind. `first_seq` is the sequence number of the first
    transition of a BATCH (whose count is 0 where a stream ended with its first observation); the
    agent's last committed one for END and ABANDONED, -1 if none.
    """

    offset: int
    kind: Kind
    agent: int
    count: int
    first_seq: int
    parts: tuple[memoryview, memoryview, memoryview]
    trailer: Trailer = Trailer()


@dataclass(frozen=True, slots=True)
class Header:
    """A block's header, taken apart. `offset` is where it stands in the file."""

    offset: int
    kind: Kind
    agent: int
    count: int
    first_seq: int
    length: int
    env_bytes: int
    policy_bytes: int
    checksum: int

    @property
    def end(self) -> int:
        """The offset after the block and its padding."""
        return self.offset + ALIGN + self.length + -self.length % ALIGN


_Payload = TypeVar("_Payload", bound=msgspec.Struct)


def unpack_block(fd: int, header: Header, path: str, kind: type[_Payload]) -> _Payload:
    """Read a block that holds one value.

    Raises:
        JournalError: it is damaged.
    """
    return value_of(read_block(fd, header, path), kind)


def value_of(block: Block, kind: type[_Payload]) -> _Payload:
    """The one value that a block holds.

    Raises:
        JournalError: it is no such value.
    """
    try:
        return msgspec.msgpack.decode(block.parts[0], type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise JournalError(f"journal damaged at offset {block.offset}: {error}") from None


def file_header() -> bytes:
    """The first 64 bytes of every journal of this version."""
    head = _FILE_HEADER.pack(_FILE_MAGIC, VERSION, 0)[:-8]
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))


def why_not(head: bytes) -> str:
    """What is wrong with the first bytes of a file that should be a journal."""
    if head[:8] != _FILE_MAGIC:
        return "it is no journal"
    if len(head) == ALIGN and _CHECKSUM.unpack(head[-8:])[0] == xxhash.xxh3_64_intdigest(head[:-8]):
        found = _FILE_HEADER.unpack(head)[1]
        return (
            f"a journal of version {found}; this dsec-kernel reads version {VERSION}. Read it with"
            " the one that wrote it"
        )
    return "damaged at offset 0, or written by another version of dsec-kernel"


def damaged(path: str, offset: int, what: str) -> JournalError:
    """The error for a place in the file that is not as it was written."""
    return JournalError(f"{path}: damaged at offset {offset}: {what}")


def pack_header(header: Header) -> bytes:
    """The 64 bytes of a block's header."""
    head = _BLOCK_HEADER.pack(
        _BLOCK_MAGIC,
        header.kind,
        header.agent,
        header.count,
        header.first_seq,
        header.length,
        header.env_bytes,
        header.policy_bytes,
        header.checksum,
        0,
    )[:-8]
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head, seed=header.offset))


def parse_header(head: bytes, offset: int, path: str) -> Header:
    """Take a header apart that was read at `offset`.

    Raises:
        JournalError: it isn't one; `path` is for the message.
    """
    if len(head) < ALIGN:
        raise damaged(path, offset, "no block begins here")
    if _CHECKSUM.unpack_from(head, 56)[0] != xxhash.xxh3_64_intdigest(head[:56], seed=offset):
        raise damaged(path, offset, "the block header's checksum is wrong")
    magic, kind, agent, count, first_seq, length, env, policy, checksum, _ = _BLOCK_HEADER.unpack(
        head
    )
    if magic != _BLOCK_MAGIC or kind not in Kind._value2member_map_:
        raise damaged(path, offset, f"unknown kind of block ({kind})")
    if length > BLOCK_BYTES_MAX or env + policy > length:
        raise damaged(path, offset, "the lengths contradict one another")
    return Header(offset, Kind(kind), agent, count, first_seq, length, env, policy, checksum)


def read_block(fd: int, header: Header, path: str) -> Block:
    """Read a block's payload and verify it.

    Raises:
        JournalError: the checksum is wrong, or the file ends before the block does.
    """
    padded = header.end - header.offset - ALIGN
    data = bytearray(padded)
    view = memoryview(data)
    done = 0
    while done < padded:
        got = os.preadv(fd, [view[done:]], header.offset + ALIGN + done)
        if not got:
            raise damaged(path, header.offset, "the file ends inside this block")
        done += got
    view = view.toreadonly()
    payload = view[: header.length]
    if xxhash.xxh3_64_intdigest(payload) != header.checksum or any(view[header.length :]):
        raise damaged(path, header.offset, "the block's checksum is wrong")
    cut = header.env_bytes + header.policy_bytes
    trailer, end = Trailer(), header.length
    if header.kind in BATCHES:
        trailer, end = _open_trailer(payload[cut:], header, path)
    parts = (payload[: header.env_bytes], payload[header.env_bytes : cut], payload[cut:end])
    return Block(
        header.offset, header.kind, header.agent, header.count, header.first_seq, parts, trailer
    )


def _open_trailer(data: memoryview, header: Header, path: str) -> tuple[Trailer, int]:
    """The trailer at the end of a payload's third part, and where in the payload it begins."""
    if len(data) >= _TRAILER.size:
        lost, count, _ = _TRAILER.unpack(data[-_TRAILER.size :])
        begin = len(data) - _TRAILER.size - count * MARK_BYTES
        if begin >= 0:
            at = header.length - len(data) + begin
            return Trailer(data[begin : -_TRAILER.size], lost), at
    raise damaged(path, header.offset, "a batch without a trailer")


def read_trailer(fd: int, header: Header, path: str) -> Trailer:
    """Read only a batch's trailer. What is checked is its form: the checksum is of the whole block.

    Raises:
        JournalError: there is none.
    """
    end = header.offset + ALIGN + header.length
    most = header.length - header.env_bytes - header.policy_bytes
    foot = os.pread(fd, min(_TRAILER.size, most), end - min(_TRAILER.size, most))
    size = _TRAILER.size
    if len(foot) == size:
        size += _TRAILER.unpack(foot)[1] * MARK_BYTES
    if size <= most:
        foot = os.pread(fd, size, end - size)
    return _open_trailer(memoryview(foot), header, path)[0]
