"""Segments that are no pool, or no longer: each has a name, and none is changed by being opened."""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from dsec.errors import (
    AtomAbsent,
    AtomCorrupt,
    PoolBusy,
    PoolCorrupt,
    PoolError,
    PoolForeign,
    PoolTooNew,
    PoolTooOld,
    PoolTruncated,
    PoolUnfinished,
)
from dsec.sml import named
from dsec.sml._pool import ffi
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool, ShmReader

SIZE = 1 << 16
IDENT_BYTES = 80  # all of the header that its sum covers, and the magic
ATOMS = 20


@pytest.fixture
def path() -> Iterator[Path]:
    name = f"test-{uuid.uuid4().hex}"
    path = Path("/dev/shm") / f"{named.PREFIX}{name}"
    with ShmPool.create(name, SIZE, atoms_max=64) as pool:
        for number in range(ATOMS):
            pool.put(Label(number, seq=number), bytes([number]) * (100 + number))
    yield path
    path.unlink(missing_ok=True)


def name_of(path: Path) -> str:
    return path.name.removeprefix(named.PREFIX)


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def resum(path: Path) -> None:
    """Make the header's checksum fit again."""
    head = path.read_bytes()[8 : IDENT_BYTES - 8]
    patch(path, IDENT_BYTES - 8, struct.pack("<Q", xxhash.xxh3_64_intdigest(head)))


def version(path: Path, number: int) -> None:
    patch(path, 8, struct.pack("<I", number))
    resum(path)


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def cells(path: Path, count: int) -> None:
    patch(path, 24, struct.pack("<Q", count))
    resum(path)


CASES: dict[str, tuple[type[PoolError], Callable[[Path], None]]] = {
    "empty": (PoolTruncated, lambda path: cut(path, 0)),
    "one page": (PoolTruncated, lambda path: cut(path, 4096)),
    "cut": (PoolTruncated, lambda path: cut(path, SIZE - 4096)),
    "grown": (PoolTruncated, lambda path: cut(path, SIZE + 4096)),
    "foreign": (PoolForeign, lambda path: patch(path, 0, b"PAR1PAR1")),
    "zeros": (PoolUnfinished, lambda path: patch(path, 0, bytes(8))),
    "being made": (PoolUnfinished, lambda path: patch(path, 0, b"DAMAKING")),
    "older": (PoolTooOld, lambda path: version(path, 0)),
    "newer": (PoolTooNew, lambda path: version(path, 2)),
    "header flipped": (PoolCorrupt, lambda path: patch(path, 50, b"\xff\xff")),
    "too many cells": (PoolCorrupt, lambda path: cells(path, 1 << 60)),
    "no cells": (PoolCorrupt, lambda path: cells(path, 0)),
}


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_pool_has_its_own_name_and_stays_as_it_is(path: Path, case: str) -> None:
    kind, damage = CASES[case]
    damage(path)
    before = path.read_bytes()
    for open_it in (ShmReader, ShmPool.adopt):
        with pytest.raises(PoolError, match=name_of(path)) as caught:
            open_it(name_of(path))
        assert type(caught.value) is kind
    assert path.read_bytes() == before


def test_the_layout_that_these_tests_patch_is_the_real_one(path: Path) -> None:
    data = path.read_bytes()
    assert data[:8] == b"DASAPOOL"
    assert struct.unpack_from("<IIQ", data, 8) == (1, 0, SIZE)
    assert struct.unpack_from("<Q", data, 24)[0] == 128
    (total,) = struct.unpack_from("<Q", data, IDENT_BYTES - 8)
    assert total == xxhash.xxh3_64_intdigest(data[8 : IDENT_BYTES - 8])
    assert ffi.sizeof("asa_head") == 48


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_a_body_is_named_and_a_writer_takes_the_atom_out(
    path: Path, bit: int
) -> None:
    data = path.read_bytes()
    at = data.index(bytes([5]) * 105) + 50
    patch(path, at, bytes([5 ^ 1 << bit]))
    with ShmReader(name_of(path)) as reader:
        with pytest.raises(AtomCorrupt, match=r"atom 5 of pool.*sum"):
            reader.get(5)
        assert reader.get(6) == bytes([6]) * 106
    with ShmPool.adopt(name_of(path)) as pool:
        assert pool.dropped == 1
        assert pool.usage().atoms == ATOMS - 1
        with pytest.raises(AtomAbsent):
            pool.get(5)
        pool.put(Label(5), b"again")
        assert pool.get(5) == b"again"


@pytest.mark.guarantee("G9")
@pytest.mark.slow
def test_arbitrary_bytes_anywhere_are_an_error_or_the_truth(path: Path) -> None:
    """Each read gives what was put, or an error with a name; never anything else."""
    good, rng, refused, damaged = path.read_bytes(), random.Random(11), 0, 0
    data_at = 4096 + 128 * 8
    for _ in range(400):
        patch(path, 0, good)
        for _ in range(rng.randint(1, 6)):
            start, span = rng.choice([(0, 80), (4096, 1024), (data_at, 4096), (0, SIZE)])
            patch(path, rng.randrange(start, start + span - 8), rng.randbytes(rng.choice([1, 8])))
        try:
            reader = ShmReader(name_of(path))
        except PoolError:
            refused += 1
            continue
        with reader:
            for number in range(ATOMS):
                try:
                    body = reader.get(number)
                except (AtomAbsent, AtomCorrupt, PoolBusy):
                    damaged += 1
                else:
                    assert body == bytes([number]) * (100 + number)
            assert len(list(reader.entries())) <= 128
    assert refused > 10
    assert damaged > 10
