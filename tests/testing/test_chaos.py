"""`dsec-kernel chaos`: which guarantees held, and the same plan once more hits the same calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import watchdog
from tests.crash import runs

COMMAND = Path(sys.executable).with_name("dsec-kernel")


def written(folder: Path, budget: int) -> Path:
    agents = [
        runs.walker(name, failover={"restarts": {"max": budget}}, deadlines={"step_s": 1.0})
        for name in ("one", "two")
    ]
    return runs.write_config(folder / "config.yaml", agents, steps=600)


def chaos(folder: Path, config: Path, *options: str) -> tuple[int, dict[str, Any]]:
    argv = [COMMAND, "chaos", config, "--json", *options]
    result = watchdog.run(argv, folder / "streams", timeout_s=100)
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


def evidence(out: Path) -> dict[str, int]:
    """Each fault that happened, by its file, and the record that it came at."""
    folder = out / "hit" / "chaos"
    return {
        str(path.relative_to(folder)): json.loads(path.read_text())["seq"]
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.guarantee("G1", "G2", "G3", "G6", "G7", "G8", "G12")
def test_guarantees_hold_and_a_plan_is_done_again(tmp_path: Path) -> None:
    config, plan = written(tmp_path, 20), tmp_path / "plan.json"
    drawn = ("--seed", "3", "--rate", "0.01", "--faults", "segv,kill,exit,exception,hang")
    code, report = chaos(tmp_path, config, *drawn, "--plan", str(plan), "--out", f"{tmp_path}/1")
    assert code == 0, report
    assert report["sound"]
    assert report["identical"]
    assert sum(report["happened"].values()) == sum(report["planned"].values()) > 3
    assert report["failovers"] == report["exact"] >= sum(report["happened"].values())
    assert (report["lost"], report["left"], report["quarantined"]) == (0, [], [])
    assert all(not each["broken"] for each in report["guarantees"])
    code, again = chaos(tmp_path, config, "--plan", str(plan), "--out", f"{tmp_path}/2")
    assert code == 0, again
    assert again["happened"] == report["happened"]
    assert evidence(tmp_path / "1") == evidence(tmp_path / "2") != {}


@pytest.mark.slow
@pytest.mark.guarantee("G7")
def test_beyond_the_budget_only_safety_is_asked_for(tmp_path: Path) -> None:
    config = written(tmp_path, 1)
    options = ("--faults", "kill", "--rate", "0.05", "--beyond-budget", "--roles", "env")
    code, report = chaos(tmp_path, config, *options, "--out", f"{tmp_path}/1")
    assert code == 0, report
    assert report["quarantined"] == ["one", "two"]
    assert not report["identical"]
    assert report["happened"]["kill"] < report["planned"]["kill"]


def test_what_a_plan_holds_already_can_not_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    argv = [COMMAND, "chaos", "c.yaml", "--plan", tmp_path / "plan.json", "--rate", "0.1"]
    result = watchdog.run(argv, tmp_path / "streams", timeout_s=30)
    assert result.returncode == 2
    assert "is a plan already: leave --rate out" in result.stderr
