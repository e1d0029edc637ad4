"""A kernel and a recorder in one synchronous object, for tests of runners without the supervisor.

Owns the real thing on the runners' side of the wire: a zygote process, forked runners, segments,
frames. The test process plays the supervisor (it is the subreaper and holds the lifeline) and the
recorder (it reads the three rings). It knows nothing of the kernel room.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dsec.errors import ChannelClosed, RingTimeout
from dsec.ipc import segment
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import (
    AnyFrame,
    Constructed,
    Done,
    EnvSettings,
    Failed,
    FailoverSettings,
    Fork,
    Forked,
    Go,
    Hello,
    Origin,
    Prepare,
    Prepared,
    Ready,
    Role,
    SegmentRef,
    Start,
    Wire,
)
from dsec.ipc.layout import EnvRecord, Layout, RewardRecord, decode_spaces
from dsec.ipc.overflow import DESCRIPTOR, fetch
from dsec.ipc.ring import FLAG_OVERFLOW, KIND_END, Outbox, Peer, Reader
from tests.subreaper import is_subreaper, set_subreaper

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 90.0  # a limit for what hangs, less than that of a test; busy machines are no fault
SEED = "00112233445566778899aabbccddeeff"
ROLES = (Role.ENV, Role.POLICY, Role.REWARD)

FrameT = TypeVar("FrameT", bound=AnyFrame)


@dataclass
class Record:
    """One record of a ring, its payload copied."""

    seq: int
    kind: int
    flags: int
    payload: bytes


@dataclass
class Observed:
    """One env record, decoded."""

    seq: int
    flags: int
    obs: Any
    reward: Any
    ends: Any
    finals: dict[int, Any]
    infos: list[dict[str, Any]]


@dataclass
class Runner:
    """One forked runner, as its kernel sees it."""

    pid: int
    channel: Channel
    stdout: Path
    stderr: Path
    pidfd: int = -1
    status: int | None = None

    def expect(self, kind: type[FrameT], timeout_s: float = PATIENCE_S) -> FrameT:
        """The next frame, which must be of this kind."""
        frame, fds = self.channel.recv(timeout_s)
        assert not fds
        assert isinstance(frame, kind), f"{frame}\n{self.stderr.read_text()}"
        return frame

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code, negative for a signal."""
        if self.status is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            assert poll.poll(timeout_s * 1000), f"{self.pid} lives\n{self.stderr.read_text()}"
            try:
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # a failed test's leak check has reaped it
                self.status = -signal.SIGKILL
        return self.status

    def frames_to_the_end(self, timeout_s: float = PATIENCE_S) -> list[AnyFrame]:
        found = []
        with suppress(ChannelClosed):
            while True:
                frame, fds = self.channel.recv(timeout_s)
                found.append(frame)
                list(map(os.close, fds))
        return found

    def kill(self) -> None:
        """Fence it, if it lives."""
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        self.kill()
        self.channel.close()
        os.close(self.pidfd)

    def failure(self) -> Failed:
        """The Failed frame that must be the next, and the last."""
        *others, last = self.frames_to_the_end()
        assert not others and isinstance(last, Failed), (others, last)
        return last


