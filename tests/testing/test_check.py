"""`check_env` and `dsec-kernel check`: each flaw is found and named, and nothing else is blamed."""

from __future__ import annotations

import json
import sys
import typing
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsec.cli import check as command
from dsec.config import Fault
from dsec.errors import ConfigError
from dsec.testing import CheckReport, check_env
from dsec.testing.check import FAULTS, named
from dsec.testing.probing import EnvironmentUnusable
from tests import watchdog

WORLD = "tests.testing.worlds:World"
COMMAND = Path(sys.executable).with_name("dsec-kernel")


def checked(*flaws: str, faults: tuple[str, ...] = ()) -> CheckReport:
    """Without runs, unless faults are named."""
    kwargs = {f"flaw_{at}": flaw for at, flaw in enumerate(flaws)}
    return check_env(WORLD, kwargs=kwargs, faults=faults)


@pytest.mark.slow
@pytest.mark.guarantee("G3")
def test_a_sound_environment_survives_with_the_very_same_recording() -> None:
    report = checked(faults=("segv", "exception"))
    assert report.problems == ()
    assert report.sound
    assert report.deterministic.verdict == "yes"
    assert report.deterministic.steps == 1000
    assert [(each.kind, each.happened, each.survived, each.exact) for each in report.faults] == [
        ("segv", True, True, True),
        ("exception", True, True, True),
    ]
    assert report.faults[0].cause == "killed by SIGSEGV in step"
    assert report.faults[1].cause.startswith("raised dsec.runners.chaos.InjectedFault in step")
    assert all(each.ms is not None and each.ms > 0 for each in report.faults)
    assert report.identical
    assert (report.lost, report.left) == (0, ())
    assert {each.name: each.faithful for each in report.codecs} == {
        "attributes": True,
        "pickle": True,
    }
    assert report.replay is not None
    assert report.replay.faithful
    assert report.fork is not None
    assert report.fork.faithful
    assert report.level in ("state", "replay")
    shown = dict(command.rows(report))
    assert shown["deterministic"] == "yes, 1,000 steps in two processes"
    assert shown["survives segv"].endswith("ms, bit-identical")
    assert json.loads(json.dumps(report.as_object()))["schema"] == 1


@pytest.mark.slow
def test_flaws_are_found_and_named() -> None:
    report = checked("chance", "memory", "descriptors", "thread")
    assert not report.sound
    same = report.deterministic
    assert (same.verdict, same.step, same.what) == ("no", 7, "observation")
    assert any("step 7" in each for each in report.problems)
    leaked = report.per_1000_steps
    assert leaked is not None
    assert 1000 < leaked.memory_kib < 4000
    assert leaked.descriptors == 20
    assert any("KiB of memory and 20 descriptors in 1,000 steps" in e for e in report.problems)
    assert report.opened.threads == ("ticker",)
    assert report.fork is not None
    assert "other Python threads (ticker)" in report.fork.why
    assert "no: observation at step 7 differs" in dict(command.rows(report))["deterministic"]


@pytest.mark.slow
def test_a_dependence_on_the_hash_seed_is_told_apart() -> None:
    report = checked("hash")
    assert report.deterministic.verdict == "hash seed"
    assert report.sound
    assert any("PYTHONHASHSEED" in each for each in report.notes)


def test_one_that_dies_by_itself_says_where() -> None:
    with pytest.raises(EnvironmentUnusable, match="left with exit code 9 while it was stepped"):
        checked("dies")


def test_one_that_cant_be_made_says_why() -> None:
    with pytest.raises(EnvironmentUnusable, match="OSError: the simulator's licence") as caught:
        checked("broken")
    assert "in __init__" in caught.value.detail


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["CartPole-v9"], 'no environment "CartPole-v9" (did you mean CartPole-v1?)'),
        (["tests.testing.worlds:World", "--wrapper", "TimeLimitt"], "did you mean TimeLimit?"),
        (["nowhere.yaml"], "no such file"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(
    argv: list[str], said: str, tmp_path: Path
) -> None:
    result = watchdog.run([COMMAND, "check", *argv, "--json"], tmp_path, timeout_s=60)
    assert result.returncode == 2, result.stderr
    told = json.loads(result.stdout)
    assert told["sound"] is None
    assert said in told["error"]["message"]
    assert said in result.stderr


def test_a_name_that_can_be_none_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="expected the id of a registered environment"):
        check_env("Cart Pole")


def test_options_that_mean_nothing_are_refused() -> None:
    for options, said in (
        (["--faults", "segv,sevg"], "'sevg' is none of"),
        (["--kwargs", "[1]"], "write a mapping"),
        (["--kwargs", "{a: "], "YAML"),
    ):
        result = CliRunner().invoke(command.check, ["CartPole-v1", *options])
        assert result.exit_code == 2, result.output
        assert said in result.output


def test_names_on_a_command_line() -> None:
    assert named("CartPole-v1") == {"id": "CartPole-v1"}
    assert named("ale_py:ALE/Pong-v5") == {"id": "ale_py:ALE/Pong-v5"}
    assert named("my.package:Class.make") == {"entry": "my.package:Class.make"}


def test_the_command_knows_the_kinds_that_a_configuration_has() -> None:
    kinds = typing.get_args(Fault.model_fields["kind"].annotation)
    assert kinds == command.KINDS
    assert set(FAULTS) <= set(kinds)
