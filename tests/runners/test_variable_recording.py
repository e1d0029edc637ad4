"""What has no fixed size is recorded as it was published: in the journal, and in Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces as gs

from dsec.ipc.frames import Finished
from dsec.ipc.variable import Variable
from dsec.recording import Recording
from dsec.runners import columns, convert, parquet
from tests.ipc import strategies
from tests.runners.recorders import Make, Record, check, make, record, run_dir, write_journal
from tests.runners.scripted import ScriptedAgent, assert_recorded

__all__ = ["make", "record", "run_dir"]

SPACE = gs.Dict(
    {
        "frame": gs.Box(0, 255, (4, 3), np.uint8),
        "text": gs.Text(200, min_length=0, charset="ab\u4e2d"),
        "items": gs.Sequence(gs.Dict({"at": gs.Box(-1, 1, (2,)), "name": gs.Text(5)})),
        "graph": gs.Graph(gs.Box(-1, 1, (2,)), gs.Discrete(3)),
    }
)
ACTION = gs.OneOf([gs.Discrete(3), gs.Text(8)])


def same_in_both_forms(folder: Path, agent: ScriptedAgent, count: int) -> None:
    folder.mkdir(parents=True)
    write_journal(folder, [agent], [count])
    check(folder, agent, count, "cut", "journal")
    convert.convert(folder)
    check(folder, agent, count, "cut", "parquet")


def test_a_dict_of_everything_survives_both_forms(run_dir: Path, make: Make) -> None:
    agent = make(obs=SPACE, action=ACTION, n=2, end_chance=0.2)
    same_in_both_forms(run_dir / "one", agent, 60)
    with Recording.open(run_dir / "one") as recording:
        one = recording.transitions(agent.name, env=1)
        assert one.obs["text"].dtype == object and one.obs["frame"].shape == (60, 4, 3)
        following = one.next_obs()
        assert list(following["text"][:-1][one.end[:-1] == ""]) == [
            text for text, end in zip(one.obs["text"][1:], one.end, strict=False) if end == ""
        ]
        for row, final in one.final_obs.items():
            assert following["text"][row] == final["text"]


def test_texts_are_strings_and_the_rest_is_what_the_codec_says(run_dir: Path, make: Make) -> None:
    agent = make(obs=SPACE, action=ACTION)
    write_journal(run_dir, [agent], [20])
    convert.convert(run_dir)
    (path,) = (run_dir / convert.FOLDER).glob("*.parquet")
    table = pq.read_table(path)
    assert table.schema.field("obs.text").type == pa.string()
    assert table.schema.field("final_obs.text").type == pa.string()
    assert table.schema.field("obs.items").type == pa.binary()
    assert table["obs.text"].to_pylist() == [values[0]["text"] for values in agent.truth.obs[:20]]
    action = Variable(ACTION, "action")
    told = [action.decode(data) for data in table["action"].to_pylist()]
    assert all(strategies.same(a, b[0]) for a, b in zip(told, agent.truth.actions, strict=False))
    metadata = json.loads(pq.ParquetFile(path).metadata.metadata[b"dsec"])
    assert [column["kind"] for column in metadata["obs"]] == ["", "value", "value", "text"]


def test_row_groups_are_bounded_by_bytes_and_not_by_how_batches_were_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES_MAX", 4000)
    written = []
    for bundle in (7, 4096):
        monkeypatch.setattr(columns, "BUNDLE_ROWS_MAX", bundle)
        agent = ScriptedAgent("a", SPACE, ACTION, 2, end_chance=0.1, info_chance=0.5)
        folder = tmp_path / str(bundle)
        folder.mkdir()
        write_journal(folder, [agent], [80], step=11 if bundle == 7 else 40)
        convert.convert(folder)
        (path,) = (folder / convert.FOLDER).glob("*.parquet")
        file = pq.ParquetFile(path)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert len(groups) > 5 and all(rows % 2 == 0 for rows in groups)
        written.append(path.read_bytes())
        with Recording.open(folder) as recording:
            assert_recorded(recording.transitions("a"), agent, 80, "cut")
        agent.close()
    assert written[0] == written[1]


@pytest.mark.guarantee("G2")
def test_a_recorder_that_died_goes_on_with_records_beside_the_ring(
    run_dir: Path, make: Make, record: Record
) -> None:
    """Rings of 64 KiB, records of 300 KiB: some are taken by the first recorder, some not."""
    space = gs.Sequence(gs.Box(-1, 1, (100,), np.float64))
    rows = np.random.default_rng(0).random((400, 100))
    pools = [np.int64(0), np.int64(1)], [tuple(rows[i:]) for i in range(20)]
    agent = make(obs=space, slots=1, end_chance=0.2, pools=pools)
    first = record()
    first.wire(agent)
    agent.publish(0, 30)
    first.wait_for_progress(agent.name, 5)
    first.kill()
    second = record()
    second.wire(agent)
    agent.publish(30, 45, last=True)
    assert second.expect(Finished).clean
    second.finish()
    check(run_dir, agent, 45, "cut", "parquet")


@pytest.mark.guarantee("G2")
def test_what_an_abandoned_agent_left_is_kept_whole(
    run_dir: Path, make: Make, record: Record
) -> None:
    pools = [f"do {i} " * 40_000 for i in range(64)], ["x" * (1 << 20)]
    agent = make(obs=gs.Text(5), action=gs.Text(5), pools=pools)
    recorder = record()
    recorder.wire(agent)
    agent.publish(0, 4)
    agent.publish_action(4)
    finished = recorder.abandon(agent.name)
    assert (finished.seq_committed, finished.lost) == (3, 0)
    assert finished.action_last.startswith("'do ") and len(finished.action_last) <= 200
    recorder.finish()
    check(run_dir, agent, 4, "infra", "parquet")
