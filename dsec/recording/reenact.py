"""A recorded agent's environments, stepped once more with the recorded actions, in a process of
their own: `python -m dsec.recording.reenact`.

Owns that process. It constructs, seeds and steps by the code that does it in a run, so what comes
out is what an env runner would publish, and says where that is not what was recorded. User code
lives here and nowhere else; whoever started this process (dsec.engine.replay) sees from a page of
shared memory what it is doing, and ends it when that takes too long.

The agent's own reward is taken from the recording: only environments are done again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from dsec.errors import AtomError, DsecError, JournalError, MachineError
from dsec.ipc import frames
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import ErrorInfo, Phase, Start
from dsec.ipc.layout import FLAG_TERMINATED, FLAG_TRUNCATED, Layout, Leaf
from dsec.recording import Recording
from dsec.recording.compare import Comparison, Difference, Piece
from dsec.runners import isolate, seeds
from dsec.runners.columns import Rows, outcomes
from dsec.runners.failure import describe
from dsec.runners.loop import Session
from dsec.runners.origin import restore_stage
from dsec.runners.records import LeafValues, flatten
from dsec.runners.stage import Stage

PAGE: Final = struct.Struct("<QQQ")
"""What the page says: a phase, the step it is in, and how many steps were compared."""
BLOCK_ROWS_MAX: Final = 256
BLOCK_S_MAX: Final = 0.05
DIFFERENCES_MAX: Final = 50


class Job(msgspec.Struct):
    """What to do. `start` is an env runner's Start frame, encoded; `first` the step from which on
    is compared; `ppid` who waits."""

    run_dir: str
    agent: str
    first: int
    start: bytes
    ppid: int


class Result(msgspec.Struct):
    """What came out.

    Attributes:
        outcome: `identical`, `differs`, `lost` (up to there it is identical; there the recording
            lost its environment, and what came then began from a seed that nobody knows) or
            `failed`.
        begin: the step from which on environments were stepped: 0, or that of an atom.
        step: where it differs, was lost or failed; else how many steps there are.
        differences: recorded value and new value of each.
        error, phase: of what failed.
    """

    outcome: str
    begin: int = 0
    step: int = 0
    differences: tuple[dict[str, Any], ...] = ()
    error: ErrorInfo | None = None
    phase: str = ""


class Reenactment:
    """One agent's environments, and the rows that they are held against."""

    def __init__(self, job: Job, session: Session, page: mmap.mmap) -> None:
        self._job, self._session, self._page = job, session, page
        self._compared = 0
        self.begin = 0

    def run(self) -> Result:
        """Step to the recording's end, or to the first difference."""
        job, session = self._job, self._session
        with Recording.open(job.run_dir) as recording:
            source = recording.source(job.agent)
            agent = source.agent
            atom = _atom_before(Path(job.run_dir) / "atoms", job.agent, job.first)
            if atom is not None:
                path, self.begin = atom
                origin = frames.Origin(str(path), self.begin)
                session.start = msgspec.structs.replace(session.start, origin=origin)
            elif session.start.origin is not None:  # it was forked, and begins there
                self.begin = session.start.origin.seq
            self.enter(Phase.CONSTRUCT, self.begin)
            session.phase, session.where = Phase.CONSTRUCT, "env"
            self._stage = stage = Stage(session)
            stage.enter = self.enter
            session.where = ""
            mine = stage.observation_space, stage.action_space
            if mine != (agent.observation_space, agent.action_space):
                raise JournalError(
                    f"the environment's spaces are {mine[0]} and {mine[1]}; recorded are"
                    f" {agent.observation_space} and {agent.action_space}"
                )
            self._comparison = Comparison(agent)
            self._obs = Tree(stage.record.layout)
            self._action = Tree(Layout(agent.action_space, agent.num_envs))
            self._awaken()
            return self._steps(outcomes(source.rows()))

    def enter(self, phase: int, seq: int) -> None:
        """Say in the page what user code runs."""
        PAGE.pack_into(self._page, 0, int(phase), seq, self._compared)

    def close(self) -> None:
        """Close the environments."""
        self.enter(Phase.CLOSE, self._session.seq)
        self._stage.close()

    def _awaken(self) -> None:
        """Bring the environments to where the first step begins."""
        session, stage = self._session, self._stage
        if session.start.origin is None:
            own = seeds.environment_seeds(session.start.seed, len(stage.envs))
            stage.reset_all(0, own, self._obs.views)
        else:
            self.enter(Phase.REPLAY, self.begin)
            observation, _ = restore_stage(session, stage)
            record = stage.record
            self._obs.fill(observation[record.obs_off :], record.layout.nbytes)
        stage.forget()

    def _steps(self, pieces: Iterator[Piece]) -> Result:
        n = self.begin
        for rows, led in pieces:
            at = int(np.searchsorted(rows.seq, n))
            if at == len(rows.seq):
                continue
            made = Block(self._stage, self._obs)
            since = time.monotonic()
            first = at
            for t in range(at, len(rows.seq)):
                if rows.seq[t] != n:
                    break
                made.note()
                self._action.put([leaf[t] for leaf in rows.action])
                self.enter(Phase.STEP, n)
                self._session.seq, self._session.phase = n, Phase.STEP
                made.step(n, self._action)
                n += 1
                late = time.monotonic() - since > BLOCK_S_MAX
                if late or t + 1 - first == BLOCK_ROWS_MAX or t + 1 == len(rows.seq):
                    found = self._compare(rows, led, made, slice(first, t + 1))
                    if found is not None:
                        return found
                    first, since = t + 1, time.monotonic()
            if n <= int(rows.seq[-1]):
                found = self._compare(rows, led, made, slice(first, first + len(made)))
                return found or Result("lost", self.begin, n)
        return Result("identical", self.begin, n)

    def _compare(self, rows: Rows, led: LeafValues, made: Block, part: slice) -> Result | None:
        """Hold what was made against its rows, from the step that was asked for on."""
        if not len(made):
            return None
        part = slice(part.start + max(0, self._job.first - int(rows.seq[part.start])), part.stop)
        new = made.take(part.stop - part.start) if part.start < part.stop else None
        made.clear()
        if new is None:
            return None
        old = rows.part(part), [leaf[part] for leaf in led]
        found = self._comparison.piece(old, new.beside(old[0]))
        self._compared = int(rows.seq[part.stop - 1]) + 1
        if found is None:
            return None
        step, differences = found
        told = tuple(_told(each) for each in differences[:DIFFERENCES_MAX])
        return Result("differs", self.begin, step, told)


