"""Atoms on disk: whole or not there, proven when read, and every way to be wrong named."""

from __future__ import annotations

import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import (
    AtomAbsent,
    AtomCorrupt,
    AtomError,
    AtomForeign,
    AtomTooNew,
    AtomTooOld,
    AtomTruncated,
    MachineError,
)
from dsec.sml import spill
from dsec.sml.pool import Label, Marks
from dsec.sml.pool_shm import ShmPool
from tests import watchdog
from tests.sml.backends import ShmBackend

LABEL = Label(12, agent=1, episode=2, rollout=3, seq=4, created_s=5)
BODY = bytes(range(200))


@pytest.fixture
def backend() -> Iterator[ShmBackend]:
    made = ShmBackend()
    yield made
    made.end()


@pytest.fixture
def pool(backend: ShmBackend) -> ShmPool:
    made = backend.create(1 << 18, 100)
    made.put(LABEL, BODY)
    made.mark(12, Marks.PINNED)
    return made


@pytest.fixture
def file(pool: ShmPool, tmp_path: Path) -> Path:
    (path,) = spill.spill(pool, [12], tmp_path / "atoms")
    return path


def test_what_is_spilled_is_loaded(pool: ShmPool, file: Path) -> None:
    assert file.name == "ASA-000012.atom"
    assert spill.load(file) == spill.Spilled(LABEL, Marks.PINNED, BODY)
    assert pool.get(12) == BODY, "the pool keeps it"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_pool_is_refilled_with_what_it_has_not(
    pool: ShmPool, backend: ShmBackend, tmp_path: Path
) -> None:
    for number in (3, 1_000_000, 20_000_000):
        pool.put(Label(number), b"%d" % number)
    paths = spill.spill(pool, [12, 20_000_000, 3, 1_000_000], tmp_path)
    assert list(spill.files(tmp_path)) == sorted(paths, key=lambda path: spill.load(path).label.id)
    pool.free(12)
    pool.free(3)
    assert spill.refill(pool, tmp_path) == 2
    assert pool.get(12) == BODY
    assert pool.entry(12).marks == Marks.PINNED
    assert pool.entry(12).label == LABEL


def test_spilling_again_replaces(pool: ShmPool, file: Path) -> None:
    pool.free(12)
    pool.put(LABEL, b"other")
    file.with_name(f".{file.name}.new").write_bytes(b"what a crash left")
    assert spill.spill(pool, [12], file.parent) == [file]
    assert spill.load(file).body == b"other"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_what_is_not_there_is_named(pool: ShmPool, tmp_path: Path) -> None:
    with pytest.raises(AtomAbsent, match="77"):
        spill.spill(pool, [77], tmp_path)
    with pytest.raises(MachineError, match="nowhere"):
        spill.load(tmp_path / "nowhere.atom")
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="can't write"):
        spill.spill(pool, [12], tmp_path / "file" / "folder")


@pytest.mark.guarantee("G9")
def test_every_truncation_is_named(file: Path) -> None:
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(AtomTruncated, match=file.name):
            spill.load(file)


@pytest.mark.guarantee("G9")
def test_every_flipped_bit_is_named(file: Path) -> None:
    data = file.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(AtomForeign if bit < 64 else AtomCorrupt, match=file.name):
            spill.load(file)


def test_other_versions_and_what_follows_are_named(file: Path) -> None:
    data = file.read_bytes()

    def write(version: int, more: bytes = b"") -> None:
        head = data[:8] + struct.pack("<H", version) + data[10:56]
        total = struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
        file.write_bytes(head + total + data[64:] + more)

    write(0)
    with pytest.raises(AtomTooOld, match="version 0"):
        spill.load(file)
    write(2)
    with pytest.raises(AtomTooNew, match="version 2"):
        spill.load(file)
    write(1, b"x")
    with pytest.raises(AtomCorrupt):
        spill.load(file)
    write(1)
    assert spill.load(file).body == BODY


@pytest.mark.guarantee("G9")
@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_named(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.atom"
    path.write_bytes(data)
    with pytest.raises(AtomError):
        spill.load(path)


# Spills the same atom again and again, with bodies of one repeated byte, until it is killed.
SPILLER = """
import itertools, sys
from pathlib import Path
from dsec.sml import spill
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
pool = ShmPool.create(sys.argv[1], 1 << 20)
for turn in itertools.count():
    pool.put(Label(5), bytes([turn % 256]) * 100_000)
    spill.spill(pool, [5], Path(sys.argv[2]))
    pool.free(5)
    print(turn, flush=True)
"""


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_a_killed_spiller_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    backend, killed = ShmBackend(), 0
    for _ in range(8):
        with watchdog.Watched(
            [sys.executable, "-c", SPILLER, backend.name, str(tmp_path / "atoms")],
            tmp_path / f"out-{killed}",
        ) as program:
            wanted = f"\n{3 + killed}\n"
            program.until(
                lambda wanted=wanted, program=program: wanted in program.stdout,
                30,
                "some atoms were spilled",
            )
            program.send(signal.SIGKILL)
            assert program.wait(10) == -signal.SIGKILL
            killed += 1
        found = spill.load(spill.path_of(tmp_path / "atoms", 5))
        assert len(found.body) == 100_000
        assert len(set(found.body)) == 1
        backend.end()
    assert killed == 8
