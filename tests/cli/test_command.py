"""The command as it is typed: help, schema, and every way to call it wrongly.

Each mistake is tried with the real program, because what matters is what a person sees: one line
that says what is wrong, the exit code, no traceback.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import watchdog

COMMAND = [sys.executable, "-m", "dsec.cli.kernel"]
GOOD = """\
run: {name: t, seed: 7, steps: 400}
agents:
  - name: pole
    count: 2
    env:
      id: CartPole-v1
    policy: {entry: "dsec.policies:RandomPolicy"}
"""


def call(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    done = watchdog.run([*COMMAND, *words], folder / "streams", timeout_s=60, cwd=watchdog.ROOT)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def config(folder: Path, text: str = GOOD) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_help_and_version(tmp_path: Path) -> None:
    done = call(tmp_path, "--help")
    assert done.returncode == 0
    for word in ("run", "validate", "schema", "130 interrupted"):
        assert word in done.stdout
    assert call(tmp_path, "--version").stdout.startswith("dsec-kernel, version ")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, dsec.cli.kernel\n"
        "heavy = {'pydantic', 'rich', 'structlog', 'yaml', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_schema_is_json(tmp_path: Path) -> None:
    done = call(tmp_path, "schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["properties"].keys() >= {"run", "agents", "record"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["run"], "Missing argument 'CONFIG'"),
        (["run", "--frob", "x"], "No such option"),
        (["run", "a", "b"], "unexpected extra argument"),
    ],
)
def test_usage_errors(tmp_path: Path, words: list[str], said: str) -> None:
    done = call(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD.replace("steps:", "stepz:").replace("count: 2", "count: 0"))
    done = call(tmp_path, "run", path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"{path}:1:1: run.steps: missing: give steps or episodes, as in steps: 200_000",
        f"{path}:1:25: run.stepz: unknown key (did you mean steps?)",
        f"{path}:4:5: agents[0].count: must be at least 1, got 0",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "run.steps=x"], '--set: run.steps: expected a whole number, got text "x"'),
        (["--set", "run.steps"], "--set: expected path=value"),
        (["--steps", "-1"], "--steps: run.steps: must be at least 1, got -1"),
        (["--steps", "many"], '--steps: run.steps: expected a whole number, got text "many"'),
        (["--seed", "-1"], "--seed: run.seed: must be at least 0, got -1"),
    ],
)
def test_mistakes_on_the_command_line_are_blamed_on_it(
    tmp_path: Path, words: list[str], said: str
) -> None:
    for command in ("run", "validate"):
        if command == "validate" and words[0] != "--set":
            continue
        done = call(tmp_path, command, config(tmp_path), *words)
        assert done.returncode == 2
        assert done.stderr.startswith(said)


def test_json_reports_mistakes_too(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD.replace("steps:", "stepz:"))
    done = call(tmp_path, "run", path, "--json")
    assert done.returncode == 2
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["run_dir"] is None
    assert result["error"]["kind"] == "config"
    assert result["error"]["diagnostics"][1]["path"] == "run.stepz"


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    done = call(tmp_path, "run", tmp_path / "nothing.yaml")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nothing.yaml: no such file" in done.stderr


def test_no_place_for_temporary_files(tmp_path: Path) -> None:
    code = (
        "import sys, tempfile; tempfile._candidate_tempdir_list = lambda: ['/nonexistent'];"
        "from dsec.cli.kernel import main; sys.exit(main())"
    )
    words = [sys.executable, "-c", code, "validate", str(config(tmp_path))]
    done = watchdog.run(words, tmp_path / "streams", timeout_s=60, cwd=watchdog.ROOT)
    assert done.returncode == 3
    problem, remedy = done.stderr.splitlines()
    assert problem.startswith("dsec-kernel: there is no place for temporary files: ")
    assert remedy == "  Set TMPDIR to a folder that can be written"