class Tree:
    """Memory for the values of all environments of a step, leaf by leaf."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._bytes = bytearray(max(1, layout.nbytes))
        self.views = layout.views(self._bytes)
        self._loose = layout.bare()
        self._arrays = [
            np.ndarray((layout.n, *leaf.shape), leaf.dtype, self._bytes, leaf.offset)
            if isinstance(leaf, Leaf)
            else None
            for leaf in layout.order
        ]

    def put(self, leaves: LeafValues) -> None:
        """Take the values of one step."""
        encoded: list[bytes] = []
        for place, array, values in zip(self.layout.order, self._arrays, leaves, strict=True):
            if array is not None:
                array[...] = values
            elif not isinstance(place, Leaf):
                encoded += [place.encode(value) for value in values]
        if encoded:
            lengths = struct.pack(f"<{len(encoded)}Q", *map(len, encoded))
            self.layout.unpack(self.views, lengths + b"".join(encoded))

    def fill(self, payload: bytes, fixed: int) -> None:
        """Take the bytes of a record."""
        self._bytes[:fixed] = payload[:fixed]
        self.layout.unpack(self.views, payload[fixed:])

    def copy(self) -> LeafValues:
        """The values, one array (n, *shape) for each leaf."""
        packed = self.layout.pack(self.views)
        self.layout.unpack(self._loose, packed)
        loose = iter(self._loose)
        out: LeafValues = []
        for place, array in zip(self.layout.order, self._arrays, strict=True):
            if array is not None:
                out.append(array.copy())
            elif not isinstance(place, Leaf):
                values = np.empty(self.layout.n, np.object_)
                values[:] = [place.decode(value) for value in next(loose)]
                out.append(values)
        return out


class Block:
    """Some steps as they came out, until they are compared."""

    def __init__(self, stage: Stage, obs: Tree) -> None:
        self._stage, self._tree = stage, obs
        n = len(stage.envs)
        self._reward, self._flags = np.zeros(n), np.zeros(n, np.uint8)
        self.clear()

    def __len__(self) -> int:
        return len(self._rewards)

    def clear(self) -> None:
        """Forget all steps."""
        self._before: list[LeafValues] = []
        self._led: list[LeafValues] = []
        self._rewards: list[Any] = []
        self._ends: list[Any] = []

    def note(self) -> None:
        """Keep the observation that the next step leaves."""
        self._before.append(self._tree.copy())

    def step(self, n: int, action: Tree) -> None:
        """Do step n and keep what it led to."""
        stage, space = self._stage, self._tree.layout.space
        stage.step(n, action.layout.read, action.views, self._tree.views, self._reward, self._flags)
        led = self._tree.copy()
        for i, final in stage.finals.items():
            for leaf, value in zip(led, flatten(space, final), strict=True):
                leaf[i] = value
        stage.forget()
        self._led.append(led)
        self._rewards.append(self._reward.copy())
        self._ends.append(self._flags.copy())

    def take(self, count: int) -> Made:
        """The last `count` steps."""
        columns = [
            [np.stack(leaf) for leaf in zip(*steps[-count:], strict=True)]
            for steps in (self._before, self._led)
        ]
        ends = np.stack(self._ends[-count:])
        return Made(columns[0], columns[1], np.stack(self._rewards[-count:]), ends)


class Made(msgspec.Struct):
    """Steps as columns."""

    obs: LeafValues
    led: LeafValues
    reward: Any
    flags: Any

    def beside(self, old: Rows) -> Piece:
        """As rows that have what is not done again, and not compared, from the recorded ones."""
        terminated = self.flags & FLAG_TERMINATED != 0
        truncated = self.flags & FLAG_TRUNCATED != 0
        rows = old.part(slice(None))
        rows.obs, rows.env_reward = self.obs, self.reward
        rows.terminated, rows.truncated = terminated, truncated
        return rows, self.led


def _told(each: Difference) -> dict[str, Any]:
    names = ("env", "what", "where", "a", "b", "others")
    return {name: getattr(each, name) for name in names}


def _atom_before(folder: Path, agent: str, seq: int) -> tuple[Path, int] | None:
    """The newest whole atom of an agent that is not later than `seq`, and where it stands. Those
    that can't be read are passed over: the way from the beginning is always open."""
    from dsec.sml import codec, spill

    best: tuple[Path, int] | None = None
    for path in spill.files(folder):
        with contextlib.suppress(AtomError, MachineError):
            found = spill.load(path)
            if not (best[1] if best else 0) < found.label.seq <= seq:
                continue
            if codec.decode(found.body).manifest.agent == agent:
                best = path, found.label.seq
    return best


def main() -> int:
    """Read the job from stdin; write the result to the descriptor that argv names."""
    into, page_fd = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(file=2, all_threads=True)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    isolate.die_with_parent(job.ppid)
    page = mmap.mmap(page_fd, PAGE.size)
    for fd in (into, page_fd):
        os.set_inheritable(fd, False)
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    start = frames.decode(job.start)
    assert isinstance(start, Start), "the job was made by ours"
    ours, theirs = pair()
    session = Session(Channel(ours), start)
    try:
        isolate.set_limits(start.limits)
        session.reseed()
        work = Reenactment(job, session, page)
        result = work.run()
        try:
            work.close()
        except Exception:
            traceback.print_exc()  # what was asked is answered
    except BaseException as error:
        told = describe(error, where=session.where)
        ours_to_tell = isinstance(error, DsecError)
        phase = "" if ours_to_tell else session.phase.name.lower()
        result = Result("failed", 0, session.seq, (), told, phase)
    theirs.close()
    with open(into, "wb") as file:
        file.write(msgspec.json.encode(result))
    sys.stderr.flush()
    os._exit(0)  # whatever threads user code has left


if __name__ == "__main__":
    sys.exit(main())
