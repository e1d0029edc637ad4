"""Named segments: one owner, who is refused by name, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.errors import LocalError, MachineError, PoolAbsent, PoolExists, PoolOwned
from dsec.sml import named
from dsec.sml.orphans import discard
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool, ShmReader

SIZE = 1 << 16
# Holds a pool, says so, and waits for its end of the pipe to close; or is killed.
OWNER = """
import sys
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
pool = ShmPool.create(sys.argv[1], 1 << 20, persist=sys.argv[2] == "persist")
for number in range(50):
    pool.put(Label(number, agent=number % 2), bytes([number]) * 1000)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def name() -> Iterator[str]:
    found = f"test-{uuid.uuid4().hex}"
    yield found
    if found in named.names():
        last = named.adopt(found)
        last.unlink()
        last.close()


def owner(name: str, persist: str = "") -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, "-c", OWNER, name, persist],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def end(program: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    program.send_signal(number)
    program.communicate(timeout=20)


def test_a_name_is_taken_once_and_what_is_there_stays(name: str) -> None:
    with ShmPool.create(name, SIZE) as pool:
        pool.put(Label(1), b"stays")
        with pytest.raises(PoolExists, match=name):
            ShmPool.create(name, SIZE)
        assert pool.get(1) == b"stays"
        assert name in named.names()
        pool.unlink()
    assert name not in named.names()


def test_a_pool_of_a_living_process_is_refused_by_its_number(name: str) -> None:
    program = owner(name)
    try:
        with pytest.raises(PoolOwned, match=rf"{name} belongs to process {program.pid}, which"):
            ShmPool.adopt(name)
        with ShmReader(name) as reader:
            assert reader.owner() == program.pid
            assert reader.get(7) == b"\7" * 1000
    finally:
        end(program)


@pytest.mark.guarantee("G2")
def test_what_a_killed_writer_had_published_is_there(name: str) -> None:
    program = owner(name, "persist")
    with ShmReader(name) as reader:
        end(program)
        assert program.returncode == -signal.SIGKILL
        assert reader.owner() is None
        with ShmPool.adopt(name) as heir:
            assert heir.persist
            assert heir.epoch == 2
            assert heir.usage().atoms == 50
            heir.put(Label(50), b"goes on")
            assert reader.get(50) == b"goes on"
            assert reader.get(49) == b"\x31" * 1000
            heir.unlink()


@pytest.mark.guarantee("G9")
def test_a_reader_can_not_write(name: str) -> None:
    with ShmPool.create(name, SIZE) as pool, ShmReader(name) as reader:
        with pytest.raises(LocalError, match="owner"):
            reader._segment.unlink()
        with pytest.raises(OSError):
            os.pwrite(reader._segment.fd, b"x", 0)
        pool.unlink()


def test_unlinking_leaves_a_successor_of_the_same_name_alone(name: str) -> None:
    first = ShmPool.create(name, SIZE)
    first.unlink()
    second = ShmPool.create(name, SIZE)
    first.unlink()
    assert name in named.names()
    first.close()
    second.unlink()
    second.close()


def test_what_is_unlinked_can_be_read_on(name: str) -> None:
    with ShmPool.create(name, SIZE) as pool, ShmReader(name) as reader:
        pool.put(Label(1), b"x")
        pool.unlink()
        assert reader.get(1) == b"x"
        with pytest.raises(PoolAbsent, match=name):
            ShmReader(name)
        with pytest.raises(PoolAbsent):
            ShmPool.adopt(name)


@pytest.mark.parametrize("bad", ["", "a/b", "../x", ".hidden", "x" * 300, "a b", "a\0b"])
def test_a_name_that_can_not_be_is_refused(bad: str) -> None:
    with pytest.raises(LocalError, match="called"):
        ShmPool.create(bad, SIZE)


def test_more_than_the_machine_has_is_refused_with_both_numbers(name: str) -> None:
    with pytest.raises(MachineError, match=r"needs 1,125,899,906,842,624 bytes.*[\d,]+ are avail"):
        named.create(name, 1 << 50)
    assert name not in named.names()


def test_a_pool_too_small_for_one_atom_is_refused(name: str) -> None:
    with pytest.raises(LocalError, match=r"too few for one atom.*pool.size_mb"):
        ShmPool.create(name, 4096)
    with pytest.raises(LocalError, match="100,000"):
        ShmPool.create(name, 1 << 20, atoms_max=100_000)
    assert name not in named.names()


def test_a_creation_that_fails_leaves_no_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MachineError, match="available"):
        ShmPool.create(name, SIZE)
    assert name not in named.names()


def test_the_lock_is_on_the_segment_and_dies_with_its_holder(name: str) -> None:
    pool = ShmPool.create(name, SIZE)
    observer = named.attach(name)
    assert named.owner_of(observer) == os.getpid()
    pool.close()
    assert named.owner_of(observer) is None
    observer.close()
    assert (Path("/dev/shm") / f"{named.PREFIX}{name}").exists(), "it waits for whoever adopts it"


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("fails", ["map", "open"])
def test_a_pool_that_can_not_be_opened_leaves_nothing(
    name: str, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_map(segment: named.Named) -> None:
        raise MachineError("no map", "")

    def no_pool(pool: ShmPool, segment: named.Named, *, verify: bool) -> None:
        segment.close()
        raise MachineError("no memory", "")

    if fails == "map":
        monkeypatch.setattr(named.Named, "map", no_map)
    else:
        monkeypatch.setattr(ShmPool, "__init__", no_pool)
    with pytest.raises(MachineError, match="no m"):
        ShmPool.create(name, SIZE)
    assert name not in named.names()
    monkeypatch.undo()
    ShmPool.create(name, SIZE).close()
    monkeypatch.setattr(named.Named, "map", no_map)
    with pytest.raises(MachineError, match="no map"):
        ShmReader(name)


@pytest.mark.guarantee("G8")
def test_what_a_killed_kernel_left_is_taken_away(name: str) -> None:
    program = owner(name)
    with pytest.raises(PoolOwned):
        discard(name)
    end(program)
    assert program.returncode == -signal.SIGKILL
    assert name in named.names()
    assert discard(name)
    assert name not in named.names()
    assert discard(name), "already gone"


def test_what_may_outlive_its_kernel_or_is_nobodys_pool_is_left(name: str) -> None:
    ShmPool.create(name, SIZE, persist=True).close()
    assert not discard(name)
    path = Path("/dev/shm") / f"{named.PREFIX}{name}"
    path.write_bytes(b"somebody else's" * 1000)
    assert not discard(name)
    for unfinished in (b"", bytes(SIZE)):
        path.write_bytes(unfinished)
        assert discard(name)
        assert not path.exists()