class MiniKernel:
    """Zygotes, runners and segments, all gone when the `with` block is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lifeline_read, self.lifeline_write = os.pipe()
        self.runners: list[Runner] = []
        self._zygotes: list[tuple[subprocess.Popen[bytes], Channel]] = []
        self.supervisor_pid = os.getpid()

    def zygote(self, *modules: str, env: Mapping[str, str] | None = None) -> Channel:
        """Start a zygote and have it import `modules`."""
        channel = self.start_zygote(env=env)
        channel.send(Prepare("test", modules))
        frame, _ = channel.recv(PATIENCE_S * 2)
        assert isinstance(frame, Prepared), f"{frame}\n{self.zygote_log()}"
        return channel

    def start_zygote(self, *, env: Mapping[str, str] | None = None, **options: Any) -> Channel:
        mine, theirs = pair()
        single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        words = ["--control", str(theirs.fileno()), "--lifeline", str(self.lifeline_read)]
        with (self.folder / "zygote.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dsec.runners.zygote", *words],
                pass_fds=(theirs.fileno(), self.lifeline_read),
                env={**os.environ, **single, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                **options,
            )
        theirs.close()
        channel = Channel(mine)
        self._zygotes.append((process, channel))
        return channel

    def zygote_log(self) -> str:
        return (self.folder / "zygote.log").read_text()

    def zygote_process(self, channel: Channel) -> subprocess.Popen[bytes]:
        return next(process for process, known in self._zygotes if known is channel)

    def fork(self, zygote: Channel, name: str) -> Runner:
        """Fork a runner and see it say Hello."""
        runner = self.fork_silently(zygote, name)
        assert runner.expect(Hello).pid == runner.pid
        return runner

    def fork_silently(self, zygote: Channel, name: str) -> Runner:
        return self.fork_many(zygote, name)[0]

    def fork_many(self, zygote: Channel, *names: str) -> list[Runner]:
        """Ask for all before the first answer is read."""
        asked: list[tuple[Channel, list[Path]]] = []
        for name in names:
            mine, theirs = pair()
            paths = [self.folder / f"{name}.{stream}" for stream in ("out", "err")]
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            files = [os.open(path, flags, 0o600) for path in paths]
            fds = (theirs.fileno(), self.lifeline_read, *files)
            zygote.send(Fork(name, 1, self.supervisor_pid), fds)
            theirs.close()
            for fd in files:
                os.close(fd)
            asked.append((Channel(mine), paths))
        begin = len(self.runners)
        for name, (channel, paths) in zip(names, asked, strict=True):
            frame, _ = zygote.recv(PATIENCE_S)
            assert isinstance(frame, Forked), frame
            assert (frame.name, frame.epoch) == (name, 1)
            runner = Runner(frame.pid, channel, *paths, pidfd=os.pidfd_open(frame.pid))
            self.runners.append(runner)
        return self.runners[begin:]

    def cut_lifeline(self) -> None:
        if self.lifeline_write >= 0:
            os.close(self.lifeline_write)
            self.lifeline_write = -1

    def close(self) -> None:
        self.cut_lifeline()
        os.close(self.lifeline_read)
        for runner in self.runners:
            runner.wait()
            runner.close()
        for process, channel in self._zygotes:
            process.wait(PATIENCE_S)
            channel.close()


@contextmanager
def mini_kernel(folder: Path) -> Iterator[MiniKernel]:
    """A kernel whose supervisor is the calling process."""
    before = is_subreaper()
    set_subreaper(True)
    kernel = MiniKernel(folder)
    try:
        yield kernel
    finally:
        try:
            kernel.close()
        finally:
            set_subreaper(before)


@dataclass
class AgentPlan:
    """What an agent is made of, with defaults for what a test doesn't care about."""

    name: str = "agent"
    env: EnvSettings = field(default_factory=lambda: EnvSettings(id="CartPole-v1"))
    policy: str = "dsec.policies:RandomPolicy"
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    reward: str = "dsec.reward:EnvReward"
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    seed: str = SEED
    num_envs: int = 1
    steps: int = 0
    episodes: int = 0
    snapshot_interval: int = 50
    ring_slots: int = 64
    limits: dict[str, int] = field(default_factory=dict)
    failover: FailoverSettings = field(default_factory=FailoverSettings)
    cpus: tuple[int, ...] = ()
    origin: Origin | None = None

    def start(self, role: Role) -> Start:
        entry = {Role.POLICY: self.policy, Role.REWARD: self.reward}.get(role, "")
        kwargs = {Role.POLICY: self.policy_kwargs, Role.REWARD: self.reward_kwargs}.get(role, {})
        return Start(
            agent=self.name,
            role=role,
            epoch=1,
            seed=self.seed,
            num_envs=self.num_envs,
            env=self.env,
            entry=entry,
            kwargs=kwargs,
            steps=self.steps,
            episodes=self.episodes,
            snapshot_interval=self.snapshot_interval,
            ring_slots=self.ring_slots,
            limits=self.limits,
            failover=self.failover,
            cpus=self.cpus,
            origin=self.origin,
        )


