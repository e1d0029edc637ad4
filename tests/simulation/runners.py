"""What the runners of a simulated agent have in common, and the zygote that forks them.

Owns their side of the control protocol, as runners/ speaks it: Hello, Start, Wire or Takeover,
Go or Resume, Drain, Done; and their writes. A runner writes where it believes its ring to end: so
one that was not fenced writes over what its successor has published, and is seen to.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame, ErrorInfo, Phase, Protection, Role
from dsec.ipc.segment import CrashRecord
from tests.simulation.process import SUPERVISOR, Process
from tests.simulation.things import END, Memory, Record, Thing

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

WAKE_S = 5e-6
STACKS_S = (2e-4, 0.08)  # what the handler of a crash takes to write its stacks
RING_BYTES = {Role.ENV: 1 << 16, Role.POLICY: 1 << 14, Role.REWARD: 1 << 14, Role.RECORDER: 0}
EXIT_FAILED = 70


@dataclass
class Agent:
    """What the configuration, and user code, of one agent are.

    Attributes:
        seed: of everything that its environment does.
        steps: its quota.
        level: how its env keeps its state: `state`, `fork`, `replay` or `none`.
        interval: records between two snapshots.
        actors_kept: policy and reward keep their state.
        learns: the policy waits for rewards.
        slots: records that its rings hold for the recorder.
        recycle: records after which its env steps aside; 0: never.
        span_s: the shortest and the longest time that each phase takes.
        fatal: by the record that it makes, how often (at most) its env dies in that step.
        fatal_replays, fatal_closes: how many more die in these phases.
        unfaithful: how many more states are not restored as they were.
        others: how many more environments are constructed with other spaces.
    """

    name: str
    seed: int
    steps: int
    level: str
    interval: int = 4
    actors_kept: bool = True
    learns: bool = False
    slots: int = 16
    recycle: int = 0
    span_s: dict[Phase, tuple[float, float]] = field(default_factory=dict)
    fatal: dict[int, int] = field(default_factory=dict)
    fatal_replays: int = 0
    fatal_closes: int = 0
    unfaithful: int = 0
    others: int = 0


def mix(*values: int) -> int:
    """What the world model computes: the same on every machine, and for no other values."""
    return hash(values) & (1 << 60) - 1


class Runner(Process):
    """One incarnation of a role of an agent.

    Attributes:
        serving: it may publish.
        busy: it is in user code, or waits for no ring.
        view: the sequence number of the next record that it will publish.
    """

    role = Role.ENV

    def __init__(
        self, machine: Machine, agent: Agent, name: str, epoch: int, parent: int = SUPERVISOR
    ) -> None:
        super().__init__(machine, parent, name, epoch=epoch)
        self.agent = agent
        self.marks = self.pid
        self.start: frames.Start | None = None
        self.outbox: Memory | None = None
        self.peers: dict[Role, Memory] = {}
        self.wire_epoch = epoch
        self.serving = self.busy = self.draining = self.fenced = self.ended = False
        self.phase, self.view, self.torn_next = Phase.IDLE, 0, False
        self._own = self._hangs = False
        self.slow_s = 0.0

    @property
    def wrote(self) -> bool:
        """It may write to the rings still, being wired or resumed."""
        return self._own and self.writes

    # ------------------------------------------------------------ life

    def boot(self) -> None:
        """Say Hello, after a while."""
        self.after(self.between((5e-4, 8e-3)), self.hello)

    def hello(self) -> None:
        self.send(frames.Hello(self.pid))

    def take(self, frame: AnyFrame, things: list[Thing]) -> None:
        match frame:
            case frames.Start():
                self.start = frame
                self.started()
            case frames.Wire():
                self.attach(frame, things)
                self._own = True
                self.enter(Phase.CONSTRUCT, -1)
                self.after(self.building_s(), self.ready)
            case frames.Go():
                self.serve()
            case frames.Takeover():
                self.attach(frame.wire, things)
                self.epoch = self.wire_epoch
                self.take_over(frame, things)
            case frames.Resume():
                self._own = True
                self.resume(things[frame.kept] if frame.kept >= 0 else None)
            case frames.Drain():
                self.draining, self.fenced = True, frame.fenced
                if self.outbox is None or not self.serving:
                    self.finish()
                else:
                    self.advance()

    def started(self) -> None:
        """Start came. The others than an env wait for Wire."""

    def building_s(self) -> float:
        """What it constructs after Wire."""
        return self.span(Phase.CONSTRUCT)

    def attach(self, wire: frames.Wire, things: list[Thing]) -> None:
        """Map the segments."""
        for ref in wire.segments:
            memory = things[ref.fd]
            assert isinstance(memory, Memory)
            self.held.append(memory.hold())
            self.peers[Role(ref.role)] = memory
            if ref.role == self.role:
                self.outbox, self.wire_epoch = memory, ref.epoch
        self.machine.tell("attached", self, wire)

    def ready(self) -> None:
        self.enter(Phase.IDLE, -1)
        protection = Protection(self.level) if self.role is Role.ENV else Protection("none")
        self.send(frames.Ready(self.agent.learns and self.role is Role.POLICY, {}, protection))

    @property
    def level(self) -> str:
        """At which it protects its state."""
        return self.agent.level

    def serve(self) -> None:
        """From Go, or Resume, on."""
        self.serving = True
        assert self.outbox is not None
        last = self.outbox.last
        self.view = len(self.outbox.records)
        self.ended = last is not None and bool(last.flags & END)
        self.enter(Phase.IDLE, self.view - 1)
        self.machine.tell("serves", self)
        self.advance()

    def take_over(self, frame: frames.Takeover, things: list[Thing]) -> None:
        raise NotImplementedError

    def resume(self, kept: Thing | None) -> None:
        self.serve()

    def advance(self) -> None:
        """Do what can be done now, if anything; called whenever that may have changed."""
        if self.busy or not self.serving:
            return
        if self.ended:
            self.finish()
        else:
            self.work()

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Close what is the user's, say Done, leave."""
        self.busy = True
        self.enter(Phase.CLOSE, self.view - 1)
        if self.agent.fatal_closes:
            self.agent.fatal_closes -= 1
            self.crash(signal.SIGSEGV)
            return
        self.after(self.span(Phase.CLOSE), self.leave)

    def leave(self) -> None:
        self.send(frames.Done(self.role, self.view - 1))
        self.after(self.between((1e-5, 2e-3)), self.exit, 0)

    # ------------------------------------------------------------ user code and rings

    def span(self, phase: Phase) -> float:
        """How long a phase takes, this time."""
        slow_s, self.slow_s = self.slow_s, 0.0
        self.hung = self.hung or self._hangs
        return slow_s + self.between(self.agent.span_s.get(phase, (1e-4, 1e-3)))

    def hang(self) -> None:
        """Never come back from user code: from where it is, or from where it goes next."""
        if self.phase is Phase.IDLE:
            self._hangs = True
        else:
            self.hung = True

    def replays(self, seconds: float, then: Callable[[], None]) -> None:
        """Restore and replay, which is user code, too."""
        self.phase = Phase.REPLAY
        self.hung = self.hung or self._hangs
        if self.agent.fatal_replays:
            self.agent.fatal_replays -= 1
            self.after(seconds / 2, self.crash, signal.SIGSEGV)
        else:
            self.after(seconds, then)

    def enter(self, phase: Phase, seq: int) -> None:
        """Say what user code runs."""
        self.phase = phase
        if self._own and self.outbox is not None and not self.dead:
            self.outbox.word = (int(phase), self.machine.now(), seq)

    def spend(self, phase: Phase, seq: int, then: Callable[..., None], *args: int) -> None:
        """Be in user code for a while."""
        self.busy = True
        self.enter(phase, seq)
        self.after(self.span(phase), self._spent, seq, then, args)

    def _spent(self, seq: int, then: Callable[..., None], args: tuple[int, ...]) -> None:
        self.busy = False
        self.enter(Phase.IDLE, seq)
        then(*args)

    def await_on(self, *memories: Memory | None) -> None:
        """Sleep until one of these moves."""
        for memory in memories:
            if memory is not None and self not in memory.waiters:
                memory.waiters.append(self)

    def wake(self, memory: Memory) -> None:
        """It has moved: whoever waits for it looks."""
        waiters, memory.waiters = memory.waiters, []
        for each in waiters:
            each.after(WAKE_S, each.advance)

    def publish(self, value: int, flags: int = 0) -> None:
        """Write a record where its ring ends, as far as this process knows: payload, then tail."""
        memory = self.outbox
        assert memory is not None
        record = Record(self.view, self.wire_epoch, value, flags, self.pid)
        memory.torn = record
        if self.torn_next:
            self.torn_next = False
            self.die(signal.SIGKILL, 0.0)
            self.hung = True
            return
        if self.view < len(memory.records):
            memory.records[self.view] = record
        else:
            memory.records.append(record)
        memory.torn = None
        self.machine.tell("published", self, memory, record)
        self.view += 1
        self.ended = bool(flags & END)
        self.wake(memory)

    def at(self, role: Role, seq: int) -> Record | None:
        """A record of somebody's ring, if it is published."""
        records = self.peers[role].records
        return records[seq] if 0 <= seq < len(records) else None

    # ------------------------------------------------------------ what is done to it

    def crash(self, signum: int, *, handled: bool = True, sender: int = 0) -> None:
        """Die of a signal; `handled`: a handler says so first, and writes its stacks."""
        if not self.alive:
            return
        seq = self.outbox.word[2] if self.outbox is not None and self._own else self.view
        if not handled:
            self.die(signum, 1e-5)
            return
        if self._own and self.outbox is not None:
            self.outbox.crash = CrashRecord(
                signum,
                0,
                self.phase,
                seq,
                1,
                0,
                self.epoch,
                round(self.machine.now() * 1e9),
                sender,
            )
        self.send(frames.Crashing(signum, sender, seq))
        if self.serving and self.machine.random.random() < 0.5:
            # Another of its threads goes on for a while, and may write what it was to write.
            self.machine.loop.after(self.between((0.0, 0.02)), self.straggle)
        self.hung = True
        self.die(signum, self.between(STACKS_S))

    def straggle(self) -> None:
        """A thread that is not done yet goes on with what the process was at."""
        if self.writes and not self.stopped:
            self.hung, self.busy = False, False
            self.machine.tell("straggles", self)
            self.straggled()
            self.hung = True

    def straggled(self) -> None:
        """Write what it would have written next, if there is something."""

    def fail(self, error: ErrorInfo, phase: Phase, seq: int) -> None:
        """User code raised."""
        if self.alive:
            self.send(frames.Failed(phase, seq, error))
            self.hung = True
            self._leave(EXIT_FAILED << 8, self.between((1e-4, 5e-3)))


