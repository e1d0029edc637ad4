"""A recorder that can't be kept alive, or is stopped, and a recording that somebody takes away.

However that is, the run ends whole: it says why, its exit code is right, and what it counts is what
the journal holds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dsec.runners.journal import FILE_NAME
from tests import watchdog
from tests.crash import runs

pytestmark = pytest.mark.slow

ENDLESS = 50_000_000


def started(tmp_path: Path, out: Path) -> watchdog.Watched:
    config = runs.write_config(
        tmp_path / "config.yaml", [runs.walker("a"), runs.walker("b")], steps=ENDLESS
    )
    return watchdog.Watched(runs.argv(config, out), tmp_path / "streams")


def recording(program: watchdog.Watched, out: Path) -> None:
    program.until(
        lambda: min(runs.committed(out).values(), default=0) > 300, 90, "300 transitions each"
    )


@pytest.mark.guarantee("G2", "G7", "G8")
@pytest.mark.parametrize("mercy", [True, False])
def test_a_recorder_that_is_killed_too_often_ends_the_run_whole(
    tmp_path: Path, mercy: bool
) -> None:
    """Its last life takes what the rings hold; if even that is killed, the journal is counted."""
    out = tmp_path / "run"
    with started(tmp_path, out) as program:
        recording(program, out)
        spared = {runs.supervisor_of(program)}  # which opens the journal, too, to count it
        killed: set[int] = set()

        def kill_on() -> bool:
            if not mercy or len(killed) < 6:
                for pid in set(runs.recorders(out, program)) - killed - spared:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
            return program.returncode is not None

        watchdog.until(kill_on, 90, "the end of the run")
        assert program.returncode == 3, program.tails()
        assert len(killed) == (6 if mercy else 7)
        assert "dsec-kernel: the recorder is gone: killed by SIGKILL" in program.stderr
        summary = runs.summary_of(program.stdout)
        watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
    assert summary["lost"] == 0
    held = runs.check_recording(out)
    assert summary["steps"] == sum(held.values())
    agents = json.loads((out / "summary.json").read_text())["agents_by_name"]
    assert {name: agent["steps"] for name, agent in agents.items()} == held
    if mercy:
        assert "recording/" in program.stdout or (out / "recording").is_dir(), "it was converted"


@pytest.mark.guarantee("G6", "G8")
def test_a_stopped_recorder_does_not_keep_the_end_waiting(tmp_path: Path) -> None:
    """It is replaced, and its successor has what it left; nobody waits until it would count as
    silent for too long."""
    out = tmp_path / "run"
    with started(tmp_path, out) as program:
        recording(program, out)
        stopped = runs.recorder_of(out, program)
        os.kill(stopped, signal.SIGSTOP)
        program.send(signal.SIGINT)
        assert program.wait(60) == 130, program.tails()
        assert "stopped (SIGSTOP) while the run ends" in program.stderr
        summary = runs.summary_of(program.stdout)
    assert summary["lost"] == 0
    assert sum(runs.check_recording(out).values()) == summary["steps"]


def remove_journal(out: Path) -> None:
    (out / FILE_NAME).unlink()


def replace_journal(out: Path) -> None:
    (out / FILE_NAME).rename(out / "elsewhere")
    (out / FILE_NAME).write_bytes(b"")


def remove_directory(out: Path) -> None:
    shutil.rmtree(out)


def move_directory(out: Path) -> None:
    out.rename(out.with_name("moved"))


@pytest.mark.parametrize(
    "take", [remove_journal, replace_journal, remove_directory, move_directory]
)
def test_a_recording_that_is_taken_away_ends_the_run_at_once(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    out = tmp_path / "run"
    with started(tmp_path, out) as program:
        recording(program, out)
        take(out)
        assert program.wait(60) == 3, program.tails()
        assert "the recording is gone" in program.stderr
        assert f"dsec-kernel: the journal {out / FILE_NAME} is gone: " in program.stderr
        summary = runs.summary_of(program.stdout)
    assert summary["steps"] > 600, "what was done is told all the same"
    assert summary["error"]["kind"] == "machine"
    assert not runs.remains(program)
