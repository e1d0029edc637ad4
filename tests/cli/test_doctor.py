"""`dsec-kernel doctor` as it is typed: what is said, as text and as JSON, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.cli.doctor import as_object, lines
from dsec.doctor import Line, Report, Verdict, Wants
from tests import watchdog

COMMAND: list[str | Path] = [sys.executable, "-m", "dsec.cli.kernel", "doctor"]
CONFIG = """\
run: {name: t, steps: 400}
agents:
  - {name: a, count: 3, env: {id: CartPole-v1}, policy: {entry: "dsec.policies:RandomPolicy"}}
pool: {size_mb: 64}
"""


def call(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    done = watchdog.run([*COMMAND, *words], folder / "streams", timeout_s=60, cwd=watchdog.ROOT)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def test_a_device_that_is_not_there_fails_and_the_exit_code_says_so(tmp_path: Path) -> None:
    done = call(tmp_path, "--device", "frob0")
    assert done.returncode == 3
    told = [line for line in done.stdout.splitlines() if "frob0" in line]
    assert told[0].split()[:2] == ["fail", "device"]


def test_a_configuration_says_for_how_many_agents_and_which_pool(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    done = call(tmp_path, path, "--json")
    told = json.loads(done.stdout)
    assert (told["agents"], told["pool_bytes"], told["cluster"]) == (3, 64 << 20, False)
    by_name = {check["name"]: check for check in told["checks"]}
    assert "for 3 agents" in by_name["descriptors"]["found"]
    assert done.returncode == (3 if told["verdict"] == "fail" else 0)
    assert sum(told["counts"].values()) == len(told["checks"])


def test_a_wrong_configuration_has_its_line_and_code(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("size_mb", "size"))
    done = call(tmp_path, path)
    assert done.returncode == 2
    assert "pool.size" in done.stderr


@pytest.mark.parametrize("words", [["--agents", "0"], ["--port", "x"], ["a", "b"]])
def test_usage_errors(tmp_path: Path, words: list[str]) -> None:
    assert call(tmp_path, *words).returncode == 2


def test_what_mends_a_line_stands_below_it() -> None:
    report = Report(
        (
            Line("machine", "cores", Verdict.PASS, "8"),
            Line("network", "tcp", Verdict.WARN, "cubic", "sysctl -w x=2"),
        )
    )
    assert lines(report) == [
        "machine",
        "  pass  cores  8",
        "network",
        "  warn  tcp    cubic",
        "               → sysctl -w x=2",
        "1 pass, 1 warn, 0 fail",
    ]
    told = as_object(report, Wants())
    assert told["verdict"] == "warn"
    assert [check["remedy"] for check in told["checks"]] == [None, "sysctl -w x=2"]
