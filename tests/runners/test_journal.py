"""The journal keeps its promises whatever is done to the file or to its writer."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import JournalError
from dsec.runners import journal
from dsec.runners.journal import (
    Abandoned,
    Block,
    Declaration,
    DiskError,
    JournalReader,
    JournalWriter,
    Kind,
    Run,
)

RUN = Run(name="test", seed=7)


def declaration(index: int) -> Declaration:
    return Declaration(
        agent=f"agent-{index:03}", index=index, group="agent", num_envs=1, spaces=b"spaces",
        reward_off=0, flags_off=8, obs_off=16, fixed_bytes=32,
    )  # fmt: skip


def facts(block: Block) -> tuple[Any, ...]:
    """A block without its place in the file."""
    return block.kind, block.agent, block.count, block.first_seq, *map(bytes, block.parts)


def read_all(path: Path) -> list[tuple[Any, ...]]:
    with JournalReader(path) as reader:
        return [facts(block) for block in reader.blocks()]


def write_sample(path: Path, batches: list[tuple[int, int, int]], *, finish: bool = False) -> None:
    """Write two agents and (agent, transitions, bytes a part) batches of random records."""
    noise = random.Random(5)
    writer = JournalWriter(path, RUN)
    for index in range(2):
        writer.append(Kind.DECLARATION, msgspec.msgpack.encode(declaration(index)), agent=index)
    following = [0, 0]
    for agent, count, size in batches:
        writer.append(
            Kind.BATCH, noise.randbytes(size), memoryview(noise.randbytes(64)), noise.randbytes(7),
            agent=agent, count=count, first_seq=following[agent],
        )  # fmt: skip
        following[agent] += count
    if finish:
        writer.append(Kind.END, agent=0, first_seq=following[0] - 1)
        writer.append(Kind.REMAINDER, b"e", b"p", b"", agent=1)
        lost = Abandoned("", following[1], following[1] - 1, "3")
        writer.append(Kind.ABANDONED, msgspec.msgpack.encode(lost), agent=1)
        writer.append(Kind.CLOSED)
    writer.sync()
    writer.close()


SAMPLE = [(0, 3, 192), (1, 1, 64), (0, 2, 0), (1, 5, 1000)]


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    write_sample(path, SAMPLE, finish=True)
    with JournalReader(path) as reader:
        index = reader.index
        assert index.run == RUN
        assert index.closed and not index.torn_bytes and not index.damage
        assert [agent.declaration for agent in index.agents] == [declaration(0), declaration(1)]
        assert [agent.seq_committed for agent in index.agents] == [4, 5]
        assert index.agents[0].ended and index.agents[0].abandoned is None
        assert index.agents[1].abandoned == Abandoned("", 6, 5, "3")
        assert len(index.agents[1].remainders) == 1
        sizes = [(b.first_seq, b.count, len(b.parts[0])) for b in reader.batches(1)]
        assert sizes == [(0, 1, 64), (1, 5, 1000)]
    kinds = [facts_[0] for facts_ in read_all(path)]
    assert kinds[:3] == [Kind.RUN, Kind.DECLARATION, Kind.DECLARATION]
    assert kinds[-1] is Kind.CLOSED


@given(
    batches=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 2**32 - 1), st.integers(0, 300)), max_size=8
    )
)
def test_any_sequence_of_batches_comes_back_in_order(
    batches: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / journal.FILE_NAME
    write_sample(path, batches)
    found = [facts_ for facts_ in read_all(path) if facts_[0] is Kind.BATCH]
    assert [(agent, count, len(env)) for _, agent, count, _, env, _, _ in found] == batches


@pytest.mark.guarantee("G2")
def test_a_file_cut_anywhere_ends_at_its_last_whole_block_and_can_be_continued(
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    write_sample(whole, SAMPLE)
    data = whole.read_bytes()
    blocks = read_all(whole)
    with JournalReader(whole) as reader:
        starts = [block.offset for block in reader.blocks()]
    cut = tmp_path / "cut"
    tears = 0
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        survivors = sum(end <= length for end in [*starts[1:], len(data)])
        assert read_all(cut) == blocks[:survivors]
        if length % 97 and length > starts[3]:
            continue
        writer = JournalWriter(cut, RUN)
        tears += writer.index.torn_bytes > 0
        writer.append(Kind.CLOSED)
        writer.close()
        expected = blocks[: max(survivors, 1)]
        assert read_all(cut) == [*expected, (Kind.CLOSED, 0, 0, 0, b"", b"", b"")]
    assert tears, "no cut left a torn tail behind"


def test_a_tail_of_zeros_is_torn_and_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    write_sample(path, SAMPLE)
    blocks = read_all(path)
    os.truncate(path, path.stat().st_size + 5000)
    with JournalReader(path) as reader:
        assert reader.index.torn_bytes == 5000
    assert read_all(path) == blocks


@pytest.mark.guarantee("G2")
def test_every_flipped_byte_is_an_error_that_names_an_offset(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    write_sample(path, SAMPLE, finish=True)
    data = path.read_bytes()
    noise = random.Random(11)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << noise.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(JournalError, match=r"damaged at offset \d+|no journal") as caught:
            read_all(path)
        words = str(caught.value).split("offset ")
        offset = int(words[1].split(":")[0].split(",")[0]) if len(words) > 1 else 0
        assert offset <= position < offset + 1300


@given(data=st.data())
def test_salvage_reads_what_stands_before_the_damage(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / journal.FILE_NAME
    write_sample(path, SAMPLE)
    blocks = read_all(path)
    with JournalReader(path) as reader:
        starts = [block.offset for block in reader.blocks()]
    hurt = data.draw(st.integers(1, len(starts) - 1))
    content = bytearray(path.read_bytes())
    content[starts[hurt] + data.draw(st.integers(0, 63))] ^= 0x40
    path.write_bytes(content)
    with JournalReader(path, salvage=True) as reader:
        assert f"offset {starts[hurt]}" in reader.index.damage
        assert [facts(block) for block in reader.blocks()] == blocks[:hurt]


def test_a_block_in_another_place_is_no_block(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    write_sample(path, [(0, 1, 64)])
    content = path.read_bytes()
    path.write_bytes(content + content[64:128] + content[128:])
    with pytest.raises(JournalError, match="checksum"):
        read_all(path)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Kind.BATCH, {"agent": 0, "count": 1, "first_seq": 2}, "1 was next"),
        (Kind.BATCH, {"agent": 0, "count": 1, "first_seq": 0}, "1 was next"),
        (Kind.BATCH, {"agent": 0, "count": 0, "first_seq": 1}, "1 was next"),
        (Kind.BATCH, {"agent": 9, "count": 1, "first_seq": 0}, "never declared"),
        (Kind.DECLARATION, {"env": b"\x80"}, "missing required field"),
    ],
)
def test_blocks_that_make_no_sense_together_are_refused(
    tmp_path: Path, kind: Kind, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / journal.FILE_NAME
    write_sample(path, [(0, 1, 64)])
    writer = JournalWriter(path, RUN)
    writer.append(kind, **options)
    writer.close()
    with pytest.raises(JournalError, match=message):
        read_all(path)


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    for content in (b"no", b"not a journal, " * 10, b"DSECJRNL" + bytes(200)):
        path = tmp_path / journal.FILE_NAME
        path.write_bytes(content)
        with pytest.raises(JournalError, match=r"no journal|another version"):
            JournalReader(path)
        with pytest.raises(JournalError, match=r"no journal|another version"):
            JournalWriter(path, RUN)
        assert path.read_bytes() == content
    with pytest.raises(JournalError, match="No such file"):
        JournalReader(tmp_path / "absent")
    with pytest.raises(JournalError, match="Is a directory"):
        JournalWriter(tmp_path, RUN)


def test_a_closed_writer_and_reader_refuse_and_close_twice(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    writer = JournalWriter(path, RUN)
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match="closed"):
        writer.append(Kind.CLOSED)
    reader = JournalReader(path)
    reader.close()
    reader.close()
    with pytest.raises(JournalError, match="closed"):
        reader.read(64)


@given(step=st.integers(1, 100), seed=st.integers(0, 2**32))
def test_partial_writes_are_carried_on(
    step: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The operating system may take any part of a write; here it takes random small ones."""
    folder = tmp_path_factory.mktemp("journal")
    write_sample(folder / "whole", SAMPLE)
    noise = random.Random(seed)
    calls = 0
    take_all = os.pwritev

    def take_some(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        some = b"".join(buffers)[: noise.randint(1, step)]
        return take_all(fd, [some], offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", take_some)
        write_sample(folder / "parts", SAMPLE)
    assert calls > 10
    assert (folder / "parts").read_bytes() == (folder / "whole").read_bytes()


def test_no_room_at_all() -> None:
    with pytest.raises(DiskError, match="No space left"):
        JournalWriter("/dev/full", RUN)


@pytest.fixture
def small_files() -> Iterator[int]:
    """A limit on the size of files, which cuts writes short exactly as a full disk does."""
    limit = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.guarantee("G2")
def test_a_write_that_fails_half_way_leaves_whole_blocks_and_can_be_repeated(
    tmp_path: Path, small_files: int
) -> None:
    path = tmp_path / journal.FILE_NAME
    write_sample(path, [])
    writer = JournalWriter(path, RUN)
    payload = random.Random(1).randbytes(3000)
    done = 0
    with pytest.raises(DiskError, match="too large"):
        while done < 10:
            writer.append(Kind.BATCH, payload, agent=0, count=1, first_seq=done)
            done += 1
    assert 0 < done < 4
    assert path.stat().st_size == writer.end < small_files
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    writer.append(Kind.BATCH, payload, agent=0, count=1, first_seq=done)
    writer.close()
    assert [facts_[3] for facts_ in read_all(path)[3:]] == list(range(done + 1))


FULL_DISK = """
import os, sys
from dsec.runners.journal import *
import msgspec
folder, declaration = sys.argv[1], bytes.fromhex(sys.argv[2])
if os.system(f"mount -t tmpfs -o size=1300k none {folder}"):
    sys.exit(77)
writer = JournalWriter(folder + "/journal.dsj", Run("test", 7))
writer.append(Kind.DECLARATION, declaration)
done = 0
try:
    while True:
        writer.append(Kind.BATCH, bytes(30_000), agent=0, count=1, first_seq=done)
        done += 1
except DiskError as error:
    assert "No space left" in str(error), error
with JournalReader(writer.path) as reader:
    assert reader.index.torn_bytes == 0, reader.index
    assert reader.index.agents[0].seq_committed == done - 1 > 3
with open(folder + "/summary", "wb", buffering=0) as other:
    try:
        assert other.write(bytes(60_000)) < 60_000, "the disk was not full"
    except OSError as error:
        assert "No space left" in str(error), error
    writer.give_back_room()
    other.seek(0)
    assert other.write(bytes(60_000)) == 60_000
os.system(f"mount -o remount,size=4m {folder}")
for seq in range(done, done + 5):
    writer.append(Kind.BATCH, bytes(30_000), agent=0, count=1, first_seq=seq)
writer.sync()
with JournalReader(writer.path) as reader:
    assert len(list(reader.blocks())) == done + 7
print("filled after", done)
"""


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    if not shutil.which("unshare"):
        pytest.skip("no unshare(1) to mount a small file system with")
    words = msgspec.msgpack.encode(declaration(0)).hex()
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", FULL_DISK]
    result = subprocess.run(
        [*command, str(tmp_path), words], capture_output=True, text=True, timeout=60, check=False
    )
    if result.returncode == 77 or "unshare:" in result.stderr:
        pytest.skip(f"this machine lets nobody mount a tmpfs: {result.stderr}")
    assert result.returncode == 0, result.stderr
    assert "filled after" in result.stdout


ENDLESS_WRITER = """
import os, random, sys
import msgspec
from dsec.runners.journal import *
path, declaration = sys.argv[1], bytes.fromhex(sys.argv[2])
writer = JournalWriter(path, Run("test", 7))
if not writer.index.agents:
    writer.append(Kind.DECLARATION, declaration)
    seq = 0
else:
    seq = writer.index.agents[0].seq_committed + 1
while True:
    noise = random.Random(seq)
    parts = [noise.randbytes(64 * noise.randrange(400)) for _ in range(3)]
    writer.append(Kind.BATCH, *parts, agent=0, count=1, first_seq=seq)
    os.write(1, seq.to_bytes(8, "little"))
    seq += 1
"""


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_a_writer_killed_at_any_moment_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    words = msgspec.msgpack.encode(declaration(0)).hex()
    noise = random.Random(os.urandom(8))
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", ENDLESS_WRITER, str(path), words], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        acknowledged = -1
        for _ in range(noise.randint(1, 60)):
            acknowledged = int.from_bytes(child.stdout.read(8), "little")
        for _ in range(noise.randrange(20_000)):
            pass  # a moment of a length that nobody planned
        child.kill()
        assert child.wait(timeout=30) == -signal.SIGKILL
        rest = child.stdout.read()
        child.stdout.close()
        acknowledged = int.from_bytes(rest[-8:], "little") if rest else acknowledged
        with JournalReader(path) as reader:
            assert reader.index.agents[0].seq_committed in (acknowledged, acknowledged + 1)
            for seq, block in enumerate(reader.batches(0)):
                content = random.Random(seq)
                parts = [content.randbytes(64 * content.randrange(400)) for _ in range(3)]
                assert list(map(bytes, block.parts)) == parts
                assert block.first_seq == seq
