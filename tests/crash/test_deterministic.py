"""`run.deterministic`: what is pinned holds in the processes that it is meant for, and is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.recording import Recording
from tests.crash import runs

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G12")]

pytest.importorskip("torch")


def run(folder: Path, *, deterministic: bool, **keywords: Any) -> runs.Finished:
    policy = {"entry": "tests.runners.pinned:Unpinning", "kwargs": keywords}
    agent = runs.walker("walk", policy=policy)
    settings = {"name": "pinned", "seed": 5, "steps": 100, "deterministic": deterministic}
    config = runs.write_config(folder / "config.yaml", [agent], steps=100, run=settings)
    return runs.run(config, folder)


def actions(finished: runs.Finished) -> np.ndarray:
    with Recording.open(finished.run_dir) as recording:
        return recording.transitions("walk", env=0).action


def test_what_is_pinned_is_in_force_whatever_user_code_sets(tmp_path: Path) -> None:
    finished = run(tmp_path, deterministic=True)
    assert finished.code == 0, finished.stderr
    assert not actions(finished).any(), "the policy acts in what is pinned"
    pinned = finished.details["agents_by_name"]["walk"]["pinned"]
    assert set(pinned) == {"env", "policy", "reward"}
    for role in pinned.values():
        assert role["PYTHONHASHSEED"] == "0"
        assert role["OMP_NUM_THREADS"] == "1"
        assert role["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert role["MKL_CBWR"] == "AUTO"
    assert {name: value for name, value in pinned["policy"].items() if "torch" in name} == {
        "torch.threads": "1",
        "torch.deterministic_algorithms": "True",
        "torch.cudnn.deterministic": "True",
        "torch.cudnn.benchmark": "False",
    }
    assert not any("torch" in name for name in pinned["env"]), "which has not loaded it"


def test_without_it_user_code_has_its_way(tmp_path: Path) -> None:
    finished = run(tmp_path, deterministic=False)
    assert finished.code == 0, finished.stderr
    assert actions(finished).all()
    assert finished.details["agents_by_name"]["walk"]["pinned"] == {}


def test_what_can_not_be_done_deterministically_is_an_error_and_named(tmp_path: Path) -> None:
    finished = run(tmp_path, deterministic=True, forbidden=True)
    assert finished.code == 1
    [death] = finished.details["deaths_in_order"]
    assert (death["role"], death["phase"]) == ("policy", "act")
    assert "raised RuntimeError in act: put_ does not have a deterministic" in death["cause"]
