"""The example configurations run as they stand, and do what their first lines say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsec.config import load
from dsec.recording import Recording
from tests.crash import runs
from tests.watchdog import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_valid_configuration(path: Path) -> None:
    assert load(path, ()).config.agents


@pytest.mark.slow
def test_cartpole_runs(tmp_path: Path) -> None:
    finished = runs.run(ROOT / "examples/cartpole.yaml", tmp_path, "--steps", "4000")
    assert finished.code == 0, finished.stderr
    assert finished.summary["agents"] == 8
    assert finished.summary["steps"] == 4000
    assert finished.summary["episodes"] > 50
    assert 9 < finished.summary["mean_return"] < 50, "what random actions are worth"


@pytest.mark.slow
@pytest.mark.guarantee("G7", "G12")
def test_chaos_is_survived(tmp_path: Path) -> None:
    finished = runs.run(ROOT / "examples/chaos.yaml", tmp_path, "--steps", "8000")
    assert finished.code == 0, finished.stderr
    events = finished.details["failovers_in_order"]
    assert finished.summary["failovers"] == len(events) > 0, "8,000 steps without a fault"
    ended = sum(not each["exact"] for each in events)
    assert finished.summary["steps"] == 8000 - ended, "only such a step is left out"
    assert (finished.summary["lost"], finished.summary["quarantined"]) == (0, 0)
    if ended:
        return  # a fault hit the same step twice by chance: then the recording is another
    (tmp_path / "calm").mkdir()
    options = ("--steps", "8000", "--set", "chaos=null")
    calm = runs.run(ROOT / "examples/chaos.yaml", tmp_path / "calm", *options)
    assert (calm.code, calm.summary["failovers"]) == (0, 0)
    name = "recording/cartpole.parquet"
    assert (calm.run_dir / name).read_bytes() == (finished.run_dir / name).read_bytes()


@pytest.mark.slow
def test_a_custom_environment_runs(tmp_path: Path) -> None:
    finished = runs.run(ROOT / "examples/custom_env.yaml", tmp_path, "--steps", "6000")
    assert finished.code == 0, finished.stderr
    assert finished.summary["steps"] == 6000
    assert finished.summary["metrics"]["courier-000"]["total_task"] > 10


@pytest.mark.slow
def test_frames_run_and_are_recorded(tmp_path: Path) -> None:
    finished = runs.run(ROOT / "examples/image.yaml", tmp_path, "--steps", "2000")
    assert finished.code == 0, finished.stderr
    assert finished.summary["steps"] == 2000
    with Recording.open(finished.run_dir) as recording:
        data = recording.transitions("catch-000", env=0)
    assert (data.obs.dtype, data.obs.shape[1:]) == (np.uint8, (64, 64, 3))
    ends = {row for row, end in enumerate(data.end) if end}
    moved = [(data.obs[i] != data.obs[i + 1]).any() for i in range(len(data) - 1) if i not in ends]
    assert all(moved), "each frame is its own"


@pytest.mark.slow
def test_texts_of_any_length_run_and_are_recorded(tmp_path: Path) -> None:
    finished = runs.run(ROOT / "examples/vision_language.yaml", tmp_path, "--steps", "4000")
    assert finished.code == 0, finished.stderr
    assert finished.summary["steps"] == 4000
    assert finished.summary["mean_return"] > 5.5, "all six blocks, nearly always"
    assert finished.summary["metrics"]["reader-000"]["words"] > 4000
    with Recording.open(finished.run_dir) as recording:
        data = recording.transitions("reader-001", env=2)
    lengths = [len(text) for text in data.obs["instruction"]]
    assert min(lengths) > 0 and len(set(lengths)) > 10
    assert "" in [final["instruction"] for final in data.final_obs.values()]


@pytest.mark.slow
def test_missions_of_minigrid_are_read_and_followed(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason='pip install "dsec-kernel[envs]"')
    finished = runs.run(ROOT / "examples/minigrid.yaml", tmp_path, "--steps", "6000")
    assert finished.code == 0, finished.stderr
    assert 0.2 < finished.summary["metrics"]["seeker-001"]["in_view"] < 1
    with Recording.open(finished.run_dir) as recording:
        read, blind = recording.transitions("seeker-000"), recording.transitions("wanderer")
        returns = {
            name: [episode.total_reward for episode in recording.episodes(name)]
            for name in ("seeker-000", "wanderer")
        }
    assert all(text.startswith("go to ") for text in read.obs["mission"].ravel())
    assert blind.obs.shape[2:] == (7, 7, 3)
    assert np.mean(returns["seeker-000"]) > 2 * np.mean(returns["wanderer"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_atari_runs_preprocessed_and_stacked(tmp_path: Path) -> None:
    for module in ("ale_py", "cv2"):
        pytest.importorskip(module, reason='pip install "dsec-kernel[envs]"')
    options = ("--steps", "600", "--set", "record.format=parquet")
    finished = runs.run(ROOT / "examples/atari.yaml", tmp_path, *options)
    assert finished.code == 0, finished.stderr
    with Recording.open(finished.run_dir) as recording:
        pong, breakout = recording.transitions("pong-001"), recording.transitions("breakout")
    assert (pong.obs.dtype, pong.obs.shape[1:]) == (np.uint8, (2, 4, 84, 84))
    shifted = pong.obs[:, :, 1:] == pong.next_obs()[:, :, :-1]
    assert shifted.all(), "of four frames three are those of the step before"
    assert set(np.unique(breakout.reward)) <= {-1.0, 0.0, 1.0}
    assert len(breakout.obs) == 200


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ppo_learns_cartpole_in_its_own_process(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    finished = runs.run(ROOT / "examples/ppo_cartpole.yaml", tmp_path, timeout_s=380)
    assert finished.code == 0, finished.stderr
    metrics = finished.summary["metrics"]["ppo"]
    assert metrics["eval_episodes"] >= 20
    assert metrics["eval_return"] >= 475


@pytest.mark.slow
def test_objectives_are_weighed(tmp_path: Path) -> None:
    finished = runs.run(ROOT / "examples/objectives.yaml", tmp_path, "--steps", "2000")
    assert finished.code == 0, finished.stderr
    told = finished.summary["metrics"]["cartpole-000"]
    assert told["weight_task"] + told["weight_middle"] == pytest.approx(1)
    with Recording.open(finished.run_dir) as recording:
        data = recording.transitions("cartpole-000", env=0)
    assert {round(float(reward), 6) for reward in data.reward[:400]} == {0.7, 0.4}
