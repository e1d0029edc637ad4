"""Pools that nobody has any more, and those that only seem so."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.errors import PoolOwned
from dsec.pools import Retention, collect, survey
from dsec.sml import named, orphans
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool

SIZE = 1 << 16


@pytest.fixture
def path() -> Iterator[Path]:
    path = named.SHM / f"{named.PREFIX}test-{uuid.uuid4().hex}"
    yield path
    path.unlink(missing_ok=True)


def name_of(path: Path) -> str:
    return path.name.removeprefix(named.PREFIX)


def left(path: Path, *, bound: bool = True, persist: bool = False) -> int:
    """A pool with an atom whose writer is gone; return its bytes."""
    with ShmPool.create(name_of(path), SIZE, bound=bound, persist=persist) as pool:
        pool.put(Label(1), b"body")
        return pool.usage().segment_bytes


@pytest.mark.guarantee("G8")
def test_what_a_kernel_made_goes_once_kernel_and_writer_are_gone(path: Path) -> None:
    size = left(path)
    hold = named.Hold(name_of(path))
    orphans.sweep()
    assert path.exists(), "the kernel lives, only its server is being replaced"
    assert survey([name_of(path)])[0].owner == 0
    with pytest.raises(PoolOwned):
        collect(name_of(path), Retention())
    with pytest.raises(PoolOwned, match="belongs to a kernel"):
        orphans.discard(name_of(path))
    with ShmPool.adopt(name_of(path)) as successor:
        assert successor.get(1) == b"body", "which may write it"
        hold.release()
        hold.release()
        orphans.sweep()
        assert path.exists(), "the writer lives"
    assert (name_of(path), size) in orphans.sweep()
    assert not path.exists()


@pytest.mark.parametrize("kind", [{"persist": True}, {"bound": False}])
def test_what_is_not_known_to_be_nobodys_stays(path: Path, kind: dict[str, bool]) -> None:
    left(path, **kind)
    orphans.sweep()
    assert path.exists()


def test_what_never_became_a_pool_goes_when_it_is_old(path: Path) -> None:
    for content in (b"", bytes(SIZE)):
        path.write_bytes(content)
        orphans.sweep()
        assert path.exists(), "it may be being made"
        old = time.time() - orphans.UNFINISHED_S - 1
        os.utime(path, (old, old))
        assert (name_of(path), len(content)) in orphans.sweep()
        assert not path.exists()


def test_what_is_no_pool_stays_however_old(path: Path) -> None:
    path.write_bytes(b"somebody else's" * 1000)
    os.utime(path, (0, 0))
    orphans.sweep()
    assert path.exists()
