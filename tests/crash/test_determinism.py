"""The same config and seed give the same recording (G12), however the machine schedules it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import runs

pytest.importorskip("pyarrow")


def one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def fingerprints(
    folder: Path, *options: str, prepare: Callable[[], None] | None = None
) -> dict[str, str]:
    folder.mkdir()
    agents = [
        {
            "name": "cartpole",
            "count": 2,
            "env": {"id": "CartPole-v1", "num_envs": 3},
            "policy": {"entry": "dsec.policies:RandomPolicy"},
        },
        runs.walker("walk"),
    ]
    config = runs.write_config(folder / "config.yaml", agents, steps=3000)
    finished = runs.run(config, folder, *options, prepare=prepare)
    assert finished.code == 0, finished.stderr
    files = [name for name in finished.details["files"] if name.endswith(".parquet")]
    assert files
    return {
        name: hashlib.sha256((finished.run_dir / name).read_bytes()).hexdigest() for name in files
    }


@pytest.mark.slow
@pytest.mark.guarantee("G12")
def test_the_same_seed_gives_the_same_recording_byte_for_byte(tmp_path: Path) -> None:
    first = fingerprints(tmp_path / "first")
    assert fingerprints(tmp_path / "again") == first
    assert fingerprints(tmp_path / "one-core", prepare=one_core) == first
    other = fingerprints(tmp_path / "other-seed", "--seed", "6")
    assert set(other) == set(first)
    assert all(other[name] != first[name] for name in first)
