"""However a run ends, nothing is left of it: G8, and of G2 what concerns a killed supervisor."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.runners.journal import FILE_NAME
from dsec.testing import leaks
from tests import watchdog
from tests.crash import runs

ENDLESS = 50_000_000


def grandchildren(program: watchdog.Watched) -> list[int]:
    lines = {pid: leaks.process_line(pid) for pid in runs.remains(program)}
    return [pid for pid, line in lines.items() if "dsec-test-grandchild" in line]


def interrupt(program: watchdog.Watched) -> None:
    program.send(signal.SIGINT)


def terminate(program: watchdog.Watched) -> None:
    program.send(signal.SIGTERM)


def kill_supervisor(program: watchdog.Watched) -> None:
    os.kill(runs.supervisor_of(program), signal.SIGKILL)


def kill_guardian(program: watchdog.Watched) -> None:
    program.send(signal.SIGKILL)


def kill_stopped_supervisor(program: watchdog.Watched) -> None:
    """As a machine out of memory does: frozen for a while, then gone."""
    pid = runs.supervisor_of(program)
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)


ENDS: dict[str, tuple[Callable[[watchdog.Watched], None], set[int]]] = {
    "SIGINT": (interrupt, {130}),
    "SIGTERM": (terminate, {130, 143}),
    "SIGKILL of the supervisor": (kill_supervisor, {70, 137}),
    "SIGKILL of a stopped supervisor": (kill_stopped_supervisor, {70, 137}),
    "SIGKILL of the guardian": (kill_guardian, {-9}),
}


def temporary(run_dir: Path) -> list[str]:
    """Files that no finished run would have."""
    names = [path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*")]
    return [n for n in names if n.endswith((".tmp", ".part", "~")) or "/." in f"/{n}"]


@pytest.mark.slow
@pytest.mark.guarantee("G8", "G2")
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_of_a_run_that_is_ended(end: str, tmp_path: Path) -> None:
    act, codes = ENDS[end]
    agents = [
        runs.walker("parent", evidence=tmp_path, fault="grandchildren", at=40),
        runs.walker("plain", every=50),
    ]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=ENDLESS)
    out = tmp_path / "run"
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        program.until(lambda: len(grandchildren(program)) == 2, 60, "two grandchildren")
        program.until(
            lambda: min(runs.committed(out).values(), default=0) > 200, 60, "200 transitions each"
        )
        reached = runs.committed(out)
        act(program)
        assert program.wait(30) in codes, program.tails()
        watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
    assert temporary(out) == []
    if (out / FILE_NAME).exists():
        runs.check_journal(out)
    held = runs.check_recording(out)
    for name, steps in reached.items():
        assert held[name] >= steps, "committed transitions are never lost"


@pytest.mark.slow
@pytest.mark.guarantee("G8")
def test_a_second_interrupt_kills_what_does_not_drain(tmp_path: Path) -> None:
    agents = [
        runs.walker("stuck", evidence=tmp_path, fault="hang", at=30, deadlines={"step_s": 500.0}),
        runs.walker("plain"),
    ]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=ENDLESS)
    out = tmp_path / "run"
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        program.until((tmp_path / "stuck").exists, 60, "an environment that is stuck")
        program.send(signal.SIGINT)
        program.until(lambda: "once more to kill" in program.stderr, 20, "the first was taken")
        program.send(signal.SIGINT)
        assert program.wait(8) == 130, program.tails()  # draining would have had ten seconds
        watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
    assert runs.check_recording(out)["stuck"] == 29, "what was published is kept even then"


@pytest.mark.slow
@pytest.mark.guarantee("G8")
def test_nothing_is_left_of_a_run_that_is_done(tmp_path: Path) -> None:
    """The grandchildren of an environment end with the run, too."""
    agents = [runs.walker("parent", evidence=tmp_path, fault="grandchildren", at=40)]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=100)
    out = tmp_path / "run"
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        assert program.wait(60) == 0, program.tails()
        assert (tmp_path / "parent").exists(), "the fault didn't happen"
        watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
    assert temporary(out) == []


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_a_killed_recorder_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    agents = [runs.walker("a"), runs.walker("b")]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=ENDLESS)
    out = tmp_path / "run"
    killed: set[int] = set()

    def go_on(steps: int) -> None:
        """Wait until every agent has committed that many transitions more."""
        start = runs.committed(out) or {"a": 0, "b": 0}
        program.until(
            lambda: all(runs.committed(out).get(n, 0) > start[n] + steps for n in start),
            60,
            f"{steps} more transitions of each",
        )

    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        for _ in range(3):
            go_on(500)
            killed.add(pid := runs.recorder_of(out, program))
            os.kill(pid, signal.SIGKILL)
            program.until(lambda p=pid: p not in runs.recorders(out, program), 20, "its death")
        go_on(500)
        program.send(signal.SIGINT)
        assert program.wait(30) == 130, program.tails()
        summary = runs.summary_of(program.stdout)
    assert len(killed) == 3, "three different recorders were killed"
    assert summary["lost"] == 0
    held = runs.check_recording(out)
    assert sum(held.values()) == summary["steps"]
    assert min(held.values()) > 2000
