"""The recorder against scripted writers: what is published is recorded once, whatever dies."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from dsec.ipc.ring import FLAG_END, KIND_ACTION, KIND_OBS, KIND_REWARD
from dsec.recording import Recording
from dsec.runners.failure import EXIT_FAILED, EXIT_KERNEL_GONE
from dsec.runners.journal import JournalReader, Kind
from dsec.runners.records import split
from tests.runners.scripted import (
    PATIENCE_S,
    RecorderProcess,
    ScriptedAgent,
    assert_recorded,
)

BOX = gs.Box(-1, 1, (4,), np.float32)
NESTED = gs.Dict({"camera": gs.Box(0, 255, (3, 2), np.uint8), "k": gs.Discrete(5, start=-2)})

Make = Callable[..., ScriptedAgent]
Record = Callable[..., RecorderProcess]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make scripted agents, closed when the test ends."""
    made: list[ScriptedAgent] = []

    def new(name: str = "a-000", obs: Any = BOX, action: Any = None, **options: Any) -> Any:
        action = action if action is not None else gs.Discrete(2)
        made.append(ScriptedAgent(name, obs, action, **options))
        return made[-1]

    yield new
    for agent in made:
        agent.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def record(run_dir: Path) -> Iterator[Record]:
    """Start recorders on the run directory, ended when the test ends."""
    started: list[RecorderProcess] = []

    def new(**options: Any) -> RecorderProcess:
        started.append(RecorderProcess(run_dir, **options))
        return started[-1]

    yield new
    for recorder in started:
        recorder.__exit__(None, None, None)


def check(run_dir: Path, agent: ScriptedAgent, count: int, stop: str, form: str) -> None:
    with Recording.open(run_dir) as recording:
        assert recording.form == form
        assert_recorded(recording.transitions(agent.name), agent, count, stop)


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
@pytest.mark.guarantee("G2")
def test_a_recorder_killed_between_write_and_release_repeats_nothing(
    make: Make, record: Record, run_dir: Path
) -> None:
    """The cursors are behind the journal then; the journal decides."""
    agent = make(n=2, end_chance=0.05)
    published = 0
    for more in (1, 30, 31, 200):
        recorder = record(
            before=(
                "import os\n"
                "from dsec.runners.track import Track\n"
                "def die(self, real=Track.committed):\n"
                f"    if self.batch.first_seq + self.batch.count == {published + more}:\n"
                "        os.kill(os.getpid(), 9)\n"
                "    real(self)\n"
                "Track.committed = die\n"
            )
        )
        recorder.wire(agent)
        agent.publish(published, published + more)
        published += more
        assert recorder.process.wait(PATIENCE_S) == -signal.SIGKILL
        with JournalReader(run_dir / "journal.dsj") as journal:
            assert journal.index.agents[0].seq_committed == published - 1
    recorder = record()
    recorder.wire(agent)
    agent.publish(published, published + 50, last=True)
    count = published + 50
    end = recorder.expect(Finished)
    returns = agent.returns(count)
    assert end.clean and (end.steps, end.episodes) == (2 * count, len(returns))
    assert end.return_sum == sum(returns)
    recorder.finish()
    check(run_dir, agent, count, "cut", "parquet")


@pytest.mark.slow
@pytest.mark.guarantee("G2")
def test_recorders_killed_at_any_moment_lose_and_repeat_nothing(
    make: Make, record: Record, run_dir: Path
) -> None:
    agents = [make("a", seed=4), make("b", NESTED, n=2, seed=5, info_chance=0.5)]
    noise = np.random.default_rng()
    published = 0
    for _ in range(5):
        recorder = record()
        for agent in agents:
            recorder.wire(agent)
        for _ in range(int(noise.integers(1, 40))):
            for agent in agents:
                agent.publish(published, published + 17)
            published += 17
        recorder.kill()
    recorder = record()
    for agent in agents:
        recorder.wire(agent)
        agent.publish(published, published, last=False)
        agent.publish(published, published + 1, last=True)
    for _ in agents:
        end = recorder.expect(Finished)
        returns = next(agent for agent in agents if agent.name == end.agent).returns(published + 1)
        assert end.clean and end.episodes == len(returns) and end.return_sum == sum(returns)
    recorder.finish()
    for agent in agents:
        check(run_dir, agent, published + 1, "cut", "parquet")


