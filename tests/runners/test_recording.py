"""Both forms of a recording say what was published, and the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.errors import JournalError, LocalError
from dsec.recording import Episode, Recording, Transitions
from dsec.runners import columns, parquet
from dsec.runners.convert import convert
from dsec.runners.journal import FILE_NAME
from tests.ipc.strategies import same, varied_space
from tests.runners.recorders import ROOT, write_journal
from tests.runners.scripted import ScriptedAgent, assert_recorded, leaves

BOX = gs.Box(-1, 1, (4,), np.float32)


@pytest.fixture
def agents() -> Iterator[list[ScriptedAgent]]:
    """Three agents in two groups, the journal of which is in `run_dir`."""
    made = [
        ScriptedAgent("walker-001", BOX, gs.Discrete(2), 2, group="walker", seed=1),
        ScriptedAgent("walker-000", BOX, gs.Discrete(2), 2, group="walker", seed=2),
        ScriptedAgent(
            "maze",
            gs.Dict({"pixels": gs.Box(0, 255, (40, 30), np.uint8), "k": gs.Discrete(4)}),
            gs.Tuple((gs.MultiDiscrete([3, 2]), gs.Box(-1, 1, (), np.float64))),
            seed=3,
            info_chance=0.5,
        ),
    ]
    yield made
    for agent in made:
        agent.close()


COUNTS = (120, 33, 250)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the journal batch by batch, and make row groups of a few rows."""
    monkeypatch.setattr(columns, "BUNDLE_ROWS_MAX", 1)
    monkeypatch.setattr(parquet, "ROWS_MAX", 22)


@pytest.fixture
def run_dir(tmp_path: Path, agents: list[ScriptedAgent]) -> Path:
    write_journal(tmp_path, agents, COUNTS)
    return tmp_path


def everything(recording: Recording) -> dict[str, Any]:
    """All that can be asked of a recording, as comparable values."""
    found: dict[str, Any] = {"episodes": list(recording.episodes())}
    for agent in recording.agents:
        found[agent.name] = (agent, recording.transitions(agent.name))
    return found


def same_transitions(a: Transitions, b: Transitions) -> bool:
    names = ("seq", "episode", "step", "obs", "action", "reward", "env_reward", "terminated")
    names += ("truncated", "end", "final_obs", "infos", "reset_infos")
    return all(same(getattr(a, name), getattr(b, name)) for name in names)


