"""A conversion makes whole tables or none, and the journal goes only when they are there."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces as gs
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import JournalError
from dsec.ipc import values
from dsec.recording import Recording
from dsec.runners import columns, convert, parquet
from dsec.runners.columns import END_WORDS
from dsec.runners.convert import ConversionStopped
from dsec.runners.journal import FILE_NAME, JournalReader
from tests.runners.recorders import ROOT, write_journal
from tests.runners.scripted import ScriptedAgent, assert_recorded

BOX = gs.Box(-1, 1, (2, 3), np.float32)
OBS = gs.Dict({"box": BOX, "k": gs.Discrete(9), "deep": gs.Tuple((gs.MultiBinary(2),))})


@pytest.fixture
def agents() -> Iterator[list[ScriptedAgent]]:
    made = [
        ScriptedAgent(
            f"a-{i:03}", OBS, gs.Discrete(2), 2, group="a", seed=i, end_chance=0.05, info_chance=0.3
        )
        for i in range(3)
    ]
    yield made
    for agent in made:
        agent.close()


COUNTS = (70, 5, 41)


def check_recording(run_dir: Path, agents: list[ScriptedAgent], form: str) -> None:
    with Recording.open(run_dir) as recording:
        assert recording.form == form
        for agent, count in zip(agents, COUNTS, strict=True):
            assert_recorded(recording.transitions(agent.name), agent, count, "cut")


def test_the_table_is_what_its_readers_expect(tmp_path: Path, agents: list[ScriptedAgent]) -> None:
    write_journal(tmp_path, agents, COUNTS)
    assert convert.convert(tmp_path).files == ("recording/a.parquet",)
    assert not (tmp_path / FILE_NAME).exists()
    table = pq.read_table(tmp_path / "recording/a.parquet")
    types = {field.name: field.type for field in table.schema}
    leaves = {
        "box": pa.list_(pa.float32(), 6),
        "k": pa.int64(),
        "deep.0": pa.list_(pa.int8(), 2),
    }
    assert types == {
        "agent": pa.dictionary(pa.int32(), pa.string()),
        "env": pa.int32(),
        "seq": pa.int64(),
        "episode": pa.int64(),
        "step": pa.int32(),
        **{f"obs.{name}": kind for name, kind in leaves.items()},
        "action": pa.int64(),
        "reward": pa.float64(),
        "env_reward": pa.float64(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "end": pa.dictionary(pa.int32(), pa.string()),
        **{f"final_obs.{name}": kind for name, kind in leaves.items()},
        "info": pa.binary(),
        "reset_info": pa.binary(),
    }
    rows = table.to_pylist()
    assert len(rows) == 2 * sum(COUNTS)
    keys = [(row["agent"], row["seq"], row["env"]) for row in rows]
    assert keys == sorted(keys)
    agent = agents[2]
    truth = agent.rows(COUNTS[2], "cut")
    for row in rows[2 * (COUNTS[0] + COUNTS[1]) :]:
        seq, env = row["seq"], row["env"]
        obs = agent.truth.obs[seq][env]
        assert row["obs.box"] == obs["box"].reshape(-1).tolist()
        assert row["obs.deep.0"] == obs["deep"][0].tolist()
        assert row["action"] == agent.truth.actions[seq][env]
        assert row["reward"] == agent.truth.rewards[seq][env]
        assert row["end"] == truth["end"][seq][env] and row["end"] in END_WORDS
        assert (row["final_obs.k"] is None) == (row["end"] == "")
        if row["end"]:
            assert row["final_obs.k"] == truth["final_obs"][seq, env]["k"]
        info = truth["infos"].get((seq, env))
        assert (values.decode(row["info"]) if row["info"] else None) == info


def test_how_batches_were_cut_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = []
    for step in (1, 7, 64):
        monkeypatch.setattr(columns, "BUNDLE_ROWS_MAX", 3 * step)
        run_dir = tmp_path / str(step)
        run_dir.mkdir()
        made = [ScriptedAgent(f"a-{i}", OBS, BOX, 2, group="a", seed=i) for i in range(2)]
        write_journal(run_dir, made, (60, 30), step=step)
        for agent in made:
            agent.close()
        convert.convert(run_dir)
        contents.append((run_dir / "recording/a.parquet").read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_row_groups_bound_the_memory(
    tmp_path: Path, agents: list[ScriptedAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_journal(tmp_path, agents, COUNTS)
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES_MAX", 3000)
    convert.convert(tmp_path)
    with pq.ParquetFile(tmp_path / "recording/a.parquet") as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert len(set(sizes[:-1])) == 1 and sizes[0] % 2 == 0 and len(sizes) > 5
    check_recording(tmp_path, agents, "parquet")


def test_big_arrays_are_binary_and_empty_ones_no_column(tmp_path: Path) -> None:
    space = gs.Dict({"frame": gs.Box(0, 255, (40, 30), np.uint16), "none": gs.Box(0, 1, (0, 2))})
    agent = ScriptedAgent("a", space, gs.Discrete(2), seed=3, end_chance=0.2)
    write_journal(tmp_path, [agent], [30])
    convert.convert(tmp_path)
    schema = pq.read_schema(tmp_path / "recording/a.parquet")
    assert schema.field("obs.frame").type == pa.binary(2400)
    assert not [name for name in schema.names if "none" in name]
    with Recording.open(tmp_path) as recording:
        assert_recorded(recording.transitions("a"), agent, 30, "cut")
    agent.close()


def test_columns_of_keys_that_look_alike_stay_apart() -> None:
    space = gs.Dict({"a.b": gs.Discrete(2), "a": gs.Dict({"b": gs.Discrete(3)})})
    names = [column.name for column in parquet.columns_of(space, "obs")]
    assert len(set(names)) == 2 and all(name.startswith("obs.a.b") for name in names)


def test_agents_of_a_group_with_other_spaces_get_their_own_file(tmp_path: Path) -> None:
    made = [
        ScriptedAgent("a-0", BOX, gs.Discrete(2), group="a"),
        ScriptedAgent("a-1", OBS, gs.Discrete(2), group="a"),
        ScriptedAgent("a-2", BOX, gs.Discrete(2), 2, group="a"),
    ]
    write_journal(tmp_path, made, (3, 4, 5))
    files = convert.convert(tmp_path).files
    assert files == tuple(f"recording/{name}.parquet" for name in ("a", "a~2", "a~3"))
    with Recording.open(tmp_path) as recording:
        for agent, count in zip(made, (3, 4, 5), strict=True):
            assert_recorded(recording.transitions(agent.name), agent, count, "cut")
    for agent in made:
        agent.close()


@given(st.lists(st.text(st.characters(), max_size=300), unique=True, max_size=8))
def test_file_names_are_safe_and_apart(groups: list[str]) -> None:
    names = [convert.file_name(group) for group in groups]
    assert len(set(names)) == len(names)
    for name in names:
        assert "/" not in name and "\0" not in name and "~" not in name
        assert not name.startswith(".") and 0 < len(os.fsencode(name)) < 240


STOP_AT = 25


@pytest.mark.guarantee("G2", "G8")
def test_a_stopped_conversion_leaves_the_journal_and_nothing_else(
    tmp_path: Path, agents: list[ScriptedAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BUNDLE_ROWS_MAX", 1)
    write_journal(tmp_path, agents, COUNTS, step=2)
    content = (tmp_path / FILE_NAME).read_bytes()
    calls = iter(range(1000))
    with pytest.raises(ConversionStopped):
        convert.convert(tmp_path, lambda: next(calls) == STOP_AT)
    assert next(calls) == STOP_AT + 1
    assert (tmp_path / FILE_NAME).read_bytes() == content
    assert not list((tmp_path / "recording").iterdir())
    check_recording(tmp_path, agents, "journal")


CONVERT = """
import os, sys
from dsec.runners import columns, convert
columns.BUNDLE_ROWS_MAX = 1
calls = iter(range(1000))
def look():
    if next(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    return False
real = os.fsync
def fsync(fd):  # counts, too: there is one before each file gets its name, and two after
    look()
    real(fd)
os.fsync = fsync
print(convert.convert(sys.argv[1], look).files)
"""


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G8")
def test_a_conversion_killed_anywhere_can_be_repeated(
    tmp_path: Path, agents: list[ScriptedAgent]
) -> None:
    """Killed before the first row, in the middle, before a file has its name, and after."""
    write_journal(tmp_path, agents, COUNTS, step=10)
    for moment in (0, 7, 13, 14):
        command = [sys.executable, "-c", CONVERT, str(tmp_path), str(moment)]
        killed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not list(tmp_path.rglob("*.tmp"))
        check_recording(tmp_path, agents, "journal")
    (tmp_path / "recording/a.parquet.tmp").write_bytes(b"of one that had no unnamed files")
    assert convert.convert(tmp_path).files == ("recording/a.parquet",)
    assert [path.name for path in (tmp_path / "recording").iterdir()] == ["a.parquet"]
    check_recording(tmp_path, agents, "parquet")


def test_a_file_system_without_unnamed_files(
    tmp_path: Path, agents: list[ScriptedAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    refused = []

    def old(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refused.append(path)
            raise OSError(95, "Operation not supported")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", old)
    write_journal(tmp_path, agents, COUNTS)
    with pytest.raises(ConversionStopped):
        convert.convert(tmp_path, lambda: True)
    assert refused and not list((tmp_path / "recording").iterdir())
    convert.convert(tmp_path)
    assert [path.name for path in (tmp_path / "recording").iterdir()] == ["a.parquet"]
    check_recording(tmp_path, agents, "parquet")


@pytest.mark.guarantee("G2")
def test_no_room_for_the_tables(tmp_path: Path) -> None:
    agent = ScriptedAgent("a", gs.Box(-1, 1, (500,), np.float64), gs.Discrete(2))
    write_journal(tmp_path, [agent], [400])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(JournalError, match="can't write"):
            convert.convert(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "recording").iterdir())
    convert.convert(tmp_path)
    with Recording.open(tmp_path) as recording:
        assert_recorded(recording.transitions("a"), agent, 400, "cut")
    agent.close()


@pytest.mark.guarantee("G1", "G9")
def test_nonsense_from_one_agent_costs_its_own_rows_only(
    tmp_path: Path, agents: list[ScriptedAgent]
) -> None:
    """An env's extras are its own bytes, and the join doesn't read them."""
    bad = agents[1]
    bad.encode_extras = lambda finals, infos: (
        b"\xff" * 40 if len(bad.truth.obs) > 40 else bad.record.encode_extras(finals, infos)
    )
    counts = (70, 60, 41)
    write_journal(tmp_path, agents, counts, step=10)
    result = convert.convert(tmp_path)
    assert result.files == (FILE_NAME, "recording/a.parquet")
    assert "a-001" in result.message and "kept" in result.message
    table = pq.read_table(tmp_path / "recording/a.parquet", columns=["agent"])
    rows = Counter(table["agent"].to_pylist())
    assert rows == {"a-000": 140, "a-001": 60, "a-002": 82}, "what is before the fault is there"
    with Recording.open(tmp_path) as recording:
        assert recording.form == "journal"
        assert_recorded(recording.transitions("a-002"), agents[2], COUNTS[2], "cut")
        with pytest.raises(JournalError, match=r"agent 'a-001', block at offset \d+"):
            recording.transitions("a-001")


def test_a_damaged_journal_stays(tmp_path: Path, agents: list[ScriptedAgent]) -> None:
    write_journal(tmp_path, agents, COUNTS)
    path = tmp_path / FILE_NAME
    with JournalReader(path) as journal:
        start = journal.index.agents[0].batches[0]
    content = bytearray(path.read_bytes())
    content[start + 100] ^= 4
    path.write_bytes(content)
    result = convert.convert(tmp_path)
    assert FILE_NAME in result.files and f"offset {start}" in result.message
    assert path.read_bytes() == content
    content[start] ^= 4
    path.write_bytes(content)
    with pytest.raises(JournalError, match=f"offset {start}"):
        convert.convert(tmp_path)


def test_there_is_nothing_to_convert(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file"):
        convert.convert(tmp_path)
