"""One run, one directory: claimed, locked, refused, and left tidy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec import rundir
from dsec.errors import MachineError, RunDirBusy
from tests.ipc.rings import child

HOLDER = """
import sys
from pathlib import Path
from dsec import rundir
with rundir.claim(Path(sys.argv[1]), "x"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of tmp_path/run until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_new_directory_is_named_after_the_run(tmp_path: Path) -> None:
    parent = tmp_path / "runs"
    with (
        rundir.claim(None, "pole", parent=parent) as one,
        rundir.claim(None, "pole", parent=parent) as two,
    ):
        assert one.path != two.path
        for directory in (one, two):
            assert directory.path.parent == parent
            assert directory.path.name.startswith("pole-2")


def test_a_living_run_is_refused_by_its_process(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(RunDirBusy) as caught:
        rundir.claim(tmp_path / "run", "x")
    assert f"process {holder.pid}" in str(caught.value)
    assert "choose another --out" in caught.value.remedy


@pytest.mark.guarantee("G8")
def test_a_killed_run_holds_no_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait(timeout=30)
    with rundir.claim(tmp_path / "run", "x") as directory:
        assert (directory.path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_finished_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with rundir.claim(tmp_path / "run", "x") as directory:
        directory.write_json("kernel.json", {"a": 1})
    with pytest.raises(RunDirBusy, match=r"it holds kernel\.json") as caught:
        rundir.claim(tmp_path / "run", "x")
    assert "rm -r" in caught.value.remedy


def test_a_folder_with_other_files_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with rundir.claim(tmp_path, "x") as directory:
        directory.write_text("kernel.json", "{}")
        directory.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_was_discarded_is_gone_and_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        directory = rundir.claim(tmp_path / "a" / "run", "x")
        directory.write_text("config.yaml", "a: 1\n")
        (directory.path / "logs").mkdir()
        (directory.path / "logs" / "a.err").write_text("x")
        directory.discard()
        assert not (tmp_path / "a" / "run").exists()


def test_files_appear_whole_and_can_be_replaced(tmp_path: Path) -> None:
    with rundir.claim(tmp_path / "run", "x") as directory:
        for value in (1, 2):
            directory.write_json("summary.json", {"n": value})
            assert json.loads((directory.path / "summary.json").read_text()) == {"n": value}
        assert sorted(p.name for p in directory.path.iterdir()) == ["lock", "summary.json"]


def test_a_file_in_the_way_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(MachineError, match="is a file, not a directory"):
        rundir.claim(tmp_path / "run", "x")
    with pytest.raises(MachineError, match="can't be written: Not a directory"):
        rundir.claim(tmp_path / "run" / "below", "x")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(MachineError, match="is a link to nowhere, not a directory"):
        rundir.claim(tmp_path / "link", "x")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="can't be written: File name too long"):
        rundir.claim(tmp_path / ("x" * 300), "x")


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    # /proc refuses new directories to everyone, root included.
    with pytest.raises(MachineError, match="can't be written") as caught:
        rundir.claim(Path("/proc/dsec-run"), "x")
    assert "Choose another --out" in caught.value.remedy


@pytest.mark.parametrize(("below", "mode"), [("new", 0o555), ("run/in/it", 0o600)])
def test_no_permission(tmp_path: Path, below: str, mode: int) -> None:
    """Neither to write nor even to look."""
    folder = tmp_path / "closed"
    (folder / "run").mkdir(parents=True)
    folder.chmod(mode)

    def claim() -> None:
        os.chdir(tmp_path)  # whose parents may be closed to anybody else
        if os.geteuid() == 0:  # who may do everything
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        with pytest.raises(MachineError, match="Permission denied") as caught:
            rundir.claim(Path("closed") / below, "x")
        assert "write permission" in caught.value.remedy

    tmp_path.chmod(0o755)
    with child(claim) as forked:
        code = forked.wait()
    folder.chmod(0o755)
    assert code == 0


def test_a_full_disk_is_noticed_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "FREE_BYTES_MIN", 2**62)
    with pytest.raises(MachineError, match="are free on that disk"):
        rundir.claim(tmp_path / "run", "x")
    monkeypatch.undo()
    rundir.claim(tmp_path / "run", "x").close()
