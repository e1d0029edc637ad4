"""The hash chain of records, of tables and across restarts is that of the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsec.errors import JournalError
from dsec.ipc.frames import Role
from dsec.ipc.layout import FLAG_ASIDE, FLAG_FRESH
from dsec.ipc.ring import FLAG_BOUNDARY
from dsec.recording import Recording
from dsec.runners.chained import RowChain, shape_of
from dsec.runners.columns import outcomes
from dsec.runners.convert import convert
from dsec.runners.follow import ChainFollower
from dsec.runners.journal import FILE_NAME, JournalReader
from dsec.sml.chain import BEGIN, MARK_EVERY, START, Chain, unpack
from tests.ipc.strategies import varied_space
from tests.runners.chains import reference
from tests.runners.recorders import Make, Record, make, record, run_dir, write_journal
from tests.runners.scripted import ScriptedAgent

__all__ = ["make", "record", "run_dir"]

BOX = gs.Box(-1, 1, (4,), np.float32)


def by_rows(run_dir: Path, agent: ScriptedAgent, count: int) -> tuple[str, list[bytes]]:
    """The form of the recording, and the chain of its rows: at the marks and at the end."""
    with Recording.open(run_dir) as recording:
        source = recording.source(agent.name)
        chain = RowChain(source.spaces, agent.n)
        for rows, led in outcomes(source.rows()):
            chain.take(rows, led)
        last = chain.end(count)
        assert last.seq == count
        assert source.agent.chain == last.value.hex()
        assert [mark.value for mark in chain.marks] == source.marks()
        return recording.form, [*(mark.value for mark in chain.marks), last.value]


def recorded(run_dir: Path, agent: ScriptedAgent) -> dict[int, bytes]:
    """The chain's values by sequence number, as the journal's trailers have them."""
    with JournalReader(run_dir / FILE_NAME) as journal:
        (index,) = [each for each in journal.index.agents if each.declaration.agent == agent.name]
        trailers = [journal.trailer(offset) for offset in index.batches]
        ends = [trailer.last for trailer in trailers]
        assert all(end is not None for end in ends)
        return {mark.seq: mark.value for each in trailers for mark in unpack(each.marks)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    obs=varied_space,
    action=varied_space,
    n=st.integers(1, 3),
    count=st.integers(0, 50),
    step=st.integers(1, 30),
    seed=st.integers(0, 1000),
    losses=st.frozensets(st.integers(0, 49), max_size=4),
)
@example(obs=BOX, action=gs.Discrete(2), n=1, count=40, step=7, seed=1, losses=frozenset({39}))
@example(
    obs=gs.Dict({"t": gs.Text(9), "x": BOX}),
    action=gs.Text(4),
    n=3,
    count=50,
    step=9,
    seed=2,
    losses=frozenset({10, 11, 30}),
)
def test_any_cut_gives_the_chain_of_the_reference(
    obs: Any,
    action: Any,
    n: int,
    count: int,
    step: int,
    seed: int,
    losses: frozenset[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    agent = ScriptedAgent("a", obs, action, n, seed=seed, end_chance=0.2, losses=losses)
    try:
        write_journal(run_dir, [agent], [count], step=step)
        values = reference(agent, count)
        found = recorded(run_dir, agent)
        assert found[count] == values[count]
        assert all(values[seq] == value for seq, value in found.items())
        form, rows = by_rows(run_dir, agent, count)
        assert (form, rows[-1]) == ("journal", values[count])
        convert(run_dir)
        if count > len(losses):
            form, rows = by_rows(run_dir, agent, count)
            assert (form, rows[-1]) == ("parquet", values[count])
    finally:
        agent.close()


@pytest.mark.parametrize("n", [1, 2])
def test_what_a_caller_asks_for_beside_steps_is_in_the_chain_as_that(
    tmp_path: Path, n: int
) -> None:
    """The answer repeats the observation, or a reset has made a new one; there is no row."""
    agent = ScriptedAgent("a", BOX, gs.Discrete(2), n, seed=4, end_chance=0.0)
    truth = agent.truth
    try:
        while len(truth.obs) <= 30:
            agent._make(len(truth.obs) - 1)
        for seq in (0, 5, 6, 20):
            fresh = FLAG_FRESH if seq == 20 else 0
            truth.flags[seq + 1] = [FLAG_ASIDE | fresh] * n
            truth.env_rewards[seq + 1] = [0.0] * n
            if not fresh:
                truth.obs[seq + 1] = truth.obs[seq]
        write_journal(tmp_path, [agent], [30], step=7)
        value = reference(agent, 30)[30]
        assert by_rows(tmp_path, agent, 30) == ("journal", [value])
        convert(tmp_path)
        assert by_rows(tmp_path, agent, 30) == ("parquet", [value])
    finally:
        agent.close()


def test_marks_stand_at_the_same_places_in_every_recording(tmp_path: Path) -> None:
    """However the batches were cut, so that two recordings can be compared mark by mark."""
    count = 2 * MARK_EVERY + 5
    agent = ScriptedAgent("a", gs.Discrete(3), gs.Discrete(2), losses=frozenset({MARK_EVERY - 1}))
    try:
        write_journal(tmp_path, [agent], [count], step=50)
        values = reference(agent, count)
        wanted = [values[MARK_EVERY], values[2 * MARK_EVERY], values[count]]
        assert by_rows(tmp_path, agent, count) == ("journal", wanted)
        convert(tmp_path)
        assert by_rows(tmp_path, agent, count) == ("parquet", wanted)
    finally:
        agent.close()


def test_an_atoms_value_is_looked_up_while_the_run_goes_on(
    make: Make, record: Record, run_dir: Path
) -> None:
    agents = [make("a", seed=1), make("b", seed=2, end_chance=0.5)]
    follower = ChainFollower(run_dir)
    assert follower.at("a", 0) == START and not follower.at("a", 10)
    recorder = record()
    for agent in agents:
        recorder.wire(agent)
    for end in (10, 20):
        for agent in agents:
            agent.publish(end - 10, end - 1)
            agent.publish_action(end - 1)
            agent.publish_obs(end, FLAG_BOUNDARY)
            agent.publish_reward(end - 1)
        for agent in agents:
            recorder.wait_for_progress(agent.name, end)
            assert follower.at(agent.name, end) == reference(agent, end)[end]
    assert follower.at("a", 10) == reference(agents[0], 10)[10]
    assert not follower.at("a", 7) and not follower.at("a", 30) and not follower.at("c", 10)
    follower.close()


def test_what_the_follower_reads_is_checked(tmp_path: Path) -> None:
    agent = ScriptedAgent("a", BOX, gs.Discrete(2))
    write_journal(tmp_path, [agent], [30])
    agent.close()
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    for length in range(64, len(content), 64):
        path.write_bytes(content[:length])
        follower = ChainFollower(tmp_path)
        assert len(follower.at("a", 30)) in (0, 16), "a block that is being written is none yet"
        follower.close()
    content[64 + 8] ^= 1
    path.write_bytes(content)
    follower = ChainFollower(tmp_path)
    with pytest.raises(JournalError, match="damaged at offset 64"):
        follower.at("a", 30)
    follower.close()


@given(data=st.data(), n=st.integers(1, 3), space=varied_space)
def test_no_bytes_lead_the_chain_astray(data: st.DataObject, n: int, space: Any) -> None:
    """Raw records from anybody: an error that names the record, or a value; never a bad read."""
    agent = ScriptedAgent("a", space, space, n, end_chance=0.5)
    agent.publish(0, 5, last=True)
    raw = []
    for role in (Role.ENV, Role.POLICY, Role.REWARD):
        outbox = agent.outboxes[role]
        raw.append(bytearray(outbox.buffer[: outbox.tail]))
    agent.close()
    shape = shape_of(agent.record, agent.actions)
    part = data.draw(st.sampled_from(raw))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(part) - 1))
        part[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del part[data.draw(st.integers(0, len(part))) :]
    chain = Chain(shape)
    try:
        chain.take(*raw, 5)
    except JournalError as error:
        assert "none of this agent" in str(error)
        assert chain.at == BEGIN, "as it was"
    else:
        assert chain.seq == 5
