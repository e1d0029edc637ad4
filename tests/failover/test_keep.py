"""Kept snapshots: two slots, of which one is always whole, whatever else is in the file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.errors import SnapshotError
from dsec.failover.keep import Keeper, Snapshot, heads, newest, read


def snapshot(seq: int, *parts: bytes) -> Snapshot:
    return Snapshot(seq, seq * 64, seq * 128, seq * 192, seq // 3, 17, "attributes", parts)


def same(found: Snapshot | None, put: Snapshot) -> bool:
    if found is None or list(found.parts) != list(put.parts):
        return False
    return found._replace(parts=()) == put._replace(parts=())


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper("test")
    yield keeper
    keeper.close()


def test_the_newest_is_given_back(keeper: Keeper) -> None:
    assert keeper.fd == -1
    for seq in range(20):
        put = snapshot(seq, os.urandom(seq * 10), b"", os.urandom(7))
        keeper.put(put)
        assert same(newest(keeper.fd), put)


def test_a_name_of_any_script_and_length_will_do() -> None:
    """That of an agent; the system takes 249 bytes."""
    keeper = Keeper("代" * 200 + ".policy")
    try:
        keeper.put(snapshot(3, b"state"))
    finally:
        keeper.close()


def test_only_a_larger_file_is_a_new_one(keeper: Keeper) -> None:
    assert keeper.put(snapshot(0, bytes(1000)))
    first = keeper.size
    assert not keeper.put(snapshot(1, bytes(1100)))
    assert keeper.put(snapshot(2, bytes(100_000)))
    assert keeper.size > first
    found = newest(keeper.fd)
    assert found is not None and found.seq == 2


@pytest.mark.guarantee("G9")
@given(at=st.integers(0, 700), data=st.binary(min_size=1, max_size=64))
@settings(max_examples=200, deadline=None)
def test_a_torn_snapshot_leaves_the_one_before(at: int, data: bytes) -> None:
    keeper = Keeper("torn")
    older, newer = snapshot(6, b"x" * 300), snapshot(7, b"y" * 300)
    keeper.put(older)
    keeper.put(newer)
    # The second one lies in the first slot, which these bytes may damage.
    before = os.pread(keeper.fd, len(data), at)
    os.pwrite(keeper.fd, data, at)
    found = newest(keeper.fd)
    keeper.close()
    assert same(found, newer) or (before != data and same(found, older))


@pytest.mark.guarantee("G9")
@given(data=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_snapshot_or_none(data: bytes) -> None:
    keeper = Keeper("any")
    keeper.put(snapshot(1, b"z" * 200))
    for at in (0, keeper.size // 2):
        os.pwrite(keeper.fd, data + os.urandom(64), at)
    found = newest(keeper.fd)
    keeper.close()
    assert found is None or found.seq == 1


@pytest.mark.guarantee("G9")
def test_what_is_no_kept_file_is_refused() -> None:
    with pytest.raises(SnapshotError, match="no memory file"):
        read, write = os.pipe()
        os.close(write)
        try:
            newest(read)
        finally:
            os.close(read)
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 8192)
    with pytest.raises(SnapshotError, match="no memory file of snapshots"):
        newest(fd)
    os.close(fd)


def test_what_is_for_atoms_only_is_not_a_successors() -> None:
    """And of a history the boundaries are found, as long as they are there."""
    keeper = Keeper("history", history=True)
    try:
        for seq in range(30):
            parts = (b"state %d" % seq, b"beside") if seq % 5 == 0 else (b"state %d" % seq,)
            boundary = seq % 5 == 0
            keeper.put(snapshot(seq, *parts)._replace(boundary=boundary, beside=int(boundary)))
            found = newest(keeper.fd)
            assert found is not None
            assert [bytes(part) for part in found.parts] == [b"state %d" % seq]
        there = {head.seq: head for head in heads(keeper.fd)}
        assert sorted(there) == [0, 5, 10, 15, 20, 25, 28, 29]
        assert [seq for seq, head in there.items() if head.boundary] == [0, 5, 10, 15, 20, 25]
        kept = read(keeper.fd, there[25])
        assert kept is not None and kept.boundary and kept.beside == 1
        assert bytes(kept.parts[1]) == b"beside"
        keeper.put(snapshot(30, b"another")._replace(boundary=True))
        assert read(keeper.fd, there[0]) is None, "it has been written over"
        assert read(keeper.fd, there[28]) is not None, "and only that"
    finally:
        keeper.close()
