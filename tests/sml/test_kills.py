"""Writers killed at random instants, one after the other on one pool: no byte and no atom is lost.

The diary of what was put and freed is kept in shared memory by the writer, in such an order that
only the operation under way is uncertain.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import uuid
from collections.abc import Iterator

import pytest

from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool, ShmReader

IDS = 64
SIZE = 1 << 18
_COUNT = struct.Struct("<Q")


def body_of(atom_id: int, turn: int) -> bytes:
    return struct.pack("<QQ", atom_id, turn) + random.Random(turn).randbytes(turn % 3000)


class Diary:
    """For each id the turn in which it was put (0: not there), and which id is being worked on."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * (IDS + 2))

    def read(self, index: int) -> int:
        (found,) = _COUNT.unpack_from(self.memory, 8 * index)
        return int(found)

    def write(self, index: int, value: int) -> None:
        _COUNT.pack_into(self.memory, 8 * index, value)


def work(name: str, diary: Diary, seed: int) -> None:
    """The life of a writer: adopt the pool, say so, put and free until killed."""
    rng = random.Random(seed)
    with ShmPool.adopt(name) as pool:
        assert pool.dropped == 0
        turn = diary.read(IDS + 1)
        while True:
            turn += 1
            atom_id = rng.randrange(IDS)
            diary.write(IDS, atom_id)
            diary.write(IDS + 1, turn)
            if diary.read(atom_id):
                pool.free(atom_id)
                diary.write(atom_id, 0)
            else:
                pool.put(Label(atom_id, seq=turn), body_of(atom_id, turn))
                diary.write(atom_id, turn)


def reconcile(name: str, diary: Diary) -> None:
    """Everything is there but, perhaps, what was under way; the diary learns about that."""
    with ShmPool.adopt(name) as pool:
        assert pool.dropped == 0, "half an atom"
        entries = {each.label.id: each for each in pool.entries()}
        under_way = diary.read(IDS)
        diary.write(under_way, entries[under_way].label.seq if under_way in entries else 0)
        assert set(entries) == {number for number in range(IDS) if diary.read(number)}
        for atom_id in entries:
            assert pool.get(atom_id) == body_of(atom_id, diary.read(atom_id))
        usage = pool.usage()
        assert usage.room_bytes == sum(each.room for each in entries.values()), "leaked bytes"
        assert usage.atoms == len(entries)


@pytest.fixture
def name() -> Iterator[str]:
    found = f"test-{uuid.uuid4().hex}"
    ShmPool.create(found, SIZE, atoms_max=IDS).close()
    yield found
    with ShmPool.adopt(found) as last:
        last.unlink()


def kill_one(name: str, diary: Diary, seed: int, reader: ShmReader) -> int:
    """Start a writer, let it do some turns, kill it. Returns how many turns it did."""
    before = diary.read(IDS + 1)
    pid = os.fork()
    if pid == 0:
        try:
            work(name, diary, seed)
        finally:
            os._exit(1)
    rng, spins = random.Random(seed), 0
    wanted = before + 1 + rng.randrange(30)
    while diary.read(IDS + 1) < wanted and spins < 2_000_000:
        os.sched_yield()
        spins += 1
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it was killed, and didn't fail before"
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert reader.owner() is None
    return diary.read(IDS + 1) - before


def run(name: str, kills: int) -> int:
    diary, turns = Diary(), 0
    with ShmReader(name) as reader:
        for seed in range(kills):
            turns += kill_one(name, diary, seed, reader)
            reconcile(name, diary)
    return turns


@pytest.mark.guarantee("G2")
@pytest.mark.slow
def test_writers_killed_at_random_instants_lose_nothing(name: str) -> None:
    assert run(name, 40) >= 40


@pytest.mark.soak
def test_ten_thousand_writers_killed_at_random_instants_lose_nothing(name: str) -> None:
    assert run(name, 10_000) >= 10_000
