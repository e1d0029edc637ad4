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
    return hashes(runs.run(config, folder, *options, prepare=prepare))


def hashes(finished: runs.Finished) -> dict[str, str]:
    """Of the recording's files."""
    assert finished.code == 0, finished.stderr
    files = [name for name in finished.details["files"] if name.endswith(".parquet")]
    assert files
    found = {
        name: hashlib.sha256((finished.run_dir / name).read_bytes()).hexdigest() for name in files
    }
    agents_by_name = finished.details["agents_by_name"]
    return found | {name: each["chain"] for name, each in agents_by_name.items()}


def jittered(folder: Path, steps: int, most_ms: float) -> dict[str, str]:
    """Sixteen agents, each of whose steps takes as long as chance has it."""
    folder.mkdir()
    jitter = {"entry": "tests.crash.jitter:Jitter", "kwargs": {"most_ms": most_ms}}
    agents = [
        {
            "name": "pole",
            "count": 16,
            "env": {"id": "CartPole-v1", "wrappers": [jitter]},
            "policy": {"entry": "dsec.policies:RandomPolicy"},
        }
    ]
    settings = {"name": "jitter", "seed": 5, "steps": 16 * steps, "deterministic": True}
    config = runs.write_config(folder / "config.yaml", agents, steps=0, run=settings)
    return hashes(runs.run(config, folder, timeout_s=600))


@pytest.mark.slow
@pytest.mark.guarantee("G12")
def test_jitter_changes_nothing(tmp_path: Path) -> None:
    first = jittered(tmp_path / "first", steps=25, most_ms=10)
    assert jittered(tmp_path / "again", steps=25, most_ms=10) == first


@pytest.mark.soak
@pytest.mark.guarantee("G12")
def test_jitter_of_100_ms_changes_nothing_in_100_runs(tmp_path: Path) -> None:
    first = jittered(tmp_path / "0", steps=200, most_ms=100)
    for number in range(1, 100):
        assert jittered(tmp_path / str(number), steps=200, most_ms=100) == first


@pytest.mark.slow
@pytest.mark.guarantee("G12")
def test_the_same_seed_gives_the_same_recording_byte_for_byte(tmp_path: Path) -> None:
    first = fingerprints(tmp_path / "first")
    assert fingerprints(tmp_path / "again") == first
    assert fingerprints(tmp_path / "one-core", prepare=one_core) == first
    other = fingerprints(tmp_path / "other-seed", "--seed", "6")
    assert set(other) == set(first)
    assert all(other[name] != first[name] for name in first)
