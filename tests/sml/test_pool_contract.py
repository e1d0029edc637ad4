"""What every pool promises, whatever holds it: one suite, run over every backend.

Owns the contract of dsec.sml.pool and knows nothing of any backend but how to make one.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable, Iterator

import pytest

from dsec.errors import AtomAbsent, AtomExists, AtomTooLarge, LocalError, PoolFull
from dsec.sml.pool import Label, Marks, Pool
from tests.sml.backends import BACKENDS, Backend, living

SIZE = 1 << 20
ID_MAX = (1 << 62) - 1


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with living(request.param) as made:
        yield made


@pytest.fixture
def pool(backend: Backend) -> Pool:
    return backend.create(SIZE, 1000)


def body_of(number: int, nbytes: int) -> bytes:
    return random.Random(number).randbytes(nbytes)


def fill(pool: Pool, nbytes: int) -> list[int]:
    ids = []
    with pytest.raises(PoolFull):
        for number in range(100_000):
            pool.put(Label(number), body_of(number, nbytes))
            ids.append(number)
    return ids


@pytest.mark.parametrize("nbytes", [1, 15, 16, 17, 79, 80, 81, 4096, 20_000, 300_000])
def test_what_was_put_is_got_byte_for_byte(pool: Pool, nbytes: int) -> None:
    body = body_of(nbytes, nbytes)
    pool.put(Label(nbytes, agent=3, episode=4, rollout=5, seq=6, created_s=7), body)
    assert pool.get(nbytes) == body
    entry = pool.entry(nbytes)
    assert entry.label == Label(nbytes, 3, 4, 5, 6, 7)
    assert entry.nbytes == nbytes <= entry.room
    assert entry.marks == Marks.NONE


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda data: memoryview(array.array("d", data))]
)
def test_a_body_is_any_contiguous_buffer(
    pool: Pool, kind: Callable[[bytes], bytes | memoryview]
) -> None:
    pool.put(Label(1), kind(b"abcdefgh" * 50))
    assert pool.get(1) == b"abcdefgh" * 50
    assert pool.entry(1).nbytes == 400


def test_a_body_is_copied_when_it_is_put(pool: Pool) -> None:
    body = bytearray(b"x" * 100)
    pool.put(Label(1), body)
    body[:] = b"y" * 100
    assert pool.get(1) == b"x" * 100


def test_every_number_of_a_label_has_its_range(pool: Pool) -> None:
    most = (1 << 32) - 1
    largest = Label(ID_MAX, most, most, most, (1 << 64) - 1, most)
    pool.put(largest, b"x")
    assert pool.entry(ID_MAX).label == largest
    pool.put(Label(0), b"y")
    assert pool.get(0) == b"y"
    for bad in (
        Label(ID_MAX + 1),
        Label(-1),
        Label(1, agent=1 << 32),
        Label(1, seq=-1),
        Label(1, episode=-1),
        Label(1, created_s=1 << 32),
    ):
        with pytest.raises(LocalError):
            pool.put(bad, b"x")
    assert pool.usage().atoms == 2


def test_an_id_names_one_atom(pool: Pool) -> None:
    pool.put(Label(1), b"first")
    with pytest.raises(AtomExists, match="atom 1"):
        pool.put(Label(1), b"second")
    assert pool.get(1) == b"first"


def test_an_atom_that_is_not_there_is_named(pool: Pool) -> None:
    for atom_id in (0, 5, ID_MAX, -1, 1 << 70):
        with pytest.raises(AtomAbsent, match=str(atom_id)):
            pool.get(atom_id)
        with pytest.raises(AtomAbsent):
            pool.entry(atom_id)
        with pytest.raises(AtomAbsent):
            pool.free(atom_id)
        with pytest.raises(AtomAbsent):
            pool.mark(atom_id, Marks.PINNED)


def test_a_freed_atom_is_gone_and_its_room_is_used_again(pool: Pool) -> None:
    ids = fill(pool, 10_000)
    pool.free(ids[5])
    with pytest.raises(AtomAbsent):
        pool.get(ids[5])
    pool.put(Label(200_000), body_of(9, 10_000))
    assert pool.get(200_000) == body_of(9, 10_000)
    for atom_id in set(ids) - {ids[5]}:
        assert pool.get(atom_id) == body_of(atom_id, 10_000)


def test_an_id_may_come_back_after_it_was_freed_and_is_another_generation(pool: Pool) -> None:
    pool.put(Label(1), b"first")
    before = pool.entry(1).generation
    pool.free(1)
    pool.put(Label(1), b"other")
    assert pool.get(1) == b"other"
    assert pool.entry(1).generation > before


def test_marks_are_set_and_taken_away(pool: Pool) -> None:
    pool.put(Label(1), b"body")
    for marks in (Marks.PINNED, Marks.STANDBY, Marks.PINNED | Marks.STANDBY, Marks.NONE):
        pool.mark(1, marks)
        assert pool.entry(1).marks == marks
        assert pool.get(1) == b"body"


def test_a_full_pool_says_what_it_needs_and_has_changed_nothing(pool: Pool) -> None:
    ids = fill(pool, 5000)
    before = pool.usage()
    with pytest.raises(PoolFull, match=r"bytes.*free") as caught:
        pool.put(Label(99_999), bytes(5000))
    assert caught.value.remedy
    assert pool.usage() == before
    assert before.payload_bytes == 5000 * len(ids)
    assert before.room_bytes > 0.97 * before.data_bytes - 5000


def test_as_many_atoms_as_the_index_was_made_for(backend: Backend) -> None:
    pool = backend.create(SIZE, 10)
    for number in range(10):
        pool.put(Label(number), b"x")
    with pytest.raises(PoolFull, match="10 atoms"):
        pool.put(Label(10), b"x")
    pool.free(3)
    pool.put(Label(10), b"x")


def test_an_atom_larger_than_the_pool_is_refused_by_size(pool: Pool) -> None:
    with pytest.raises(AtomTooLarge, match="2,000,000"):
        pool.put(Label(1), bytes(2_000_000))
    with pytest.raises(LocalError, match="one byte"):
        pool.put(Label(1), b"")
    assert pool.usage().atoms == 0


def test_usage_accounts_for_every_byte(pool: Pool) -> None:
    rng = random.Random(1)
    for number in range(100):
        pool.put(Label(number), rng.randbytes(rng.randint(1, 3000)))
    for number in range(0, 100, 3):
        pool.free(number)
    entries = list(pool.entries())
    usage = pool.usage()
    assert usage.atoms == len(entries)
    assert usage.payload_bytes == sum(each.nbytes for each in entries)
    assert usage.room_bytes == sum(each.room for each in entries)
    assert usage.room_bytes <= usage.data_bytes <= usage.segment_bytes


def test_entries_are_all_atoms_once(pool: Pool) -> None:
    for number in range(50):
        pool.put(Label(number, agent=number % 4), bytes(number + 1))
    pool.free(7)
    found = {each.label.id: each for each in pool.entries()}
    assert sorted(found) == [number for number in range(50) if number != 7]
    assert all(each == pool.entry(atom_id) for atom_id, each in found.items())


def test_a_reader_sees_what_is_published_and_nothing_else(backend: Backend, pool: Pool) -> None:
    reader = backend.reader()
    assert list(reader.entries()) == []
    pool.put(Label(1, agent=2), b"one")
    assert reader.get(1) == b"one"
    assert reader.entry(1) == pool.entry(1)
    pool.mark(1, Marks.PINNED)
    assert reader.entry(1).marks == Marks.PINNED
    assert reader.usage() == pool.usage()
    assert reader.space == pool.space == (7, 8)
    pool.free(1)
    with pytest.raises(AtomAbsent):
        reader.get(1)


def test_a_successor_finds_everything(backend: Backend, pool: Pool) -> None:
    rng = random.Random(2)
    bodies = {number: rng.randbytes(rng.randint(1, 5000)) for number in range(150)}
    for number, body in bodies.items():
        pool.put(Label(number, agent=1, episode=2, rollout=3, seq=number), body)
    for number in range(0, 150, 4):
        pool.free(number)
        del bodies[number]
    pool.mark(5, Marks.PINNED)
    usage, epoch, entries = pool.usage(), pool.epoch, {e.label.id: e for e in pool.entries()}
    pool.close()
    heir = backend.adopt()
    assert heir.epoch > epoch
    assert heir.usage() == usage
    assert {each.label.id: each for each in heir.entries()} == entries
    assert {number: heir.get(number) for number in bodies} == bodies
    heir.put(Label(0), b"goes on")
    assert heir.entry(0).generation > max(each.generation for each in entries.values())


def test_blocks_of_ids_are_never_leased_twice(backend: Backend, pool: Pool) -> None:
    first = [pool.lease() for _ in range(5)]
    pool.close()
    heir = backend.adopt()
    second = [heir.lease() for _ in range(5)]
    assert len({*first, *second}) == 10


def test_a_closed_pool_says_so(backend: Backend, pool: Pool) -> None:
    pool.put(Label(1), b"x")
    reader = backend.reader()
    reader.close()
    reader.close()
    pool.close()
    pool.close()
    for call in (
        lambda: pool.put(Label(2), b"x"),
        lambda: pool.get(1),
        lambda: pool.free(1),
        lambda: pool.mark(1, Marks.PINNED),
        lambda: pool.lease(),
        lambda: reader.get(1),
        lambda: reader.entry(1),
        lambda: list(reader.entries()),
    ):
        with pytest.raises(LocalError, match="close"):
            call()
