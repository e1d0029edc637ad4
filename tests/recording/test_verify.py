"""What `verify` says of recordings whose every value is known, and of files that lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from gymnasium import spaces as gs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsec.errors import (
    AgentsDiffer,
    JournalError,
    LengthsDiffer,
    RecordingUnfinished,
    RecordingUntrue,
    SpacesDiffer,
)
from dsec.recording.verify import verify
from dsec.runners import schema
from dsec.runners.convert import convert
from dsec.runners.journal import FILE_NAME, JournalReader
from tests.ipc.strategies import varied_space
from tests.runners.recorders import write_journal
from tests.runners.scripted import ScriptedAgent

BOX = gs.Box(-1, 1, (4,), np.float32)
COUNT = 60
COMPARED = ["seq", "env", "obs", "action", "reward", "env_reward", "terminated", "truncated"]
Make = Callable[..., Path]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Make]:
    """Record one agent; `change` alters what it did before it is published."""
    made: list[ScriptedAgent] = []

    def new(
        name: str,
        *,
        change: Callable[[ScriptedAgent], None] = lambda agent: None,
        agent: str = "a",
        obs: Any = BOX,
        n: int = 2,
        count: int = COUNT,
        step: int = 7,
        tables: bool = True,
        losses: frozenset[int] = frozenset(),
    ) -> Path:
        one = ScriptedAgent(agent, obs, gs.Discrete(2), n, seed=3, losses=losses)
        made.append(one)
        foretell(one, count)
        change(one)
        folder = tmp_path / name
        folder.mkdir()
        write_journal(folder, [one], [count], step=step)
        if tables:
            convert(folder)
        return folder

    yield new
    for each in made:
        each.close()


def foretell(agent: ScriptedAgent, count: int) -> None:
    """Make what the agent will do, without publishing it."""
    while len(agent.truth.obs) <= count:
        agent._make(len(agent.truth.obs) - 1)


def other(value: Any) -> Any:
    """The nearest number that isn't this one."""
    return np.nextafter(value, np.inf)


def drift_obs(agent: ScriptedAgent) -> None:
    agent.truth.obs[31][1] = agent.truth.obs[31][1].copy()
    agent.truth.obs[31][1][2] = other(np.float32(agent.truth.obs[31][1][2]))


def drift_final(agent: ScriptedAgent) -> None:
    seq = next(seq for seq, finals in enumerate(agent.truth.finals) if finals)
    i, final = next(iter(agent.truth.finals[seq].items()))
    changed = final.copy()
    changed[0] = other(np.float32(changed[0]))
    agent.truth.finals[seq][i] = changed


def drift_action(agent: ScriptedAgent) -> None:
    agent.truth.actions[12][0] = 1 - agent.truth.actions[12][0]


def drift_reward(agent: ScriptedAgent) -> None:
    agent.truth.rewards[59][1] = float(other(agent.truth.rewards[59][1]))


def drift_own_reward(agent: ScriptedAgent) -> None:
    agent.truth.env_rewards[1][0] = -agent.truth.env_rewards[1][0]


def drift_last(agent: ScriptedAgent) -> None:
    agent.truth.flags[COUNT] = [0, 0]
    agent.truth.finals[COUNT] = {}
    agent.truth.obs[COUNT][0] = -agent.truth.obs[COUNT][0]


def calm_last(agent: ScriptedAgent) -> None:
    agent.truth.flags[COUNT] = [0, 0]
    agent.truth.finals[COUNT] = {}


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("quick", [False, True])
def test_neither_the_form_nor_the_batches_matter(record: Make, quick: bool) -> None:
    a = record("a", losses=frozenset({4, 30, 59}))
    b = record("b", step=40, tables=False, losses=frozenset({4, 30, 59}))
    assert verify(a, b, quick=quick).identical


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    ("change", "step", "env", "what", "where"),
    [
        (drift_obs, 30, 1, "observation", "[2]"),
        (drift_action, 12, 0, "action", ""),
        (drift_reward, 59, 1, "reward", ""),
        (drift_own_reward, 0, 0, "env_reward", ""),
    ],
)
def test_one_value_that_differs_is_found(
    record: Make, change: Any, step: int, env: int, what: str, where: str, quick: bool
) -> None:
    verdict = verify(record("a"), record("b", change=change, tables=False), quick=quick)
    (agent,) = verdict.agents
    assert agent.step == step
    (found,) = agent.differences
    assert (found.env, found.what, found.where, found.others) == (env, what, where, 0)
    assert found.a != found.b


@pytest.mark.guarantee("G12")
def test_a_terminal_observation_and_the_very_last_one_count(record: Make) -> None:
    (agent,) = verify(record("a"), record("b", change=drift_final)).agents
    (found,) = agent.differences
    assert (found.what, found.where) == ("terminal observation", "[0]")
    (agent,) = verify(record("c", change=calm_last), record("d", change=drift_last)).agents
    assert agent.step == COUNT - 1
    assert {found.what for found in agent.differences} == {"observation"}


@pytest.mark.guarantee("G4", "G12")
@pytest.mark.parametrize("at", [10, COUNT - 1])
def test_a_step_that_one_of_them_lost_is_a_difference(record: Make, at: int) -> None:
    (agent,) = verify(record("a"), record("b", losses=frozenset({at}))).agents
    assert agent.step <= at, "where an episode ended by itself its terminal observation differs"
    (agent,) = verify(record("c", n=1), record("d", n=1, losses=frozenset({at}))).agents
    assert agent.step == at
    (found,) = agent.differences
    assert (found.what, found.a, found.b) == ("step", "done", "lost")