@pytest.mark.slow
def test_a_recorder_started_anew_repeats_what_it_said_of_finished_agents(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent = make()
    recorder = record()
    recorder.wire(agent)
    agent.publish(0, 30, last=True)
    first = recorder.expect(Finished)
    recorder.kill()
    recorder = record()
    recorder.wire(agent)
    assert recorder.expect(Finished) == first
    recorder.finish()
    check(run_dir, agent, 30, "cut", "parquet")


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
    agent, other = make("a"), make("b")
    agent.outboxes[Role.ENV].close()
    recorder = record()
    for each in (other,):
        recorder.wire(each)
        each.publish(0, 0, last=True)
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
@pytest.mark.guarantee("G2", "G8")
def test_when_the_kernel_dies_what_is_published_is_written_and_the_recorder_leaves(
    make: Make, record: Record, run_dir: Path
) -> None:
    agents = [make("a", seed=1), make("b", seed=2)]
    recorder = record()
    for agent in agents:
        recorder.wire(agent)
        agent.publish(0, 40)
    agents[1].publish_obs(41)
    recorder.channel.close()
    assert recorder.process.wait(PATIENCE_S) == EXIT_KERNEL_GONE
    assert [path.name for path in run_dir.iterdir()] == ["journal.dsj"]
    with JournalReader(run_dir / "journal.dsj") as journal:
        assert journal.index.torn_bytes == 0 and not journal.index.closed
        assert len(journal.index.agents[1].remainders) == 1
    for agent in agents:
        check(run_dir, agent, 40, "infra", "journal")
    with Recording.open(run_dir) as recording:
        assert not recording.complete


@pytest.mark.slow
@pytest.mark.guarantee("G8")
def test_a_recorder_stuck_in_a_write_does_not_outlive_the_kernel(
    make: Make, record: Record
) -> None:
    agent = make()
    recorder = record(
        before=(
            "import os, select\n"
            "def hang(fd, views, offset, real=os.pwritev):\n"
            "    if len(views) > 3:\n"
            "        while True:\n"
            "            select.poll().poll(1000)\n"
            "    return real(fd, views, offset)\n"
            "os.pwritev = hang\n"
        )
    )
    recorder.wire(agent)
    agent.publish(0, 5)
    assert recorder.silent(0.3), "it hangs in its first batch"
    recorder.channel.close()
    assert recorder.process.wait(PATIENCE_S) == -signal.SIGALRM


def limit_files(recorder: RecorderProcess, nbytes: int) -> None:
    """Let the recorder's files grow to that size only, as on a full disk."""
    _, hard = resource.prlimit(recorder.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(recorder.process.pid, resource.RLIMIT_FSIZE, (nbytes, hard))


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
    # One of the three could not be published for want of room; all three are given again.
    have = [agent.outboxes[role] for role in (Role.POLICY, Role.ENV, Role.REWARD)]
    assert all(outbox.tail for outbox in have)
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


def close_all(agent: ScriptedAgent, fds: list[int]) -> None:
    import os

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
    assert recorder.abandon("b").steps == 10
    done = recorder.finish()
    assert done == RecorderDone(())
    assert not list(run_dir.iterdir())


@pytest.mark.slow
def test_without_a_journal_a_recorder_started_anew_goes_on_too(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent, ended = make("a"), make("b")
    for die in (
        "Join.release = lambda self: kill()",
        "Outbox.enter = lambda *a: a[2] < 40 or kill()",
    ):
        recorder = record(
            form="none",
            before=(
                "import os\n"
                "from dsec.ipc.join import Join\n"
                "from dsec.ipc.ring import Outbox\n"
                "def kill():\n"
                "    os.kill(os.getpid(), 9)\n"
                f"{die}\n"
            ),
        )
        recorder.wire(agent)
        agent.publish(max(0, agent.published[Role.ENV]), agent.published[Role.ENV] + 30)
        assert recorder.process.wait(PATIENCE_S) == -signal.SIGKILL
    recorder = record(form="none")
    recorder.wire(agent)
    recorder.wire(ended)
    ended.publish(0, 10)
    ended.publish_action(10)
    ended.publish_obs(11, FLAG_END)
    ended.publish_reward(10)
    recorder.wait_for_progress("b", 11)
    recorder.kill()
    recorder = record(form="none")
    recorder.wire(ended)
    end = recorder.expect(Finished)
    assert end.clean and (end.steps, end.seq_committed) == (11, 10)
    recorder.wire(agent)
    last = agent.published[Role.ENV]
    agent.publish(last, last + 5, last=True)
    end = recorder.expect(Finished)
    assert end.clean and end.steps == last + 5
    assert recorder.finish() == RecorderDone(())


@pytest.mark.slow
def test_a_recorder_started_anew_after_the_conversion_finds_the_tables(
    make: Make, record: Record, run_dir: Path
) -> None:
    agent = make(group="g")
    recorder = record(
        before=(
            "import os\n"
            "from dsec.runners import convert\n"
            "def die(*args, real=convert.convert):\n"
            "    real(*args)\n"
            "    os.kill(os.getpid(), 9)\n"
            "convert.convert = die\n"
        )
    )
    recorder.wire(agent)
    agent.publish(0, 20, last=True)
    recorder.expect(Finished)
    recorder.channel.send(Finish())
    assert recorder.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert record().finish().files == ("recording/g.parquet",)
    check(run_dir, agent, 20, "cut", "parquet")


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
    assert recorder.process.wait(PATIENCE_S) not in (0, EXIT_FAILED - 1)
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