def test_both_forms_give_what_was_published(run_dir: Path, agents: list[ScriptedAgent]) -> None:
    with Recording.open(run_dir) as recording:
        assert recording.form == "journal"
        before = everything(recording)
        for agent, count in zip(agents, COUNTS, strict=True):
            assert_recorded(recording.transitions(agent.name), agent, count, "cut")
    assert convert(run_dir).files == ("recording/maze.parquet", "recording/walker.parquet")
    with Recording.open(run_dir) as recording:
        assert recording.form == "parquet"
        assert (recording.run, recording.seed) == ("test", 7)
        assert [each.name for each in recording.agents] == ["maze", "walker-000", "walker-001"]
        assert recording.complete and recording.agents[0].ended
        assert recording.agents[1].steps == 2 * 33
        after = everything(recording)
    assert after["episodes"] == before["episodes"]
    for agent in agents:
        assert after[agent.name][0] == before[agent.name][0]
        assert same_transitions(after[agent.name][1], before[agent.name][1])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    obs=varied_space,
    action=varied_space,
    n=st.integers(1, 3),
    count=st.integers(0, 60),
    step=st.integers(1, 30),
    seed=st.integers(0, 1000),
    bundle=st.integers(1, 80),
)
def test_every_space_survives_both_forms(
    obs: Any,
    action: Any,
    n: int,
    count: int,
    step: int,
    seed: int,
    bundle: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    agent = ScriptedAgent("a", obs, action, n, seed=seed, end_chance=0.2)
    try:
        write_journal(run_dir, [agent], [count], step=step)
        monkeypatch.setattr(columns, "BUNDLE_ROWS_MAX", bundle)
        with Recording.open(run_dir) as recording:
            assert_recorded(recording.transitions("a"), agent, count, "cut")
            before = everything(recording)
        convert(run_dir)
        with Recording.open(run_dir) as recording:
            assert recording.form == "parquet"
            after = everything(recording)
        assert same_transitions(before["a"][1], after["a"][1])
        assert before["episodes"] == after["episodes"]
    finally:
        agent.close()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("form", ["journal", "parquet"])
def test_pieces_and_single_environments_are_parts_of_the_whole(
    run_dir: Path, agents: list[ScriptedAgent], form: str
) -> None:
    if form == "parquet":
        convert(run_dir)
    with Recording.open(run_dir) as recording:
        assert recording.form == form
        whole = recording.transitions("walker-001")
        pieces = list(recording.iterate("walker-001"))
        assert sum(map(len, pieces)) == len(whole) == 120
        assert len(pieces) > 2
        assert same(np.concatenate([piece.obs for piece in pieces]), whole.obs)
        for env in (0, 1):
            one = recording.transitions("walker-001", env)
            assert same(one.obs, whole.obs[:, env])
            assert same(one.reward, whole.reward[:, env])
            assert one.end.tolist() == whole.end[:, env].tolist()
            assert one.final_obs.keys() == {t for t, i in whole.final_obs if i == env}
            assert one.infos == {t: info for (t, i), info in whole.infos.items() if i == env}


@pytest.mark.usefixtures("small_pieces")
def test_what_the_actions_led_to(run_dir: Path, agents: list[ScriptedAgent]) -> None:
    maze = agents[2]
    with Recording.open(run_dir) as recording:
        found = leaves(maze.obs_space, recording.transitions("maze").next_obs())
        for seq in range(COUNTS[2]):
            truth = maze.truth.finals[seq + 1].get(0, maze.truth.obs[seq + 1][0])
            for array, leaf in zip(found, leaves(maze.obs_space, truth), strict=True):
                assert same(array[seq, 0, ...], leaf)
        piece = next(piece for piece in recording.iterate("walker-001") if not piece.end[-1].all())
        with pytest.raises(LocalError, match="after the last"):
            piece.next_obs()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("form", ["journal", "parquet"])
def test_episodes_add_up_across_pieces(
    run_dir: Path, agents: list[ScriptedAgent], form: str
) -> None:
    if form == "parquet":
        convert(run_dir)
    with Recording.open(run_dir) as recording:
        found = list(recording.episodes("walker-001"))
        assert {each.agent for each in recording.episodes()} == {agent.name for agent in agents}
    ended = [each for each in found if each.end != "cut"]
    assert [each.total_reward for each in ended] == agents[0].returns(COUNTS[0])
    cut = [each for each in found if each.end == "cut"]
    assert sum(each.length for each in found) == 2 * COUNTS[0]
    assert len(cut) <= 2
    first = next(each for each in found if each.env == 1)
    assert first == Episode(
        "walker-001", 1, 0, 0, first.length, first.total_reward, first.total_env_reward, first.end
    )


def test_questions_that_have_no_answer(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no recording in"):
        Recording.open(tmp_path / "elsewhere")
    (tmp_path / "runs/mine/recording").mkdir(parents=True)
    (tmp_path / "runs/mine/kernel.json").write_text("{}")
    with pytest.raises(JournalError, match=r"the newest is .*/runs/mine$"):
        Recording.open(tmp_path / "runs")
    with pytest.raises(JournalError, match=r"the run directory is .*/runs/mine$"):
        Recording.open(tmp_path / "runs/mine/recording")
    with Recording.open(run_dir) as recording:
        with pytest.raises(LocalError, match=r"no agent 'x'.*there are maze"):
            recording.transitions("x")
        with pytest.raises(LocalError, match="no environment 2"):
            recording.transitions("walker-000", 2)
        recording.close()
        with pytest.raises(JournalError, match="closed"):
            recording.transitions("maze")


def test_the_summary_is_read_where_there_is_one(run_dir: Path) -> None:
    with Recording.open(run_dir) as recording:
        assert recording.summary is None
        (run_dir / "summary.json").write_text(json.dumps({"steps": 3}))
        assert recording.summary == {"steps": 3}
        for wrong in ("[1]", "{"):
            (run_dir / "summary.json").write_text(wrong)
            with pytest.raises(JournalError, match=r"summary\.json"):
                _ = recording.summary


def test_a_damaged_journal_is_refused_or_salvaged(
    run_dir: Path, agents: list[ScriptedAgent]
) -> None:
    path = run_dir / FILE_NAME
    content = bytearray(path.read_bytes())
    content[len(content) // 2 & ~63] ^= 1  # at the start of something, in the middle of the file
    path.write_bytes(content)
    with pytest.raises(JournalError, match="damaged at offset"):
        for agent in (recording := Recording.open(run_dir)).agents:
            try:
                recording.transitions(agent.name)
            except JournalError:
                recording.close()
                raise
    with Recording.open(run_dir, salvage=True) as recording:
        walker = next(each for each in recording.agents if each.name == "walker-000")
        assert_recorded(recording.transitions("walker-000"), agents[1], walker.transitions, "cut")


def test_files_that_are_no_recording(tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    (tmp_path / "recording/x.parquet").write_bytes(b"PAR1 is how it begins")
    with pytest.raises(JournalError, match=r"can't read .*x\.parquet"):
        Recording.open(tmp_path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "recording/x.parquet")
    with pytest.raises(JournalError, match="not written by dsec-kernel"):
        Recording.open(tmp_path)


@pytest.mark.slow
def test_without_pyarrow_a_journal_is_read_and_parquet_explained(run_dir: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from dsec.recording import Recording\n"
        "from dsec.errors import JournalError\n"
        "try:\n"
        "    with Recording.open(sys.argv[1]) as recording:\n"
        "        print(len(recording.transitions('maze')))\n"
        "except JournalError as error:\n"
        "    print(error)\n"
    )
    words = [sys.executable, "-c", code, str(run_dir)]

    def read() -> str:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert read() == "250"
    convert(run_dir)
    assert "pip install 'dsec-kernel[record]'" in read()
