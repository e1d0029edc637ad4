"""A disk that is full pauses a run, says so, and ends it whole if that lasts.

Two ways to a full disk: a limit on the size of files (works for everybody, and can be lifted while
the run waits), and a small tmpfs in a mount namespace of its own, where the system allows that.
"""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path

import pytest

from dsec.runners.journal import FILE_NAME
from tests import watchdog
from tests.crash import runs

MIB = 1 << 20
LIMIT = 24 * MIB
WIDE = 1024  # numbers in an observation: 4 KiB, so that a few thousand steps fill the "disk"
STEPS = 12_000


def limit_files() -> None:
    """Only the soft limit: it can be raised again from outside without any privilege."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))


def write_config(folder: Path, disk_wait_s: float) -> Path:
    agents = [runs.walker("wide", width=WIDE, ipc={"ring_slots": 64})]
    return runs.write_config(
        folder / "config.yaml", agents, steps=STEPS, record={"disk_wait_s": disk_wait_s}
    )


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_run_whole(tmp_path: Path) -> None:
    finished = runs.run(write_config(tmp_path, 1.0), tmp_path, prepare=limit_files)
    assert finished.code == 3, finished.stderr
    assert "disk full" in finished.stderr
    held = runs.check_journal(finished.run_dir)["wide"]
    assert 1000 < held < STEPS
    assert finished.summary["steps"] == held
    assert (finished.run_dir / FILE_NAME).stat().st_size <= LIMIT


@pytest.mark.slow
def test_a_disk_that_gets_room_again_costs_nothing_but_time(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = write_config(tmp_path, 60.0)
    with watchdog.Watched(
        runs.argv(config, out), tmp_path / "streams", prepare=limit_files
    ) as program:
        program.until(lambda: "disk full" in program.stderr, 60, "word of the full disk")
        waiting = runs.committed(out)["wide"]
        assert waiting < STEPS
        recorder = runs.recorder_of(out, program)
        _, hard = resource.prlimit(recorder, resource.RLIMIT_FSIZE)
        resource.prlimit(recorder, resource.RLIMIT_FSIZE, (hard, hard))
        assert program.wait(60) == 0, program.tails()
        summary = runs.summary_of(program.stdout)
    assert summary["steps"] == STEPS
    assert summary["lost"] == 0


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G8")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_does_not_wait_for_a_disk_longer_than_a_drain_lasts(
    tmp_path: Path, number: int
) -> None:
    """However long a full disk would be waited for otherwise; and the run ends whole, and says so.
    One agent stands at its full rings, the other has a second of room left."""
    out = tmp_path / "run"
    agents = [
        runs.walker("wide", width=WIDE, ipc={"ring_slots": 64}),
        runs.walker("narrow", ipc={"ring_slots": 4096}),
    ]
    config = runs.write_config(
        tmp_path / "config.yaml", agents, steps=2_000_000, record={"disk_wait_s": 600_000.0}
    )
    with watchdog.Watched(
        runs.argv(config, out), tmp_path / "streams", prepare=limit_files
    ) as program:
        program.until(lambda: "disk full" in program.stderr, 90, "word of the full disk")
        reached = runs.committed(out)
        program.send(number)
        assert program.wait(60) == 3, program.tails()
        summary = runs.summary_of(program.stdout)
        assert "dsec-kernel: the disk is full: " in program.stderr
        assert "killing all" not in program.stderr
    held = runs.check_journal(out)
    assert all(held[name] >= steps for name, steps in reached.items())
    assert summary["steps"] == sum(held.values())
    assert summary["error"]["kind"] == "machine"


@pytest.mark.slow
def test_a_second_interrupt_ends_the_waiting_for_a_disk(tmp_path: Path) -> None:
    """The first one waits, as configured, for room to write down what was done."""
    out = tmp_path / "run"
    config = write_config(tmp_path, 600.0)
    with watchdog.Watched(
        runs.argv(config, out), tmp_path / "streams", prepare=limit_files
    ) as program:
        program.until(lambda: "disk full" in program.stderr, 60, "word of the full disk")
        reached = runs.committed(out)["wide"]
        program.send(signal.SIGINT)
        program.until(lambda: "once more to kill" in program.stderr, 20, "the first was taken")
        program.send(signal.SIGINT)
        assert program.wait(20) in (3, 130), program.tails()
    assert runs.check_journal(out)["wide"] >= reached


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("unshare") is None or not runs.namespaces_allowed(),
    reason="no mount namespace for ordinary users here; the tests above don't need one",
)
def test_a_small_file_system_that_is_full_ends_the_run_whole(tmp_path: Path) -> None:
    config = write_config(tmp_path, 1.0)
    small, kept = tmp_path / "small", tmp_path / "kept"
    small.mkdir()
    command = " ".join(f"'{word}'" for word in runs.argv(config, small / "run"))
    script = f"mount -t tmpfs -o size=24m none {small} || exit 99; {command}; code=$?; "
    script += f"cp -r {small}/run {kept} || exit 98; exit $code"
    result = watchdog.run(
        ["unshare", "-rm", "sh", "-c", script], tmp_path / "streams", timeout_s=90
    )
    assert result.returncode == 3, result.stderr
    assert "disk full" in result.stderr
    assert 1000 < runs.check_journal(kept)["wide"] < STEPS
