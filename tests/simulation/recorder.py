"""The simulated recorder: joins the rings of each agent and appends what is whole to the journal.

Owns the order of the commit: a row is on disk before the cursor moves, so a death between the two
repeats nothing (the next incarnation drops what it has) and loses nothing.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from dsec.ipc import frames
from dsec.ipc.frames import AgentProgress, AnyFrame, Phase, Role
from tests.simulation.process import SUPERVISOR, Process
from tests.simulation.things import END, INFRA, Memory, Thing

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.runners import Agent

POLL_S = (0.01, 0.08)
PROGRESS_S = 0.2
DISK_WAIT_S = 5.0


class Track:
    """One agent's rings, as the recorder reads them."""

    def __init__(self, own: Memory, peers: dict[Role, Memory]) -> None:
        self.own, self.peers = own, peers
        self.done = self.abandoned = self.unreadable = False


class RecorderProcess(Process):
    """One incarnation of the recorder."""

    role = Role.RECORDER

    def __init__(self, machine: Machine, agents: dict[str, Agent], name: str, epoch: int) -> None:
        super().__init__(machine, SUPERVISOR, name, epoch=epoch)
        self.marks = self.pid
        self.phase = Phase.IDLE
        self.agents = agents
        self.tracks: dict[str, Track] = {}
        self.finishing = self.full = self.given_up = self.die_between = False
        self._told_s = 0.0
        self._full_since = 0.0
        self.serving = False

    def boot(self) -> None:
        self.after(self.between((5e-4, 8e-3)), self.hello)

    def hello(self) -> None:
        self.send(frames.Hello(self.pid))

    def take(self, frame: AnyFrame, things: list[Thing]) -> None:
        match frame:
            case frames.RecorderStart():
                self.after(self.between((1e-4, 5e-3)), self.ready)
            case frames.Wire():
                self.wire(frame, things)
            case frames.Abandon():
                track = self.tracks[frame.agent]
                track.abandoned = True
                if track.unreadable and not track.done:
                    track.done = True
                    self.send(frames.Finished(frame.agent, False, 0, 0, 0.0, -1, -1, "", 0))
            case frames.Finish():
                self.finishing = True

    def ready(self) -> None:
        self.serving = True
        self.send(frames.Ready())
        self.poll()

    def wire(self, frame: frames.Wire, things: list[Thing]) -> None:
        peers: dict[Role, Memory] = {}
        for ref in frame.segments:
            memory = things[ref.fd]
            assert isinstance(memory, Memory)
            self.held.append(memory.hold())
            peers[Role(ref.role)] = memory
        own = peers.pop(Role.RECORDER)
        self.tracks[frame.agent] = Track(own, peers)
        self.machine.tell("attached", self, frame)
        self.send(frames.Wired(frame.agent))

    # ------------------------------------------------------------ committing

    def poll(self) -> None:
        for name, track in tuple(self.tracks.items()):
            if not (track.done or track.unreadable):
                self.commit(name, track)
                if not self.alive or self.hung:
                    return
        self.tell_progress()
        left = [each for each in self.tracks.values() if not (each.done or each.unreadable)]
        if self.finishing and not left:
            self.after(self.between((1e-3, 0.1)), self.recorded)
            return
        self.after(self.between(POLL_S), self.poll)

    def commit(self, name: str, track: Track) -> None:
        """Take what is whole."""
        if self.full:
            if self.machine.now() - self._full_since > DISK_WAIT_S and not self.given_up:
                self.given_up = True
                self.send(frames.DiskFull("the disk is full", True))
            if not self.given_up:
                return
        journal = self.machine.journals[name]
        envs, actions, rewards = (track.peers[role].records for role in Role if role in track.peers)
        n = track.own.cursors.get(Role.ENV, 0)
        moved = False
        while not self.given_up and n + 1 < len(envs) and n < len(actions) and n < len(rewards):
            if actions[n].flags & END or rewards[n].flags & END:
                break
            if not journal.rows or journal.rows[-1][0] < n:
                led = envs[n + 1]
                row = (n, envs[n].value, actions[n].value, rewards[n].value, led.value, led.flags)
                journal.rows.append(row)
                self.machine.tell("committed", self, name, row)
            if self.die_between:
                self.die_between, self.hung = False, True
                self.die(signal.SIGKILL, 0.0)
                return
            n, moved = n + 1, True
            track.own.cursors[Role.ENV] = n
        if moved:
            self.wake(track.own)
        self.look_finished(name, track, n)

    def wake(self, memory: Memory) -> None:
        waiters, memory.waiters = memory.waiters, []
        for each in waiters:
            each.after(5e-6, each.advance)  # type: ignore[attr-defined]

    def look_finished(self, name: str, track: Track, n: int) -> None:
        ends = [memory.last for memory in track.peers.values()]
        clean = all(last is not None and last.flags & END for last in ends)
        clean = clean and n == len(track.peers[Role.ENV].records) - 1
        if clean or track.abandoned or self.finishing or self.given_up:
            track.done = True
            journal = self.machine.journals[name]
            journal.finished, journal.clean = True, clean
            env = track.peers[Role.ENV].records
            steps = sum(not row[5] & INFRA for row in journal.rows)
            last = len(env) - 1
            self.send(frames.Finished(name, clean, steps, 0, 0.0, last, n - 1, "", 0))

    def tell_progress(self) -> None:
        if self.machine.now() - self._told_s > PROGRESS_S:
            self._told_s = self.machine.now()
            said = [
                AgentProgress(name, len(self.machine.journals[name].rows), 0, 0.0, 0.0)
                for name in self.tracks
            ]
            self.send(frames.Progress(tuple(said)))

    def recorded(self) -> None:
        self.send(frames.RecorderDone(("a.parquet",)))
        self.after(self.between((1e-4, 5e-3)), self.exit, 0)

    # ------------------------------------------------------------ what is done to it

    def see_corrupt(self, agent: str, role: Role) -> bool:
        """A record of this ring is none; False if it doesn't read that any more."""
        track = self.tracks.get(agent)
        if track is None or track.done or track.unreadable:
            return False
        track.unreadable = True
        said = f"{role.name.lower()} segment: a record of kind 99"
        self.after(0.0, self.send, frames.Corrupt(agent, said))
        return True

    def fill(self) -> None:
        """The disk is full."""
        if not self.full:
            self.full, self._full_since = True, self.machine.now()
            self.after(0.0, self.send, frames.DiskFull("No space left on device", False))

    def make_room(self) -> None:
        """It isn't any more."""
        if self.full and not self.given_up:
            self.full = False
            self.after(0.0, self.send, frames.DiskOk())

    def crash(self, signum: int, *, handled: bool = True, sender: int = 0) -> None:
        """Die of a signal."""
        self.die(signum, 1e-4)
