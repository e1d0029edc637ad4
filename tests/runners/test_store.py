"""Where atoms go: a disk that can't be written for a while costs no atom and no server."""

from __future__ import annotations

import errno
import os
import random
import uuid
from pathlib import Path

import pytest

from dsec.ipc.frames import PoolStart
from dsec.runners import store
from dsec.sml import spill
from dsec.sml.atom import Atom, Manifest, RandomState


def atom(kept: store.Store, seq: int) -> Atom:
    atom_id, atom_uuid = kept.name(0, seq)
    manifest = Manifest(atom_id, atom_uuid, "walker", 0, 0, 0, seq)
    return Atom(manifest, RandomState((), ()))


def no_space(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_cannot_be_written_is_told_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_EVERY_S", 0.0)
    folder = tmp_path / store.FOLDER
    folder.write_text("in the way")
    kept = store.Store(PoolStart(str(tmp_path), f"test-{uuid.uuid4().hex}", 1, False, 1))
    try:
        kept.put(atom(kept, 10), 50)
        assert str(folder) in kept.tend()
        assert kept.spilled == 0
        kept.put(atom(kept, 20), 50)
        assert str(folder) in kept.spill(0), "and nothing is raised"
        folder.unlink()
        assert kept.tend() == ""
        assert kept.spilled == 1
        assert [spill.label_of(path).seq for path in spill.files(folder)] == [20]
    finally:
        kept.close()


def filling(seq: int) -> bytes:
    """Half a pool of a megabyte, in no way to be made smaller."""
    return random.Random(seq).randbytes(300_000)


def test_a_full_pool_gives_up_older_atoms_and_then_says_so(tmp_path: Path) -> None:
    """Of two agents' atoms three fit, not four: the older ones go before their time, the newest of
    each agent never; one that is larger still is left out, with the size that would do."""
    kept = store.Store(PoolStart(str(tmp_path), f"test-{uuid.uuid4().hex}", 1, False, 2))
    try:
        for seq in (10, 20, 30, 40):
            for rank in range(2):
                atom_id, atom_uuid = kept.name(rank, seq)
                manifest = Manifest(atom_id, atom_uuid, f"w{rank}", rank, 0, 0, seq)
                kept.put(Atom(manifest, observation=filling(seq + rank)), 10)
                assert kept.last(rank) == seq
        atoms, _ = kept.held()
        assert 2 <= atoms <= 3
        atom_id, atom_uuid = kept.name(0, 50)
        manifest = Manifest(atom_id, atom_uuid, "w0", 0, 0, 0, 50)
        large = Atom(manifest, observation=random.Random(3).randbytes(900_000))
        with pytest.raises(store.Refused, match="2 agents with such atoms need 5") as refused:
            kept.put(large, 10)
        assert refused.value.key == "", "the run goes on"
        assert [kept.last(0), kept.last(1)] == [40, 40], "as it was"
    finally:
        kept.close()


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store.Store(PoolStart(str(tmp_path), f"test-{uuid.uuid4().hex}", 1, False, 1))
    try:
        kept.put(atom(kept, 10), 50)
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", no_space)
            assert "can't write" in kept.spill(0)
        assert [*(tmp_path / store.FOLDER).iterdir()] == []
        assert kept.spill(0) == ""
    finally:
        kept.close()
