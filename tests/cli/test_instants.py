"""A signal at any instant ends the program quietly, with its exit code and its JSON object.

The instants are counted and not timed: the interpreter tells of everything that it imports, opens,
compiles and starts (audit events), and at the n-th such event the program signals itself. So the
walk goes through imports, the reading of the configuration, the claiming of the run directory, the
start of the loop, the run and its end, and finds the same instants on every machine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from dsec.testing import leaks
from tests import watchdog
from tests.cli.test_run import COMMAND, GOOD, KEYS

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G8")]

PROGRAM = """\
import os, sys
from dsec.cli import start
at, number, told = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
del sys.argv[1:4]
seen = 0
def count(event, args):
    global seen
    seen += 1
    if seen == at:
        with open(told, "w") as file:
            file.write(event)
        os.kill(os.getpid(), number)
    elif event == "os.posix_spawn" and not at:
        with open(told, "w") as file:
            file.write(str(seen))
sys.addaudithook(count)
sys.exit(start.main())
"""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
POINTS = 10
AFTER = 1.02  # how far to go, in events until the first zygote is started


def call(folder: Path, command: str, at: int, number: int) -> tuple[int, str, str]:
    """Run it; return exit code, stdout and stderr."""
    told = folder / "told"
    words = [sys.executable, "-c", PROGRAM, str(at), str(int(number)), told, command]
    options = ["--out", folder / "out"] if command == "run" else []
    done = watchdog.run(
        [*words, folder / "config.yaml", "--json", *options], folder / "streams", timeout_s=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_signal_at_any_instant_ends_it_quietly(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    (tmp_path / "config.yaml").write_text(GOOD)
    code, _, stderr = call(tmp_path, command, 0, signal.SIGINT)
    assert code == 0, stderr
    until_start = int((tmp_path / "told").read_text())
    assert until_start > 500, "imports were counted"
    codes = set()
    for point in range(POINTS):
        at = 1 + round(until_start * AFTER * point / (POINTS - 1))
        where = tmp_path / f"{point}"
        where.mkdir()
        (where / "config.yaml").write_text(GOOD)
        number = NUMBERS[point % len(NUMBERS)]
        code, stdout, stderr = call(where, command, at, number)
        happened = (where / "told").exists()
        said = f"{number.name} at {at} of {until_start}\n{stdout}\n{stderr}"
        assert code == 130 or (code == 0 and at > until_start), said
        assert "Traceback" not in stdout + stderr, said
        result = json.loads(stdout.splitlines()[-1])
        assert result.keys() >= KEYS, said
        assert happened or code == 0, "the signal was sent"
        if at < 0.9 * until_start:
            assert not (where / "out").exists(), f"a run that never began left its folder\n{said}"
            assert stderr == "dsec-kernel: interrupted before the run began\n", said
        assert list(folder.iterdir()) == [], said
        codes.add(code)
    assert 130 in codes


STUCK = """\
run: {steps: 100}
agents:
  - name: a
    env: {entry: "tests.cli.stubborn:Unborn"}
    policy: {entry: "dsec.policies:RandomPolicy"}
"""


@pytest.mark.parametrize("victim", ["guardian", "supervisor"])
def test_a_validation_that_is_killed_leaves_nothing(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    (tmp_path / "config.yaml").write_text(STUCK)
    words = [*COMMAND, "validate", tmp_path / "config.yaml"]
    with watchdog.Watched(words, tmp_path / "streams", env={"TMPDIR": str(folder)}) as program:
        program.until(
            lambda: any("stuck" in path.read_text() for path in folder.rglob("*.err")),
            60,
            "the constructor to be stuck",
        )
        everybody = program.tree()
        (supervisor,) = leaks.children_of(program.pid)
        os.kill(program.pid if victim == "guardian" else supervisor, signal.SIGKILL)
        watchdog.until(
            lambda: (
                not any(Path(f"/proc/{pid}").exists() for pid in everybody if pid != program.pid)
            ),
            30,
            "the end of every process",
        )
        program.wait(30)
    assert list(folder.iterdir()) == []
