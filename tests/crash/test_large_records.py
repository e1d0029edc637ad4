"""Records of megabytes through a whole run, from the configuration to Parquet."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.recording import Recording
from tests.crash import runs
from tests.runners.odd_worlds import HERE


@pytest.mark.guarantee("G2")
def test_a_run_with_records_larger_than_its_rings_is_recorded_whole(tmp_path: Path) -> None:
    agent = {
        "name": "huge",
        "count": 2,
        "env": {"entry": f"{HERE}:Huge", "num_envs": 2},
        "policy": {"entry": f"{HERE}:ShoutingLearner"},
        "reward": {"entry": f"{HERE}:Measured"},
        "ipc": {"ring_slots": 4},
    }
    config = runs.write_config(tmp_path / "huge.yaml", [agent], steps=48)
    finished = runs.run(config, tmp_path)
    assert finished.code == 0, finished.stderr
    with Recording.open(finished.run_dir) as recording:
        assert [each.steps for each in recording.agents] == [24, 24]
        data = recording.transitions("huge-001")
    assert {len(text) for row in data.obs["text"] for text in row} == {1, 1 << 20}
    assert {len(rows) for row in data.obs["rows"] for rows in row} == {0, 1, 10_000}
    assert [len(a) for a in data.action[2]] == [30_000, 30_000]
    images = [info["image"] for info in data.infos.values() if "image" in info]
    assert len(images) == 6 and all(image.nbytes == 5_000_000 for image in images)
    assert data.reward.max() > 5_000_000


@pytest.mark.guarantee("G2")
def test_who_keeps_records_for_a_successor_leaves_room_beside_the_ring(tmp_path: Path) -> None:
    """The policy and the environment hold what a replay needs, 32 MiB of films are more than may
    be out at a time, and every one is recorded."""
    agent = {
        "name": "film",
        "env": {"entry": f"{HERE}:Filming"},
        "policy": {"entry": "dsec.policies:RandomPolicy"},
    }
    config = runs.write_config(tmp_path / "film.yaml", [agent], steps=300)
    finished = runs.run(config, tmp_path)
    assert finished.code == 0, finished.stderr
    with Recording.open(finished.run_dir) as recording:
        films = [info["film"] for info in recording.transitions("film").infos.values()]
    assert [int(film[0]) for film in films] == [age % 251 for age in range(1, 101)] * 3