class Agent:
    """One agent's three runners, and this process as its recorder."""

    def __init__(self, kernel: MiniKernel, zygote: Channel, plan: AgentPlan) -> None:
        self.kernel = kernel
        self.plan = plan
        self.runners = {
            role: kernel.fork(zygote, f"{plan.name}-{role.name.lower()}") for role in ROLES
        }
        self.env, self.policy, self.reward = (self.runners[role] for role in ROLES)
        for role, runner in self.runners.items():
            runner.channel.send(plan.start(role))
        self.segments: dict[Role, segment.Segment] = {}
        self.readers: dict[Role, Reader] = {}
        self.records: dict[Role, list[Record]] = {role: [] for role in ROLES}
        self.overflows = 0
        self._mine: Outbox | None = None
        self._peers: list[Peer] = []

    def wire(self) -> Agent:
        """Make the segments once the env is constructed, and hand them out."""
        constructed = self.env.expect(Constructed)
        self.spaces = decode_spaces(constructed.spaces)
        self._spaces_bytes = constructed.spaces
        for role in (*ROLES, Role.RECORDER):
            data_bytes = constructed.ring_bytes[role]
            name = f"{self.plan.name}-{role.name.lower()}"
            self.segments[role] = segment.create(f"dsec:{name}", role, data_bytes, epoch=1)
        for role, runner in self.runners.items():
            with suppress(ChannelClosed):  # it has failed already: its end says more
                self.send_wire(role, runner)
        self._record()
        return self

    def send_wire(self, role: Role, runner: Runner) -> None:
        fds, refs = [], []
        for owner, held in self.segments.items():
            fd = os.dup(held.fd) if owner == role else segment.readonly(held.fd)
            refs.append(SegmentRef(role=owner, size=held.size, epoch=held.epoch, fd=len(fds)))
            fds.append(fd)
        wire = Wire(
            agent=self.plan.name,
            spaces=self._spaces_bytes,
            segments=tuple(refs),
            num_envs=self.plan.num_envs,
        )
        try:
            runner.channel.send(wire, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _record(self) -> None:
        held = self.segments[Role.RECORDER]
        self._mine = Outbox(held.fd, held.size, Role.RECORDER)
        for role in ROLES:
            peer = Peer(self.segments[role].fd, self.segments[role].size, role)
            self._peers.append(peer)
            self.readers[role] = Reader(self._mine, peer)

    def ready(self) -> Agent:
        """Wait until all are ready."""
        self.learns = {role: r.expect(Ready).learns for role, r in self.runners.items()}
        return self

    def go(self) -> Agent:
        for runner in self.runners.values():
            runner.channel.send(Go(policy_learns=self.learns[Role.POLICY]))
        return self

    def begin(self) -> Agent:
        """Everything up to Go."""
        return self.wire().ready().go()

    def take(self, role: Role, timeout_s: float = PATIENCE_S) -> Record:
        """The next record of that role's ring."""
        reader = self.readers[role]
        reader.next(timeout_s)
        payload = bytes(reader.peer.buffer[reader.offset : reader.offset + reader.nbytes])
        if reader.flags & FLAG_OVERFLOW:
            self.overflows += 1
            payload = payload[: -DESCRIPTOR.size] + fetch(reader.peer, memoryview(payload))
        record = Record(reader.seq, reader.kind, reader.flags, payload)
        reader.release()
        self.records[role].append(record)
        return record

    def take_all(self, timeout_s: float = PATIENCE_S) -> Agent:
        """Read the three rings to their ends, as the recorder does: in step with each other."""
        while True:
            last = self.take(Role.ENV, timeout_s).flags & 2
            if last:
                break
            for role in (Role.POLICY, Role.REWARD):
                # Rewards come in batches and lag; what is there is taken, so that nobody waits.
                with suppress(RingTimeout):
                    self.take(role, 0.0)
        for role in (Role.POLICY, Role.REWARD):
            while self.take(role, timeout_s).kind != KIND_END:
                pass
        return self

    def finish(self) -> dict[Role, Done]:
        """All say Done and exit with 0."""
        done = {role: runner.expect(Done) for role, runner in self.runners.items()}
        for runner in self.runners.values():
            assert runner.wait() == 0
        return done

    def run(self) -> Agent:
        """A whole life without faults."""
        self.done = self.begin().take_all().finish()
        return self

    def observed(self) -> list[Observed]:
        layout = EnvRecord(self.spaces[0], self.plan.num_envs)
        found = []
        for record in self.records[Role.ENV]:
            views = layout.views(bytearray(record.payload))
            extras = layout.open_tail(views.obs, record.payload[layout.fixed_bytes :])
            finals, infos = layout.decode_extras(extras)
            obs = layout.layout.copy(views.obs)
            found.append(
                Observed(record.seq, record.flags, obs, views.reward, views.flags, finals, infos)
            )
        return found

    def actions(self) -> list[Any]:
        layout = Layout(self.spaces[1], self.plan.num_envs)
        found = []
        for record in self.records[Role.POLICY]:
            if record.kind != KIND_END:
                views = layout.views(bytearray(record.payload))
                layout.unpack(views, record.payload[layout.nbytes :])
                found.append(layout.copy(views))
        return found

    def rewards(self) -> list[Any]:
        layout = RewardRecord(self.plan.num_envs)
        records = (r for r in self.records[Role.REWARD] if r.kind != KIND_END)
        return [layout.views(bytearray(record.payload)) for record in records]

    def close(self) -> None:
        """Fence what is left and forget the segments."""
        for runner in self.runners.values():
            runner.close()
            self.kernel.runners.remove(runner)
        self.readers.clear()
        for peer in self._peers:
            peer.close()
        self._peers.clear()
        if self._mine is not None:
            self._mine.close()
            self._mine = None
        for held in self.segments.values():
            held.close()


Agents = Callable[[AgentPlan], Agent]
