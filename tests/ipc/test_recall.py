"""Finding, without a cursor, what a dead writer published."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from dsec.errors import CorruptRingError, LocalError
from dsec.ipc import recall, segment
from dsec.ipc.frames import Role
from dsec.ipc.ring import KIND_OBS, Outbox, Peer

CAPACITY = 1 << 16


class Ring:
    """One outbox without readers, and a look at it from outside."""

    def __init__(self, start: int = 0) -> None:
        self.segment = segment.create("recall", Role.ENV, CAPACITY, epoch=1, start=start)
        self.outbox = Outbox(self.segment.fd, self.segment.size, Role.ENV)
        self.peer = Peer(self.segment.fd, self.segment.size, Role.ENV)

    def put(self, seq: int, nbytes: int) -> None:
        at = self.outbox.claim(nbytes, 1.0)
        self.outbox.buffer[at : at + nbytes] = os.urandom(nbytes)
        self.outbox.commit(seq, KIND_OBS, 0, nbytes)

    def close(self) -> None:
        self.outbox.close()
        self.peer.close()
        self.segment.close()


@pytest.fixture(params=[0, (1 << 64) - 64 * 40])
def ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    ring = Ring(request.param)
    yield ring
    ring.close()


def test_an_empty_ring_has_no_last_record(ring: Ring) -> None:
    assert recall.last_record(ring.outbox) is None
    assert list(recall.records(ring.peer, ring.outbox.tail, ring.outbox.tail)) == []


def test_the_last_record_is_found_at_any_size(ring: Ring) -> None:
    random = np.random.default_rng(1)
    sizes = [0, 1, 32, 33, 4064, 4065, 8160, 8161, 30_000, *random.integers(0, 30_000, 300)]
    for seq, nbytes in enumerate(int(size) for size in sizes):
        before = ring.outbox.tail
        ring.put(seq, nbytes)
        for view in (ring.outbox, ring.peer):
            held = recall.last_record(view)
            assert held is not None
            assert (held.seq, held.nbytes, held.position) == (seq, nbytes, before)
            assert held.end == ring.outbox.tail


def test_records_are_walked_from_a_boundary(ring: Ring) -> None:
    for seq in range(500):
        if seq == 430:
            boundary = ring.outbox.tail
        ring.put(seq, 100 + seq % 64)
    _, tail, _ = recall.positions(ring.peer)
    walked = list(recall.records(ring.peer, boundary, tail))
    assert [held.seq for held in walked] == list(range(430, 500))


def test_what_was_overwritten_is_no_record(ring: Ring) -> None:
    boundary = ring.outbox.tail
    for seq in range(2000):
        ring.put(seq, 100)
    with pytest.raises(CorruptRingError, match="no record begins at position"):
        recall.record_at(ring.peer, boundary, ring.outbox.tail)
    with pytest.raises(CorruptRingError, match="no record begins at position"):
        next(recall.records(ring.peer, boundary, ring.outbox.tail))


def test_a_walk_ends_where_a_record_is_written_over(ring: Ring) -> None:
    boundary = ring.outbox.tail
    for seq in range(40):
        ring.put(seq, 100)
    walk = recall.records(ring.peer, boundary, ring.outbox.tail)
    held = [next(walk) for _ in range(3)]
    assert held == [recall.record_at(ring.peer, each.position, ring.outbox.tail) for each in held]
    later = (held[2].end + 30 * (held[1].end - held[1].position)) % (1 << 64)
    at = later & (ring.peer.capacity - 1)
    ring.outbox.buffer[at : at + 8] = b"\xff" * 8
    found = []
    with pytest.raises(CorruptRingError, match=f"no record begins at position {later}"):
        found.extend(each.seq for each in walk)
    assert found == list(range(3, 33))
    assert [each.seq for each in recall.records(ring.peer, boundary, later)] == list(range(33))


def test_a_closed_ring_is_not_walked(ring: Ring) -> None:
    ring.put(0, 100)
    tail = ring.outbox.tail
    ring.peer.close()
    with pytest.raises(LocalError, match="was closed"):
        next(recall.records(ring.peer, 0, tail))


@pytest.mark.guarantee("G9")
def test_a_scribbled_ring_has_no_last_record(ring: Ring) -> None:
    for seq in range(20):
        ring.put(seq, 100)
    ring.outbox.buffer[:CAPACITY] = os.urandom(CAPACITY)
    with pytest.raises(CorruptRingError, match="no record ends at"):
        recall.last_record(ring.peer)
