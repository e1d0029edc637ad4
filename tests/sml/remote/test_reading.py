"""Reading from far away against an adversary: each READ is put together of pieces of different
times, in any order, while the real writer puts, frees and reuses. What comes out is an atom as it
was put, or an error with a name; never anything else.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.errors import AtomAbsent, AtomCorrupt, AtomRecycled
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
from dsec.sml.remote.reading import Asking, Searcher, Span
from dsec.sml.remote.words import PAGE, geometry, memory_of

LINE = 64
SIZE = 64 << 10


class Adversary:
    """A pool, and READs of it during which `between` happens at places that it chooses."""

    def __init__(self, pool: ShmPool, draw: random.Random) -> None:
        self.memory = memory_of(*pool.mapping)
        self.draw = draw
        self.between: Callable[[], None] = lambda: None
        self.searcher = Searcher(geometry(bytes(self.memory[:PAGE]), len(self.memory)), "p")

    def fetch(self, span: Span) -> bytes:
        """One READ: its cache lines in random order, the writer at work between any two."""
        found = bytearray(span.nbytes)
        first = span.offset // LINE
        lines = list(range(first, (span.offset + span.nbytes - 1) // LINE + 1))
        self.draw.shuffle(lines)
        stops = {self.draw.randrange(len(lines)) for _ in range(self.draw.randrange(3))}
        for number, line in enumerate(lines):
            if number in stops:
                self.between()
            start, end = max(line * LINE, span.offset), min((line + 1) * LINE, _end(span))
            found[start - span.offset : end - span.offset] = self.memory[start:end]
        return bytes(found)

    def drive(self, search: Asking) -> object:
        try:
            wanted = next(search)
            while True:
                order = list(range(len(wanted)))
                self.draw.shuffle(order)
                copies = {index: self.fetch(wanted[index]) for index in order}
                wanted = search.send([copies[index] for index in range(len(wanted))])
        except StopIteration as done:
            return done.value


def _end(span: Span) -> int:
    return span.offset + span.nbytes


@pytest.fixture
def pool() -> Iterator[ShmPool]:
    with ShmPool.create(f"test-{uuid.uuid4().hex}", SIZE, atoms_max=64, space=(1, 2)) as made:
        yield made
        made.unlink()


def body_of(atom_id: int, generation: int, nbytes: int) -> bytes:
    return random.Random(atom_id << 32 | generation).randbytes(nbytes)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_a_reader_far_away_gets_the_truth_or_a_name(seed: int) -> None:
    draw = random.Random(seed)
    name = f"test-{uuid.uuid4().hex}"
    with ShmPool.create(name, SIZE, atoms_max=16, space=(1, 2)) as pool:
        try:
            _provoke(pool, draw)
        finally:
            pool.unlink()


def _provoke(pool: ShmPool, draw: random.Random) -> None:
    ever: dict[int, set[bytes]] = {}
    alive: dict[int, bytes] = {}
    count = changes = 0

    def write() -> None:
        nonlocal count, changes
        changes += 1
        atom_id = draw.randrange(6)
        if atom_id in alive:
            pool.free(atom_id)
            del alive[atom_id]
        if draw.random() < 0.8:
            count += 1
            body = body_of(atom_id, count, draw.choice([1, 40, 700, 5000]))
            pool.put(Label(atom_id), body)
            alive[atom_id] = body
            ever.setdefault(atom_id, set()).add(body)

    for _ in range(5):
        write()
    adversary = Adversary(pool, draw)
    adversary.between = write
    for _ in range(20):
        atom_id = draw.randrange(6)
        there = atom_id in alive
        before = changes
        try:
            assert adversary.drive(adversary.searcher.get(atom_id)) in ever.get(atom_id, set())
        except AtomAbsent:
            assert not there or changes != before
        except AtomRecycled:
            pass
    adversary.between = lambda: None
    listed = adversary.drive(adversary.searcher.scan())
    assert {each.label.id: each.nbytes for each in listed} == {k: len(v) for k, v in alive.items()}
    for atom_id, body in alive.items():
        assert adversary.drive(adversary.searcher.get(atom_id)) == body


def test_the_adversary_makes_torn_and_recycled_copies(pool: ShmPool) -> None:
    """The faults that the property is about do happen, and are counted."""
    draw = random.Random(5)
    adversary = Adversary(pool, draw)
    turn = 0

    def write() -> None:
        nonlocal turn
        turn += 1
        pool.free(turn - 1)
        pool.put(Label(turn), body_of(turn, 0, 2000))

    pool.put(Label(0), body_of(0, 0, 2000))
    adversary.between = write
    for _ in range(300):
        try:
            adversary.drive(adversary.searcher.get(turn))
        except (AtomAbsent, AtomRecycled):
            continue
    assert adversary.searcher.torn > 0 or adversary.searcher.recycled > 0


def test_a_place_that_is_reused_under_every_try_is_called_recycled(pool: ShmPool) -> None:
    adversary = Adversary(pool, random.Random(1))
    generation = 0

    def again() -> None:
        nonlocal generation
        generation += 1
        pool.free(1)
        pool.put(Label(1), body_of(1, generation, 3000))

    pool.put(Label(1), body_of(1, 0, 3000))
    search = adversary.searcher.get(1)
    with pytest.raises(AtomRecycled):
        wanted = next(search)
        while True:
            copies = []
            for span in wanted:
                half = span.nbytes // 2
                copy = bytes(adversary.memory[span.offset : span.offset + half])
                if span.nbytes > LINE:
                    again()
                copies.append(copy + bytes(adversary.memory[span.offset + half : _end(span)]))
            wanted = search.send(copies)
    assert adversary.searcher.torn + adversary.searcher.recycled > 50


def test_damage_is_named_and_not_tried_for_ever(pool: ShmPool) -> None:
    pool.put(Label(1), b"x" * 3000)
    adversary = Adversary(pool, random.Random(1))
    body = bytes(adversary.memory).index(b"x" * 3000)
    adversary.memory[body + 1500] ^= 1
    with pytest.raises(AtomCorrupt, match="atom 1"):
        adversary.drive(adversary.searcher.get(1))


@given(junk=st.binary(min_size=64, max_size=64), at=st.integers(0, 31))
def test_arbitrary_bytes_in_the_index_are_an_error_or_the_truth(junk: bytes, at: int) -> None:
    name = f"test-{uuid.uuid4().hex}"
    with ShmPool.create(name, SIZE, atoms_max=128, space=(1, 2)) as pool:
        try:
            for number in range(20):
                pool.put(Label(number), body_of(number, 0, 100))
            adversary = Adversary(pool, random.Random(1))
            adversary.memory[PAGE + at * 64 : PAGE + at * 64 + 64] = junk
            for number in range(20):
                try:
                    found = adversary.drive(adversary.searcher.get(number))
                    assert found == body_of(number, 0, 100)
                except (AtomAbsent, AtomCorrupt):
                    continue
            adversary.drive(adversary.searcher.scan())
        finally:
            pool.unlink()


def test_round_trips_are_what_the_document_says(pool: ShmPool) -> None:
    """docs/REMOTE_POOL.md: two round trips, one when the cell is known."""
    for number in range(10):
        pool.put(Label(number), body_of(number, 0, 2000))
    adversary = Adversary(pool, random.Random(1))

    def trips(atom_id: int) -> tuple[int, int]:
        search, count, reads = adversary.searcher.get(atom_id), 0, 0
        try:
            wanted = next(search)
            while True:
                count, reads = count + 1, reads + len(wanted)
                wanted = search.send([adversary.fetch(span) for span in wanted])
        except StopIteration:
            return count, reads

    assert trips(3) == (2, 2)
    assert trips(3) == (1, 2)
