"""A simulated process: it gets frames and signals, does things later, and dies in stages.

Owns life and death as the system has them: running, stopped, on its way out (its threads one after
the other), a zombie, reaped. What it does beside is its subclass's; what it does later is not done
when it is dead by then, and done when it is continued where it was stopped.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsec.errors import FrameError
from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame
from tests.simulation.things import End, Pid, Thing

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

SUPERVISOR = 1000
LATENCY_S = 20e-6
KILLED_S = (50e-6, 400e-6)  # from SIGKILL to where no instruction follows
SECOND_S = (1e-6, 3e-3)  # by how much another thread may be later there than the first
TORN_S = (100e-6, 6e-3)  # to tear an address space down
CLOSED_S = (1e-6, 2e-4)  # from the end of its descriptors to where it can be reaped


class Process:
    """One process.

    Attributes:
        dead: a zombie, or reaped.
        exiting, threads_exiting: its first thread, all others, execute nothing any more.
        writes: it may still write to shared memory: some thread runs.
        hung, stopped: it does nothing, though nothing is wrong with the process.
        faults: what was done to it.
    """

    kind = "process"

    def __init__(
        self, machine: Machine, parent: int, name: str, group: int = 0, epoch: int = 0
    ) -> None:
        self.machine, self.parent, self.name, self.epoch = machine, parent, name, epoch
        self.pid = machine.new_pid()
        self.group = group or self.pid
        self.dead = self.exiting = self.threads_exiting = self.stopped = self.hung = False
        self.status, self.cpu_ticks, self.marks = 0, 0, 0
        self.held: list[Thing] = []
        self.channel: End | None = None
        self.faults: list[str] = []
        self._late: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._ending = False
        machine.processes[self.pid] = self
        machine.tell("born", self)

    def __str__(self) -> str:
        return f"{self.name}#{self.epoch}({self.pid})"

    @staticmethod
    def no_such(parent: int, things: list[Thing]) -> Process:
        """What a machine makes of an exec while nobody has said what there is to execute."""
        raise NotImplementedError

    @property
    def letter(self) -> str:
        return "Z" if self.dead else "T" if self.stopped else "S"

    @property
    def writes(self) -> bool:
        """Some thread of it runs, or will when it is continued."""
        return not self.dead and not (self.exiting and self.threads_exiting)

    @property
    def alive(self) -> bool:
        """Nothing has begun that ends it."""
        return not self.dead and not self._ending

    # ------------------------------------------------------------ doing

    def after(self, delay_s: float, call: Callable[..., Any], *args: Any) -> None:
        """Do something later, if it is still able to."""
        self.machine.loop.after(delay_s, self._do, call, args)

    def _do(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.dead or self.exiting or self.hung:
            return
        if self.stopped:
            self._late.append((call, args))
            return
        self.cpu_ticks += 1
        call(*args)

    def between(self, span: tuple[float, float]) -> float:
        """A time between these."""
        return span[0] + (span[1] - span[0]) * self.machine.random.random()

    # ------------------------------------------------------------ talking

    def talk_on(self, end: End) -> None:
        """This end of a channel is its own from now on."""
        self.channel, end.reader = end, self
        self.held.append(end)
        self.arrived(end)

    def send(self, frame: AnyFrame, *things: Thing) -> None:
        """To the supervisor. Each thing goes with a reference of its own."""
        self.machine.tell("sent", self, frame)
        if self.channel is not None:
            self.channel.put(frames.encode(frame), [thing.hold() for thing in things])

    def send_bytes(self, data: bytes) -> None:
        """Nonsense, say."""
        if self.channel is not None:
            self.channel.put(data, [])

    def hang_up(self) -> None:
        """Close the channel."""
        end, self.channel = self.channel, None
        if end is not None:
            end.reader = None
            self.held.remove(end)
            end.drop()

    def arrived(self, end: End) -> None:
        """Something is in the channel, or it ended."""
        self.after(LATENCY_S, self._read, end)

    def _read(self, end: End) -> None:
        while end.inbox and end is self.channel and not (self.hung or self.stopped):
            data, things = end.inbox.popleft()
            try:
                frame = frames.decode(data)
            except FrameError as error:
                raise AssertionError(f"the supervisor sent nonsense: {error}") from None
            self.machine.tell("got", self, frame, things)
            try:
                self.take(frame, things)
            finally:
                for thing in things:
                    thing.drop()
            if self.dead or self.exiting:
                return
        if end.peer is None and end is self.channel and not end.inbox:
            self.hangup()

    def take(self, frame: AnyFrame, things: list[Thing]) -> None:
        """A frame came. Things are the caller's: hold what is to stay."""

    def hangup(self) -> None:
        """The supervisor's end is gone."""
        self.exit(71)

    # ------------------------------------------------------------ ending

    def signal(self, signum: int) -> None:
        """A signal comes."""
        if self.dead:
            return
        self.machine.tell("signal", self, signal.Signals(signum).name)
        if signum == signal.SIGSTOP:
            self.stopped = True
        elif signum == signal.SIGCONT:
            self.stopped = False
            late, self._late = self._late, []
            for call, args in late:
                self.after(0.0, call, *args)
        elif signum == signal.SIGKILL:
            if not self.exiting:
                self.status = signal.SIGKILL
            self._leave(signal.SIGKILL, self.between(KILLED_S))

    def exit(self, code: int) -> None:
        """Leave with this code."""
        if not self._ending and not self.dead:
            self._leave(code << 8, 10e-6)

    def die(self, signum: int, delay_s: float) -> None:
        """Die of a signal in a while."""
        if not self._ending and not self.dead:
            self._leave(signum, delay_s)

    def _leave(self, status: int, delay_s: float) -> None:
        self._ending = True
        if self.status == 0:
            self.status = status
        self.machine.loop.after(delay_s, self._out)
        self.machine.loop.after(delay_s + self.between(SECOND_S), self._all_out)

    def _out(self) -> None:
        if not self.exiting:
            self.exiting = True
            self.machine.tell("exiting", self)

    def _all_out(self) -> None:
        if not self.threads_exiting:
            self.exiting = self.threads_exiting = True
            self.machine.tell("silent", self)
            self.machine.loop.after(self.between(TORN_S), self._gone)

    def _gone(self) -> None:
        held, self.held, self.channel = self.held, [], None
        for thing in held:
            if isinstance(thing, End) and thing.reader is self:
                thing.reader = None
            thing.drop()
        self.machine.loop.after(self.between(CLOSED_S), self._zombie)

    def _zombie(self) -> None:
        machine, self.dead = self.machine, True
        machine.tell("died", self)
        for child in machine.children(self.pid):
            child.parent = SUPERVISOR
        parent = machine.processes.get(self.parent)
        if parent is not None and not parent.dead:
            del machine.processes[self.pid]  # a runner waits for its own children
            parent.bereaved(self)
        for fd, thing in tuple(machine.open_fds.items()):
            if isinstance(thing, Pid) and thing.process is self:
                machine.loop.look(fd)

    def bereaved(self, child: Process) -> None:
        """A child of it is dead, and reaped by it."""
