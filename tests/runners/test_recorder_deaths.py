"""Recorders that are killed, and recorders whose kernel is killed: nothing is lost or repeated."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from dsec.ipc.frames import (
    Finish,
    Finished,
    RecorderDone,
    Role,
)
from dsec.ipc.ring import FLAG_END
from dsec.recording import Recording
from dsec.runners.failure import EXIT_KERNEL_GONE
from dsec.runners.journal import JournalReader
from tests.runners.chains import reference
from tests.runners.recorders import (
    NESTED,
    Make,
    Record,
    check,
    make,
    record,
    run_dir,
)
from tests.runners.scripted import PATIENCE_S

__all__ = ["make", "record", "run_dir"]


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
        agent.publish(published, published + 1, last=True)
    for _ in agents:
        end = recorder.expect(Finished)
        agent = next(agent for agent in agents if agent.name == end.agent)
        returns = agent.returns(published + 1)
        assert end.clean and end.episodes == len(returns) and end.return_sum == sum(returns)
        assert end.chain == reference(agent, published + 1)[-1].hex(), "the chain went on"
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
            "def die(*args, real=convert.convert, **options):\n"
            "    real(*args, **options)\n"
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
