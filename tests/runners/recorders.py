"""A real recorder process driven by hand, and a journal written without one.

Owns `RecorderProcess`, which plays the kernel towards a recorder in a process of its own, and
`write_journal`, which does a recorder's work in the test's process. The fixtures here are imported
by the test files that want them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pytest
from gymnasium import spaces as gs

from dsec.errors import ChannelClosed, ChannelTimeout
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import (
    Abandon,
    AnyFrame,
    Finish,
    Finished,
    Progress,
    Ready,
    RecorderDone,
    RecorderStart,
    Role,
    Wired,
)
from dsec.recording import Recording
from dsec.runners.commit import Committer
from dsec.runners.journal import FILE_NAME, JournalWriter, Kind, Run
from dsec.runners.track import Track
from tests.runners.scripted import PATIENCE_S, ScriptedAgent, assert_recorded

ROOT = Path(__file__).resolve().parent.parent.parent
FrameT = TypeVar("FrameT", bound=AnyFrame)
BOX = gs.Box(-1, 1, (4,), np.float32)
NESTED = gs.Dict({"camera": gs.Box(0, 255, (3, 2), np.uint8), "k": gs.Discrete(5, start=-2)})

CHILD = """
import sys
from pathlib import Path
from dsec.ipc.channel import Channel
from dsec.runners import recorder
channel = Channel.from_fd(int(sys.argv[1]))
{before}
start, _ = channel.recv(30)
sys.exit(recorder.main(channel, start))
"""


class RecorderProcess:
    """A recorder in a process of its own; this object is its kernel.

    Args:
        before: code that the process runs before it is a recorder, for faults.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        form: str = "parquet",
        disk_wait_s: float = 30.0,
        before: str = "",
        ready: bool = True,
    ) -> None:
        mine, theirs = pair()
        self.channel = Channel(mine)
        self.stderr = run_dir.parent / f"{run_dir.name}-recorder.stderr"
        with self.stderr.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD.format(before=before), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stderr=log,
            )
        theirs.close()
        self.progress: dict[str, Any] = {}
        self.channel.send(RecorderStart(str(run_dir), form, disk_wait_s, "test", 7))
        if ready:
            self.expect(Ready)

    def expect(self, kind: type[FrameT], timeout_s: float = PATIENCE_S) -> FrameT:
        """The next frame but Progress, which must be of this kind."""
        while True:
            frame, fds = self.channel.recv(timeout_s)
            assert not fds
            if isinstance(frame, Progress):
                self.progress.update({told.agent: told for told in frame.agents})
                continue
            assert isinstance(frame, kind), f"{frame}\n{self.stderr.read_text()}"
            return frame

    def wait_for_progress(self, agent: str, steps: int) -> None:
        """Read frames until the agent has that many steps."""
        while agent not in self.progress or self.progress[agent].steps < steps:
            frame, _ = self.channel.recv(PATIENCE_S)
            assert isinstance(frame, Progress), f"{frame}\n{self.stderr.read_text()}"
            self.progress.update({told.agent: told for told in frame.agents})

    def wire(self, agent: ScriptedAgent) -> None:
        frame, fds = agent.wire()
        try:
            self.channel.send(frame, fds)
        finally:
            for fd in fds:
                if fd != agent.segments[Role.RECORDER].fd:
                    os.close(fd)
        assert self.expect(Wired).agent == agent.name

    def abandon(self, agent: str) -> Finished:
        self.channel.send(Abandon(agent))
        return self.expect(Finished)

    def finish(self) -> RecorderDone:
        """Finish it and see it exit with 0."""
        self.channel.send(Finish())
        done = self.expect(RecorderDone)
        assert self.process.wait(PATIENCE_S) == 0, self.stderr.read_text()
        return done

    def silent(self, for_s: float) -> bool:
        """Whether nothing but Progress comes for that long."""
        try:
            while isinstance(self.channel.recv(for_s)[0], Progress):
                pass
        except ChannelTimeout:
            return True
        except ChannelClosed:
            return False
        return False

    def kill(self) -> None:
        """SIGKILL it and see it die of that."""
        self.process.kill()
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL

    def __enter__(self) -> RecorderProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)


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


def write_journal(
    run_dir: Path, agents: Sequence[ScriptedAgent], counts: Sequence[int], *, step: int = 40
) -> None:
    """Journal agents to their end without a process: `step` transitions to a batch, in turns."""
    journal = JournalWriter(run_dir / FILE_NAME, Run("test", 7))
    told: list[AnyFrame] = []
    committer = Committer(journal, told.append, 1.0)
    tracks = []
    for agent in agents:
        tracks.append(Track(*agent.wire_copy()))
        committer.add(tracks[-1])
    for first in range(0, max([*counts, 1]), step):
        for agent, track, count in zip(agents, tracks, counts, strict=True):
            if first < max(count, 1):
                end = min(first + step, count)
                agent.publish(first, end, last=end == count)
                committer.look(track)
    for track in tracks:
        while not track.finished:
            committer.look(track)
    assert all(isinstance(frame, Finished) and frame.clean for frame in told), told
    journal.append(Kind.CLOSED)
    journal.close()