def test_what_cannot_be_compared_has_a_name(record: Make, tmp_path: Path) -> None:
    a = record("a")
    with pytest.raises(LengthsDiffer, match="a has 60 steps in A and 40 in B; as far as"):
        verify(a, record("short", count=40))
    with pytest.raises(AgentsDiffer, match="only A has a; only B has b"):
        verify(a, record("b", agent="b"))
    wide = gs.Box(-1, 1, (5,), np.float32)
    with pytest.raises(SpacesDiffer, match="another observation space"):
        verify(a, record("wide", obs=wide))
    with pytest.raises(SpacesDiffer, match="another number of environments: 2 in A, 3 in B"):
        verify(a, record("three", n=3))
    torn = record("torn", tables=False)
    path = torn / FILE_NAME
    for share in (0.4, 0.9):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(RecordingUnfinished, match="stops after"):
            verify(a, torn)
        path.write_bytes(whole)


@pytest.mark.guarantee("G9")
def test_a_journal_of_another_version_is_told(record: Make) -> None:
    a, b = record("a"), record("b", tables=False)
    path = b / FILE_NAME
    content = bytearray(path.read_bytes())
    content[8] = 1
    content[56:64] = xxhash.xxh3_64_intdigest(bytes(content[:56])).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(JournalError, match="a journal of version 1"):
        verify(a, b)


@pytest.mark.guarantee("G9")
def test_a_table_of_another_version_is_told(record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    a = record("a")
    from dsec.runners import convert as converting

    monkeypatch.setattr(converting, "METADATA_VERSION", schema.METADATA_VERSION + 1)
    b = record("b")
    with pytest.raises(JournalError, match="a recording of version 3"):
        verify(a, b)


def test_a_table_without_a_chain_is_compared_by_its_data(
    record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an older version wrote it, or where a record made no sense to the recorder."""
    a, c = record("a"), record("c", change=drift_reward)
    monkeypatch.setattr(JournalReader, "link", lambda *_: b"")
    b = record("b")
    assert verify(a, b).identical
    assert [each.step for each in verify(c, b).agents] == [59]
    with pytest.raises(RecordingUntrue, match="no hash chain of a to believe"):
        verify(a, b, quick=True)


@pytest.mark.guarantee("G9")
def test_a_table_that_was_changed_is_told(record: Make) -> None:
    """Somebody loads it, changes a number, and saves it with the metadata that it had."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    a, b = record("a"), record("b")
    path = b / "recording" / "a.parquet"
    table = pq.read_table(path)
    names = table.column_names
    for column in ("reward", "seq", "end", "terminated"):
        values = table[column].to_pylist()
        values[70] = {"reward": 1.5, "seq": 1, "end": "", "terminated": True}[column]
        if column == "end":
            values = ["terminated" if value == "truncated" else value for value in values]
        field = table.schema.field(column)
        changed = table.set_column(names.index(column), field, pa.array(values, field.type))
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
        if column == "end":
            continue  # says what the flags say, and is no part of the chain
        with pytest.raises(JournalError):
            verify(a, b)
    pq.write_table(table.slice(0, 40), path)
    with pytest.raises(JournalError):
        verify(a, b)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=25,
)
@given(places=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=3))
def test_a_damaged_file_is_never_identical_to_another(
    places: list[tuple[float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("damaged")
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        agent = ScriptedAgent("a", gs.Discrete(5), gs.Discrete(2), 1, seed=3)
        write_journal(folder / name, [agent], [30])
        agent.close()
        if name != "c":
            convert(folder / name)
    for name, kind in (("b", "recording/a.parquet"), ("c", FILE_NAME)):
        path = folder / name / kind
        content = bytearray(path.read_bytes())
        for share, change in places:
            content[int(share * (len(content) - 1))] ^= change
        path.write_bytes(content)
        try:
            same = verify(folder / "a", folder / name).identical
        except JournalError:
            continue
        if same and name == "b":
            # What is not compared (statistics, infos, who wrote it) may be anything.
            damaged, whole = (
                pq.read_table(folder / each / kind, columns=COMPARED) for each in (name, "a")
            )
            assert damaged.equals(whole)
    shutil.rmtree(folder)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(
    obs=varied_space,
    seed=st.integers(0, 100),
    n=st.integers(1, 3),
    seq=st.integers(0, 20),
    steps=st.tuples(st.integers(1, 21), st.integers(1, 21)),
)
def test_whatever_differs_first_is_found_in_any_space(
    obs: Any,
    seed: int,
    n: int,
    seq: int,
    steps: tuple[int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Another observation from the pool, somewhere: the step is that of the first change."""
    folder = tmp_path_factory.mktemp("any")
    firsts = []
    for name, step in zip("ab", steps, strict=True):
        agent = ScriptedAgent("a", obs, gs.Discrete(2), n, seed=seed, end_chance=0.2)
        foretell(agent, 21)
        if name == "b":
            agent.truth.rewards[seq][n - 1] += 1.0
            agent.truth.obs[seq + 1] = [agent._sample(obs) for _ in range(n)]
        firsts.append(agent)
        (folder / name).mkdir()
        write_journal(folder / name, [agent], [21], step=step)
    for agent in firsts:
        agent.close()
    (found,) = verify(folder / "a", folder / "b").agents
    assert found.step == seq
    assert "reward" in {each.what for each in found.differences}
    shutil.rmtree(folder)
