"""The recorder against scripted writers: what is published is recorded once, whatever happens."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces as gs

from dsec.errors import ChannelClosed, RingTimeout
from dsec.ipc.frames import (
    Corrupt,
    DiskFull,
    DiskOk,
    Failed,
    Finish,
    Finished,
    RecorderDone,
    Role,
    Wire,
)
from dsec.ipc.proc import read_stat
from dsec.ipc.ring import KIND_ACTION, KIND_OBS, KIND_REWARD
from dsec.recording import Recording
from dsec.runners.journal import JournalReader, Kind
from dsec.runners.records import split
from tests import watchdog
from tests.runners.chains import reference
from tests.runners.recorders import (
    NESTED,
    Make,
    Record,
    RecorderProcess,
    check,
    make,
    record,
    run_dir,
)
from tests.runners.scripted import PATIENCE_S, ScriptedAgent

__all__ = ["make", "record", "run_dir"]


def limit_files(recorder: RecorderProcess, nbytes: int) -> None:
    """Let the recorder's files grow to that size only, as on a full disk."""
    _, hard = resource.prlimit(recorder.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(recorder.process.pid, resource.RLIMIT_FSIZE, (nbytes, hard))


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_every_transition_is_recorded_once_and_added_up(
    make: Make, record: Record, run_dir: Path
) -> None:
    agents = [
        make("a-000", group="a", seed=1),
        make("a-001", group="a", seed=2, end_chance=0.0),
        make("b", NESTED, gs.Tuple((gs.Discrete(3), gs.MultiBinary(2))), n=3, group="b", seed=3),
    ]
    recorder = record()
    for agent in agents:
        recorder.wire(agent)
    count = 1300  # more than a ring holds: writers are held back and woken
    assert count * 64 > agents[0].outboxes[Role.REWARD].capacity
    for agent in agents:
        agent.publish(0, count, last=True)
    ends = {end.agent: end for end in (recorder.expect(Finished) for _ in agents)}
    for agent in agents:
        end, returns = ends[agent.name], agent.returns(count)
        assert end.clean and end.lost == 0
        assert (end.seq_last, end.seq_committed) == (count, count - 1)
        assert (end.steps, end.episodes) == (count * agent.n, len(returns))
        assert end.return_sum == sum(returns)
    done = recorder.finish()
    assert done.files == ("recording/a.parquet", "recording/b.parquet")
    assert not done.message
    told = recorder.progress[agents[0].name]
    assert (told.steps, told.episodes) == (count, ends[agents[0].name].episodes)
    assert told.returns_last == pytest.approx(np.mean(agents[0].returns(count)[-100:]))
    for agent in agents:
        check(run_dir, agent, count, "cut", "parquet")
    assert sorted(path.name for path in run_dir.iterdir()) == ["recording"]


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G6")
def test_an_abandoned_agent_keeps_all_that_it_published(
    make: Make, record: Record, run_dir: Path
) -> None:
    """The reward runner died at 20; the others went on for a while."""
    agent = make(end_chance=0.0, group="g")
    recorder = record()
    recorder.wire(agent)
    agent.publish(0, 20)
    for seq in range(20, 25):
        agent.publish_action(seq)
        agent.publish_obs(seq + 1)
    agent.publish_action(25)
    end = recorder.abandon(agent.name)
    assert not end.clean and end.lost == 0
    assert (end.seq_last, end.seq_committed, end.steps) == (25, 19, 20)
    assert end.action_last == str(agent.truth.actions[25][0])
    done = recorder.finish()
    assert done.files == ("recording/g.parquet", "recording/remainder.dsj")
    check(run_dir, agent, 20, "infra", "parquet")
    with Recording.open(run_dir) as recording:
        (found,) = recording.agents
        assert found.abandoned and not found.ended and found.action_last == end.action_last
        assert recording.complete
    with JournalReader(run_dir / "recording/remainder.dsj") as journal:
        (block,) = [b for b in journal.blocks() if b.kind is Kind.REMAINDER]
    kinds = (KIND_OBS, KIND_ACTION, KIND_REWARD)
    parts = [split(part, kind) for part, kind in zip(block.parts, kinds, strict=True)]
    seqs = [[seq for span in part for seq in span.heads["seq"].tolist()] for part in parts]
    assert seqs == [[21, 22, 23, 24, 25], [20, 21, 22, 23, 24, 25], []]


@pytest.mark.slow
def test_an_agent_abandoned_before_its_first_record(
    make: Make, record: Record, run_dir: Path
) -> None:
    other = make("b")
    recorder = record()
    recorder.wire(other)
    other.publish(0, 0, last=True)
    end = recorder.expect(Finished)
    assert end.clean and (end.seq_last, end.seq_committed, end.steps) == (0, -1, 0)
    silent = make("c", n=2)
    recorder.wire(silent)
    end = recorder.abandon("c")
    assert not end.clean and end.action_last == ""
    recorder.finish()
    with Recording.open(run_dir) as recording:
        assert [(each.name, each.transitions) for each in recording.agents] == [("b", 0), ("c", 0)]
        assert recording.transitions("b").obs.shape == (0, 1, 4)


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_a_full_disk_pauses_the_agents_until_there_is_room(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent = make(slots=16)
    recorder = record()
    recorder.wire(agent)
    limit_files(recorder, 50_000)
    seq = 0
    agent.publish_obs(0)
    with pytest.raises(RingTimeout):
        while seq < 10_000:
            agent.publish_action(seq, 1.0)
            agent.publish_obs(seq + 1, timeout_s=1.0)
            agent.publish_reward(seq, 1.0)
            seq += 1
    assert seq < 10_000
    told = recorder.expect(DiskFull)
    assert not told.lasting and "journal.dsj" in told.message
    assert (run_dir / "journal.dsj").stat().st_size <= 50_000
    limit_files(recorder, resource.RLIM_INFINITY)
    recorder.expect(DiskOk)
    finish_transition(agent, seq)
    agent.publish(seq + 1, seq + 200, last=True)
    assert recorder.expect(Finished).clean
    recorder.finish()
    check(run_dir, agent, seq + 200, "cut", "parquet")


def finish_transition(agent: ScriptedAgent, seq: int) -> None:
    """Publish what is missing of transition `seq`."""
    published = agent.published
    if published[Role.POLICY] < seq:
        agent.publish_action(seq)
    if published[Role.ENV] < seq + 1:
        agent.publish_obs(seq + 1)
    if published[Role.REWARD] < seq:
        agent.publish_reward(seq)


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_a_disk_that_stays_full_ends_the_recording_at_a_whole_block(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent, quiet = make("a"), make("b")
    recorder = record(disk_wait_s=0.7)
    for each in (agent, quiet):
        recorder.wire(each)
    agent.publish(0, 50)
    recorder.wait_for_progress("a", 50)
    limit_files(recorder, (run_dir / "journal.dsj").stat().st_size + 100)
    agent.publish(50, 80)
    assert not recorder.expect(DiskFull).lasting
    assert recorder.expect(DiskFull).lasting
    end = recorder.abandon("a")
    assert not end.clean
    assert (end.seq_last, end.seq_committed, end.steps, end.lost) == (80, 49, 50, 30)
    assert recorder.abandon("b").lost == 0
    done = recorder.finish()
    assert done.files == ("journal.dsj",) and "disk was full" in done.message
    check(run_dir, agent, 50, "infra", "journal")
    with JournalReader(run_dir / "journal.dsj") as journal:
        assert journal.index.torn_bytes == 0


@pytest.mark.slow
@pytest.mark.guarantee("G1", "G9")
def test_a_corrupt_ring_costs_its_own_agent_only(make: Make, record: Record, run_dir: Path) -> None:
    bad, good, worse = make("bad"), make("good", seed=3), make("worse")
    recorder = record()
    recorder.wire(bad)
    recorder.wire(good)
    bad.publish(0, 10)
    recorder.wait_for_progress("bad", 10)
    at = bad.outboxes[Role.ENV].claim(bad.record.fixed_bytes, 1.0)
    bad.outboxes[Role.ENV].commit(11, KIND_OBS, 0, bad.record.fixed_bytes)
    bad.outboxes[Role.ENV].buffer[at - 32 : at] = b"\xff" * 32
    told = recorder.expect(Corrupt)
    assert told.agent == "bad" and "env" in told.message
    frame, fds = worse.wire()
    broken = Wire("worse", b"nonsense", frame.segments, config_group="g")
    recorder.channel.send(broken, fds)
    close_all(worse, fds)
    assert recorder.expect(Corrupt).agent == "worse"
    good.publish(0, 100, last=True)
    assert recorder.expect(Finished).clean
    end = recorder.abandon("bad")
    assert not end.clean and end.seq_committed == 9
    assert not recorder.abandon("worse").clean
    recorder.finish()
    check(run_dir, good, 100, "cut", "parquet")
    check(run_dir, bad, 10, "infra", "parquet")


@pytest.mark.slow
@pytest.mark.guarantee("G1", "G9")
def test_what_a_corrupt_ring_still_had_is_counted_as_lost(make: Make, record: Record) -> None:
    """The two rings that are whole tell how far the agent had come."""
    agent = make("bad")
    recorder = record()
    recorder.wire(agent)
    agent.publish(0, 10)
    recorder.wait_for_progress("bad", 10)
    recorder.process.send_signal(signal.SIGSTOP)
    watchdog.until(lambda: read_stat(recorder.process.pid).state == "T", PATIENCE_S, "its stop")
    agent.publish(10, 40)
    env = agent.outboxes[Role.ENV]
    env.buffer[:] = b"\xff" * len(env.buffer)
    recorder.process.send_signal(signal.SIGCONT)
    assert recorder.expect(Corrupt).agent == "bad"
    end = recorder.abandon("bad")
    assert (end.seq_committed, end.lost) == (9, 30)
    recorder.finish()


def close_all(agent: ScriptedAgent, fds: list[int]) -> None:
    for fd in fds:
        if fd != agent.segments[Role.RECORDER].fd:
            os.close(fd)


@pytest.mark.slow
def test_without_a_recording_everything_is_counted_all_the_same(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent, other = make("a", n=2), make("b")
    recorder = record(form="none")
    recorder.wire(agent)
    recorder.wire(other)
    agent.publish(0, 1500, last=True)
    other.publish(0, 10)
    end = recorder.expect(Finished)
    assert end.clean and (end.steps, end.episodes) == (3000, len(agent.returns(1500)))
    assert end.chain == reference(agent, 1500)[-1].hex()
    assert recorder.abandon("b").steps == 10
    done = recorder.finish()
    assert done == RecorderDone(())
    assert not list(run_dir.iterdir())


@pytest.mark.slow
@pytest.mark.guarantee("G11")
def test_a_kernel_that_reads_nothing_holds_nobody_up(
    make: Make, record: Record, run_dir: Path
) -> None:
    """The channel is full of progress; what must not be lost is told afterwards."""
    agents = [make(f"{'long-name-' * 20}-{i:03}", seed=i) for i in range(8)]
    recorder = record(
        before=(
            "import socket\n"
            "channel._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 3_000)\n"
            "def watched(self, frame, real=Channel.try_send):\n"
            "    if real(self, frame):\n"
            "        return True\n"
            "    print('full', type(frame).__name__, file=sys.stderr, flush=True)\n"
            "    return False\n"
            "Channel.try_send = watched\n"
        )
    )
    for agent in agents:
        recorder.wire(agent)
    seq = 0
    while "full Progress" not in recorder.stderr.read_text():
        for agent in agents:
            agent.publish(seq, seq + 60)
        seq += 60
        assert seq < 100_000, "the channel never filled"
    for agent in agents:
        agent.publish(seq, seq + 1100)  # more than a ring: they are still being read
    seq += 1100
    for agent in agents:
        agent.publish(seq, seq + 1, last=True)
    recorder.channel.send(Finish())
    ends = [recorder.expect(Finished) for _ in agents]
    assert all(end.clean and end.steps == seq + 1 for end in ends)
    recorder.expect(RecorderDone)
    assert recorder.process.wait(PATIENCE_S) == 0
    check(run_dir, agents[3], seq + 1, "cut", "parquet")


@pytest.mark.slow
def test_a_directory_that_can_not_be_written_is_told_at_once(
    make: Make, record: Record, run_dir: Path
) -> None:
    (run_dir / "journal.dsj").mkdir()
    recorder = record(ready=False)
    told = recorder.expect(DiskFull)
    assert told.lasting and "Is a directory" in told.message
    assert "Is a directory" in recorder.expect(Failed).error.message
    assert recorder.process.wait(PATIENCE_S) > 0
    with pytest.raises(ChannelClosed):
        recorder.channel.recv(1.0)


@pytest.mark.slow
def test_finish_before_its_time_still_ends_orderly(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent = make()
    recorder = record()
    recorder.wire(agent)
    agent.publish(0, 10)
    recorder.channel.send(Finish())
    assert not recorder.expect(Finished).clean
    assert recorder.expect(RecorderDone).files == ("recording/a-000.parquet",)
    check(run_dir, agent, 10, "infra", "parquet")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [True, False])
def test_a_journal_that_somebody_takes_away_is_no_recording(
    cut: bool, make: Make, record: Record, run_dir: Path
) -> None:
    agent = make()
    recorder = record()
    recorder.wire(agent)
    agent.publish(0, 10)
    if cut:
        os.truncate(run_dir / "journal.dsj", 10)
    else:
        (run_dir / "journal.dsj").unlink()
    recorder.channel.send(Finish())
    recorder.expect(Finished)
    told = recorder.expect(DiskFull)
    assert told.lasting
    assert told.message.startswith("the recording is lost: ")
    assert recorder.expect(RecorderDone).files == ()
