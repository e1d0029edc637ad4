"""What memory can be had, from control groups as they are on disk, of either version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsec.errors import MachineError
from dsec.ipc import memory, segment
from dsec.ipc.frames import Role

GIB = 1 << 30


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return folder


def test_this_machine_says_something_sensible() -> None:
    free = memory.available_bytes()
    assert free is not None
    assert 2**20 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_can_be_dropped_are_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """A container that has read much is full of them, and still has room for a ring."""
    if version == 1:
        names = ("memory__limit_in_bytes", "memory__usage_in_bytes", "total_inactive_file")
    else:
        names = ("memory__max", "memory__current", "inactive_file")
    limit, usage, droppable = names
    stat = f"anon 5\n{droppable} {GIB}"
    files = {limit: str(2 * GIB), usage: str(2 * GIB - 4096), "memory__stat": stat}
    inner = group(tmp_path / "inner", **files)
    outer = group(tmp_path, **{limit: "max", usage: "0"})
    monkeypatch.setattr(memory, "cgroups", lambda controller: (inner, outer))
    assert memory.cgroup_room() == GIB + 4096
    monkeypatch.setattr(segment, "_known_until", 0.0)
    segment.create("small", Role.ENV, 4096, epoch=1).close()
    (inner / "memory.stat").write_text("anon 5\n")
    assert memory.cgroup_room() == 4096
    monkeypatch.setattr(segment, "_known_until", 0.0)
    with pytest.raises(MachineError, match=r"4,096 are available here"):
        segment.create("too large", Role.ENV, 4096, epoch=1)


def test_without_a_bound_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "cgroups", lambda controller: (tmp_path,))
    assert memory.cgroup_room() is None
    assert memory.number(tmp_path / "nothing") is None