class Zygote(Process):
    """It has imported, and forks."""

    def __init__(self, machine: Machine, parent: int, things: list[Thing]) -> None:
        super().__init__(machine, parent, "zygote")
        self.held += things[1:]
        self.import_s, self.broken, self.refusals = (0.05, 0.8), "", 0
        self.dies_forking = ""
        self.fork: Callable[[str, int], Runner | Process] = self._nobody
        channel = things[0]
        self.held.append(channel)
        self.channel, channel.reader = channel, self  # type: ignore[assignment,attr-defined]
        self.arrived(channel)  # type: ignore[arg-type]

    @staticmethod
    def _nobody(name: str, epoch: int) -> Process:
        raise AssertionError(f"nobody knows what {name} is")

    def take(self, frame: AnyFrame, things: list[Thing]) -> None:
        match frame:
            case frames.Prepare():
                self.name = f"zygote-{frame.image}"
                self.after(self.between(self.import_s), self.prepared, frame.image)
            case frames.Fork():
                inherited = [thing.hold() for thing in things]
                self.held += inherited
                self.after(self.between((4e-4, 4e-3)), self.forks, frame, inherited)

    def prepared(self, image: str) -> None:
        if self.broken:
            error = ErrorInfo("ModuleNotFoundError", f"No module named {self.broken!r}")
            self.send(frames.ImportFailed(image, self.broken, error))
        else:
            self.send(frames.Prepared(image))

    def forks(self, frame: frames.Fork, things: list[Thing]) -> None:
        for thing in things:
            self.held.remove(thing)
        if self.dies_forking == "before":
            self.die(signal.SIGSEGV, 0.0)
            self.hung = True
            self.held += things
            return
        if self.refusals:
            self.refusals -= 1
            for thing in things:
                thing.drop()
            self.send(frames.ForkFailed(frame.name, frame.epoch, "out of processes"))
            return
        runner = self.fork(frame.name, frame.epoch)
        runner.held += things[1:]
        runner.talk_on(things[0])  # type: ignore[arg-type]
        runner.boot()  # type: ignore[union-attr]
        if self.dies_forking:
            self.die(signal.SIGSEGV, 0.0)
            self.hung = True
            return
        self.after(self.between((1e-5, 3e-3)), self.tell_forked, frame, runner.pid)

    def tell_forked(self, frame: frames.Fork, pid: int) -> None:
        self.send(frames.Forked(frame.name, frame.epoch, pid))
