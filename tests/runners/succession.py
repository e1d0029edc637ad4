"""Successors for dead runners: what a kernel does between a death and Resume, by hand.

Owns the spare, the Takeover with the segments of the agent under a new epoch, and what runners
keep for their successors. Knows nothing of what is restored.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from dsec.errors import ChannelClosed, ChannelTimeout, RingTimeout
from dsec.ipc import segment
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    Clone,
    Constructed,
    Crashing,
    EnvSettings,
    Kept,
    Protection,
    Resume,
    Role,
    SegmentRef,
    Start,
    TakenOver,
    Takeover,
    Wire,
)
from dsec.ipc.ring import KIND_END
from tests.runners import worlds
from tests.runners.kernel import PATIENCE_S, Agent, AgentPlan, Runner

FATE = "killed by a test"


def kill(runner: Runner) -> None:
    """SIGKILL, and see it die of that."""
    signal.pidfd_send_signal(runner.pidfd, signal.SIGKILL)
    assert runner.wait() == -signal.SIGKILL


def entry(name: str, **kwargs: Any) -> EnvSettings:
    """One of the environments of worlds.py."""
    return EnvSettings(entry=f"{worlds.HERE}:{name}", kwargs=kwargs)


class Succession:
    """The line of runners of one agent.

    Attributes:
        clone: the sleeping copy of the env runner, if it has told of one.
        takeovers: what each successor answered, by role.
        protection: what each role's runner told last.
    """

    def __init__(self, agent: Agent, zygote: Channel | None) -> None:
        self.agent = agent
        self._zygote = zygote
        self._epoch = 1
        self._kept: dict[Role, tuple[int, int]] = {}
        self.protection: dict[Role, Protection] = {}
        self.takeovers: dict[Role, list[TakenOver]] = {role: [] for role in Role}
        self._forked: list[Runner] = []
        self.clone: Runner | None = None
        self._cloned: list[int] = []

    def spare(self, role: Role) -> Runner:
        """Fork one more runner of this role, up to where it waits for its Takeover."""
        self._epoch += 1
        agent = self.agent
        name = f"{agent.plan.name}-{role.name.lower()}-{self._epoch}"
        assert self._zygote is not None, "who replaces runners needs one"
        runner = agent.kernel.fork(self._zygote, name)
        self._forked.append(runner)
        start = agent.plan.start(role)
        changed = {field: getattr(start, field) for field in Start.__struct_fields__}
        runner.channel.send(Start(**{**changed, "epoch": self._epoch}))
        if role is Role.ENV:
            runner.expect(Constructed)
        return runner

    def collect(self, role: Role, runner: Runner | None = None) -> None:
        """Take what the runner has told and nobody has read."""
        runner = runner or self.agent.runners[role]
        with suppress(ChannelTimeout, ChannelClosed):
            while True:
                frame, fds = runner.channel.recv(0.0)
                if isinstance(frame, Clone):
                    self._hold_clone(frame, fds[0], runner)
                    continue
                if isinstance(frame, Crashing):
                    continue  # of one that is dead already
                assert isinstance(frame, Kept), frame
                if frame.protection is not None:
                    self.protection[role] = frame.protection
                if fds:
                    self._keep(role, frame.size, fds[0])

    def _hold_clone(self, frame: Clone, fd: int, parent: Runner) -> None:
        self._drop_clone()
        self._cloned.append(frame.pid)
        with suppress(ProcessLookupError):  # an even newer one has taken its place
            pidfd = os.pidfd_open(frame.pid)
            sock = socket.socket(fileno=fd)
            self.clone = Runner(frame.pid, Channel(sock), parent.stdout, parent.stderr, pidfd=pidfd)
            return
        os.close(fd)

    def _drop_clone(self) -> None:
        if self.clone is not None:
            self.clone.channel.close()
            os.close(self.clone.pidfd)
            self.clone = None

    def promote_clone(self, *, fence: Callable[[Runner], Any] = kill) -> TakenOver:
        """Let the sleeping clone take over: the fence first, for the runner ends older ones."""
        agent = self.agent
        fence(agent.runners[Role.ENV])
        self.collect(Role.ENV)
        clone, self.clone = self.clone, None
        assert clone is not None, "there is one"
        self._epoch += 1
        self._forked.append(clone)
        agent.kernel.runners.append(clone)
        return self.take_over(Role.ENV, clone, fence=Runner.kill)

    def _keep(self, role: Role, size: int, fd: int) -> None:
        if role in self._kept:
            os.close(self._kept[role][1])
        self._kept[role] = size, fd

    def take_over(
        self,
        role: Role,
        spare: Runner | None = None,
        *,
        truncate: bool = False,
        fence: Callable[[Runner], Any] = kill,
        before_resume: Callable[[], None] = lambda: None,
    ) -> TakenOver:
        """Replace the runner of this role: Takeover, fence, Resume, in this order.

        A killed one is killed while its successor restores, as the kernel does; in a rig that reads
        up to a ring behind it would go on, and write over what the successor is to replay.
        """
        agent, old = self.agent, self.agent.runners[role]
        spare = spare or self.spare(role)
        self.collect(role)
        self._send_takeover(role, spare, truncate=truncate)
        if fence is kill:
            fence(old)
        answer = self._taken_over(spare)
        before_resume()
        if fence is not kill:
            fence(old)
        known = self._kept.get(role)
        self.collect(role, old)
        if known == self._kept.get(role):
            spare.channel.send(Resume())
        else:  # it kept something new while its successor was at work
            fd = segment.readonly(self._kept[role][1])
            spare.channel.send(Resume(kept=0), (fd,))
            os.close(fd)
        agent.runners[role] = spare
        if old not in self._forked:
            self._close(old)
        if role is Role.ENV:
            agent.env = spare
        self.takeovers[role].append(answer)
        return answer

    def _taken_over(self, spare: Runner) -> TakenOver:
        """What it answers, however often it says before that it gets on."""
        while True:
            frame, fds = spare.channel.recv(PATIENCE_S)
            if isinstance(frame, Clone):  # it has left one behind before it did anything
                self._hold_clone(frame, fds[0], spare)
                continue
            assert not fds, frame
            if isinstance(frame, TakenOver):
                return frame
            assert frame == Kept(0), f"{frame}\n{spare.stderr.read_text()}"

    def _send_takeover(self, role: Role, spare: Runner, *, truncate: bool) -> None:
        agent = self.agent
        fds: list[int] = []
        refs = []
        for owner, held in agent.segments.items():
            refs.append(SegmentRef(int(owner), held.size, self._epoch, len(fds)))
            fds.append(os.dup(held.fd) if owner == role else segment.readonly(held.fd))
        kept = -1
        if role in self._kept:
            kept = len(fds)
            fds.append(segment.readonly(self._kept[role][1]))
        wire = Wire(agent.plan.name, agent._spaces_bytes, tuple(refs), agent.plan.num_envs)
        learns = agent.learns[Role.POLICY]
        frame = Takeover(wire, kept, truncate, FATE, policy_learns=learns)
        spare.channel.send(frame, fds)
        for fd in fds:
            os.close(fd)

    def drive(self, faults: dict[int, Callable[[], Any]]) -> None:
        """Record to the end; where observation n is recorded, `faults[n]` happens once."""
        agent = self.agent
        while True:
            record = agent.take(Role.ENV, PATIENCE_S)
            if record.flags & 2:
                break
            for role in (Role.POLICY, Role.REWARD):
                with suppress(RingTimeout):
                    agent.take(role, 0.0)
            if record.seq in faults:
                faults.pop(record.seq)()
        for role in (Role.POLICY, Role.REWARD):
            while agent.take(role, PATIENCE_S).kind != KIND_END:
                pass
        assert not faults, "every fault has happened"
        for role in agent.runners:
            self.collect_to_the_end(role)

    def collect_to_the_end(self, role: Role) -> None:
        """Read what the runner told until Done, and see it exit with 0."""
        runner = self.agent.runners[role]
        frames = []
        for frame in runner.frames_to_the_end():
            if isinstance(frame, Kept) and frame.protection is not None:
                self.protection[role] = frame.protection
            elif not isinstance(frame, Kept | Clone):
                frames.append(type(frame).__name__)
        assert frames == ["Done"], (frames, runner.stderr.read_text())
        assert runner.wait() == 0

    def close(self) -> None:
        for _, fd in self._kept.values():
            os.close(fd)
        self._kept.clear()
        self._drop_clone()
        for runner in self._forked:
            if runner not in self.agent.runners.values():
                self._close(runner)
        for pid in self._cloned:
            # One that its runner had no time to end comes to us, and ends with its channel.
            with suppress(ChildProcessError):
                if pid != self.agent.env.pid:
                    os.waitpid(pid, 0)
        known = {runner.pid for runner in self.agent.kernel.runners}
        for child in psutil.Process().children():
            # One whose runner died between the fork and telling of it: the supervisor's to sweep.
            if child.pid not in known and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, 0)

    def _close(self, runner: Runner) -> None:
        runner.close()
        self.agent.kernel.runners.remove(runner)


Successions = Callable[[AgentPlan], Succession]
