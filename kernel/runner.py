"""One runner: the shell around the runner table of machine.py, for one process.

Owns its deadlines and the cause of its death. What any of it means is the affair of its owner, an
agent or a server, whom it tells: that it waits for Wire (`holding`), for Go or Resume (`ready`),
that it won't go on (`lost`), that it died or never was (`faulted`), that no process of it is left
(`left`, said last), that it has been idle for long (`idle`), and of frames that the table doesn't
know (`frame`; False: a violation).
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsec.errors import PeerError
from dsec.failover.detect import Idle, Overdue, Word
from dsec.failover.diagnose import Evidence, Verdict, diagnose, hung
from dsec.ipc import async_channel, frames, segment
from dsec.ipc.frames import AnyFrame, Phase, Role
from dsec.ipc.logs import file_name
from dsec.ipc.proc import Exit
from dsec.kernel.machine import RUNNER, RunnerEvent, RunnerState
from dsec.report import Death

if TYPE_CHECKING:
    from dsec.kernel.agent import Agent
    from dsec.kernel.spawn import Server
    from dsec.kernel.supervisor import Supervisor

CONSTRUCT_DEFAULT_S = 60.0
CLOSE_DEFAULT_S = 5.0
REPLAY_DEFAULT_S = 10.0
EXIT_GRACE_S = 2.0  # from Failed, or from the end of the channel, to the exit
DUMP_S = 0.2  # what a hung runner has to write its Python stack
CRASH_GRACE_S = 0.05  # what one that crashes has to write its stacks, before it is killed
LAST_FRAMES_S = 0.1  # what a dead runner's channel has to end, should somebody else hold it open

_EVENTS: Mapping[type, RunnerEvent] = {
    frames.Hello: RunnerEvent.HELLO,
    frames.Constructed: RunnerEvent.CONSTRUCTED,
    frames.Ready: RunnerEvent.READY,
    frames.Prepared: RunnerEvent.READY,
    frames.Done: RunnerEvent.DONE,
    frames.RecorderDone: RunnerEvent.DONE,
    frames.PoolDone: RunnerEvent.DONE,
    frames.TakenOver: RunnerEvent.TAKEN_OVER,
    frames.Crashing: RunnerEvent.CRASHING,
    frames.Retired: RunnerEvent.RETIRED,
    frames.Failed: RunnerEvent.FAILED,
    frames.ImportFailed: RunnerEvent.VIOLATION,  # a zygote that fails stays, but is of no use
}
# What each kind of process was started with; nobody says what only others may.
_SAID_BY: Mapping[type, tuple[type, ...]] = {
    frames.Ready: (frames.Start, frames.RecorderStart, frames.PoolStart),
    frames.Prepared: (frames.Prepare,),
    frames.Done: (frames.Start,),
    frames.RecorderDone: (frames.RecorderStart,),
    frames.PoolDone: (frames.PoolStart,),
}
_BAD = (RunnerEvent.FAILED, RunnerEvent.VIOLATION)
# Where it is in no user code that we know of; its progress word may know better.
_WAITING = (RunnerState.HOLDING, RunnerState.READY, RunnerState.TAKEN, RunnerState.RUNNING)


class Runner:
    """One incarnation of one role of `agent`, or of a server, whose name then stands there.

    `said` holds the last frame of each kind that it sent, `outbox` its own segment, lent by the
    owner from Wire on; `building` is what it is in until it is ready.
    """

    def __init__(
        self,
        run: Supervisor,
        owner: Agent | Server,
        agent: str,
        role: Role,
        start: AnyFrame,
        limits: Mapping[Phase, float],
        epoch: int = 0,
        building: Phase = Phase.CONSTRUCT,
    ) -> None:
        self.agent, self.role, self.epoch, self.limits = agent, role, epoch, limits
        suffix = f".{role.name.lower()}" if role < Role.RECORDER else ""
        self.name, self._stem = f"{agent}{suffix}", f"{file_name(agent)}{suffix}"
        self.state = RunnerState.FORKING
        self.pid = 0  # 0 while it doesn't exist
        self.said: dict[type, Any] = {}
        self.outbox: segment.Segment | None = None
        self.channel: async_channel.AsyncChannel | None = None
        self._run, self._owner, self._start, self._building = run, owner, start, building
        self._order: tuple[AnyFrame | None, Sequence[int]] = (None, ())
        self._exit: Exit | None = None
        self._word: segment.ProgressWord | None = None
        self._verdict: Verdict | None = None  # where we know better
        self._phase = building
        self._stderr_from = 0
        self._wired_at = 0.0  # what its outbox says from before is another incarnation's
        self._traces: tuple[float, Word | None, segment.CrashRecord | None] | None = None

    def apply(self, event: RunnerEvent) -> None:
        """Let `event` happen.

        One of three things follows, as the table says: nothing; a new state and its actions, done
        in order before this returns; the state GONE, after which nothing follows any more.
        """
        if self.state is RunnerState.CLOSING:
            self._phase = Phase.CLOSE
        elif self.state not in (RunnerState.FAULTY, RunnerState.FENCED):
            self._phase = Phase.IDLE if self.state in _WAITING else self._building
        self.state, actions = RUNNER[self.state][event]
        # One that fails (no descriptor is left, say) keeps none of the others from happening.
        act = self._run.guarded(self._act)
        for action in actions:
            act(action)

    def order(self, event: RunnerEvent, frame: AnyFrame | None, fds: Sequence[int] = ()) -> None:
        """Let WIRE, GO or DRAIN happen in a state that has it; `frame` (None: nothing to say)
        goes with it, `fds` are closed."""
        self._order = (frame, fds)
        self.apply(event)
        self._run.system.close_all(self._order[1])  # of one that takes no such order any more
        self._order = (None, ())

    def send(self, frame: AnyFrame | None, fds: Sequence[int] = ()) -> None:
        """Send a frame, close `fds`. A closed channel is no error: the process's end follows."""
        if self.channel is not None and frame is not None:
            self.channel.send(frame, fds)
        self._run.system.close_all(fds)

    def descriptors(self) -> list[int]:
        """Open what it inherits, anew for each try: control socket, lifeline, stdout, stderr.

        Raises:
            MachineError, OSError: no descriptors are left, or the disk is full.
        """
        if self.channel is not None:
            self.channel.close()
        run, (ours, theirs) = self._run, self._run.system.pair()
        self._connect(ours)
        try:
            fds, self._stderr_from = run.system.inherited(
                theirs, run.lifeline, run.logs, self._stem
            )
        except OSError:
            self.release()
            raise
        return fds

    def _connect(self, sock: socket.socket) -> None:
        on_frame, on_close = self._run.guarded(self._on_frame), self._run.guarded(self._on_close)
        self.channel = async_channel.AsyncChannel(sock, on_frame, on_close, self._run.loop)

    def awaken(self, pid: int, sock: socket.socket) -> None:
        """It exists, constructed: a clone that an incarnation made of itself. `inherit` follows."""
        self.pid, self.state = pid, RunnerState.HOLDING
        self._connect(sock)

    def inherit(self) -> None:
        """The parent of a clone is reaped, so the clone is our child now, if it lives."""
        if not self._run.reaper.watches(self.pid):
            self._watch()

    def extend(self) -> None:
        """It restores and replays, and gets on. Who acts constructs first, and shows no step."""
        if self.state is RunnerState.TAKING:
            limit_s = self.limits.get(Phase.REPLAY, REPLAY_DEFAULT_S)
            if self.role is not Role.ENV:
                limit_s += self.limits.get(Phase.CONSTRUCT, CONSTRUCT_DEFAULT_S)
            self._run.arm(self, Phase.REPLAY, limit_s)

    def hang(self, cause: str, kind: str = "hang") -> None:
        """Somebody found that it hangs, or lives against the rules: end it."""
        self._overdue(Verdict(kind, f"{cause}, killed"))

    def blamed(self, cause: str, kind: str) -> Death:
        """It is gone, and only now comes out what it did: its death."""
        self._verdict = Verdict(kind, cause)
        return self._death()

    def forked(self, pid: int, message: str) -> None:
        """The zygote's answer: its pid, or 0 and why there is none. Its own Hello may be faster."""
        if self.pid or self.state is RunnerState.GONE:
            return
        if pid:
            self.pid = pid
            self.apply(RunnerEvent.FORKED)
        else:
            self._verdict = Verdict("spawn", message)
            self.apply(RunnerEvent.FORK_FAILED)

    def word(self) -> Word:
        """Its progress word now; one that it may not write is its end."""
        assert self._word is not None, "only a runner with a progress word is followed"
        try:
            phase, since_ns, seq = self._word.read()
        except PeerError as error:
            self._violate(str(error))
            return Word(Phase.IDLE, self._run.now(), -1)
        return Word(phase, since_ns / 1e9, seq)

    @property
    def crashes(self) -> bool:
        """It dies of a signal, as its handler said, and of nothing that we found."""
        return frames.Crashing in self.said and self._verdict is None

    def release(self) -> None:
        """No more frames, no deadline, no descriptor; a second time does nothing."""
        self._run.deadlines.drop(self)
        if self.channel is not None:
            self.channel.close()
        word, self._word = self._word, None
        if word is not None:
            word.close()

    # ------------------------------------------------------------ what the world says

    def late(self, verdict: Overdue | Idle) -> None:
        if isinstance(verdict, Idle):
            self._owner.idle(self, verdict)
        elif self.state is RunnerState.FAULTY:
            self.apply(RunnerEvent.OVERDUE)  # the cause is known
        elif self.state is not RunnerState.CLOSING and self.channel and self.channel.closed:
            self.hang("closed its control channel and lived on", "protocol")
        else:
            self._overdue(hung(*verdict))

    def _overdue(self, verdict: Verdict) -> None:
        self._verdict = self._verdict or verdict
        self.apply(RunnerEvent.OVERDUE)

    def _on_frame(self, frame: AnyFrame, fds: list[int]) -> None:
        try:
            self._take_frame(frame, fds)
        finally:
            self._run.system.close_all(fds)

    def _take_frame(self, frame: AnyFrame, fds: Sequence[int]) -> None:
        if isinstance(frame, frames.Hello):
            self.forked(frame.pid, "")
        event = _EVENTS.get(type(frame))
        if event is RunnerEvent.HELLO and self.role is Role.ENV:
            event = RunnerEvent.HELLO_ENV
        if event is None:
            if not self._owner.frame(self, frame, fds):
                self._violate(f"sent {type(frame).__name__}")
        elif not isinstance(self._start, _SAID_BY.get(type(frame), frames.Frame)) or (
            event not in _BAD and "kill" in RUNNER[self.state][event][1]
        ):
            self._violate(f"sent {type(frame).__name__} out of turn")
        else:
            self.said[type(frame)] = frame
            self.apply(event)

    def _violate(self, what: str) -> None:
        self._verdict = self._verdict or Verdict("protocol", f"broke the protocol: {what}, killed")
        self.apply(RunnerEvent.VIOLATION)

    def _on_close(self, reason: PeerError | None) -> None:
        if self._exit is not None:
            self._ended()
        elif reason is not None:
            self._violate(str(reason))
        else:
            self.apply(RunnerEvent.HANGUP)
            self._run.later(LAST_FRAMES_S, self._look_for_clone)

    def _look_for_clone(self) -> None:
        """Nobody tells us of the end of a clone that is its runner's child yet, but its channel."""
        if self.state is RunnerState.HOLDING and not self._run.reaper.watches(self.pid):
            self.apply(RunnerEvent.EXIT_BAD)

    def _on_exit(self, end: Exit) -> None:
        self._exit = end
        if self.channel is None or self.channel.closed:
            self._ended()
        else:
            # Its last frames may still be in the channel; the end of the channel comes after them.
            self._run.later(LAST_FRAMES_S, self._ended)

    def _ended(self) -> None:
        end = self._exit
        if end is not None:
            bad = RunnerEvent.EXIT_KILLED if end.signal == signal.SIGKILL else RunnerEvent.EXIT_BAD
            self.apply(RunnerEvent.EXIT_OK if (end.signal, end.code) == (0, 0) else bad)

    # ------------------------------------------------------------ the table's actions

    def _act(self, action: str) -> None:
        match action:
            case "watch":
                self._watch()
            case "start":
                self.send(self._start)
            case "hold":
                self._run.deadlines.drop(self)  # what it waits for has its own
                self._owner.holding(self)
            case "wire" | "takeover":
                self._arm(self._building, CONSTRUCT_DEFAULT_S)
                if action == "takeover":
                    self._building, self._wired_at = Phase.REPLAY, self._run.now()
                    self.extend()
                self._obey()
                if self.outbox is not None:
                    self._word = self._run.system.progress_word(self.outbox.fd)
            case "ready" | "taken":
                self._run.deadlines.drop(self)
                self._owner.ready(self)
            case "go" | "resume" | "drain":
                self._obey()
                closed = self.channel is not None and self.channel.closed
                if action != "drain" and self._word is not None and not closed:  # else it must exit
                    self._run.deadlines.follow(self, self.limits, self._run.now())
            case "expect_close":
                self._arm(Phase.CLOSE, CLOSE_DEFAULT_S)
            case "expect_exit":
                self._run.arm(self, self._phase, EXIT_GRACE_S)
            case "expect_crash":
                self._run.later(CRASH_GRACE_S, self.apply, RunnerEvent.OVERDUE)
            case "dump":
                # faulthandler writes the stack even while the interpreter's lock is held. One
                # that is stopped can't; one that hasn't armed it dies of the signal, as well.
                self._run.reaper.kill(self.pid, signal.SIGUSR2)
                self._run.later(DUMP_S, self.apply, RunnerEvent.OVERDUE)
            case "kill":
                self._run.reaper.kill(self.pid)
            case "lost":
                self._owner.lost(self, self._death())
            case "fault":
                tail = self._run.logs.tail(self._stem, self._stderr_from)
                self._owner.faulted(self, self._death(tail))
            case "leave":
                self.release()
                self._owner.left(self)
            case _:
                raise AssertionError(f"no table has {action}")

    def _obey(self) -> None:
        (frame, fds), self._order = self._order, (None, ())
        self.send(frame, fds)

    def _arm(self, phase: Phase, default_s: float) -> None:
        self._run.arm(self, phase, self.limits.get(phase, default_s))

    def _watch(self) -> None:
        try:
            self._run.reaper.watch(self.pid, self._run.guarded(self._on_exit))
            self._arm(self._building, CONSTRUCT_DEFAULT_S)
        except OSError as error:
            self._verdict = Verdict("spawn", f"could not be watched: {error}")
            self._exit = Exit(0, 255)
            self._ended()

    def _death(self, tail: str = "") -> Death:
        end = self._exit or Exit(0, -1)
        if self._traces is None or not self.crashes:
            # Of one that crashes the first look counts: its successor may write there by the next.
            word = self.word() if self._word is not None else None
            own = self.outbox
            crash = self._run.system.read_crash(own.fd) if own is not None and own.fd >= 0 else None
            self._traces = self._wired_at, word, crash
        who = (self.agent, self.role, self.epoch, self.pid, end.signal, end.code, self._phase)
        limits = self._start.limits if isinstance(self._start, frames.Start) else {}
        memory = (end.rss_peak_bytes, limits.get("memory_mb", 0) << 20)
        return diagnose(Evidence(*who, self._verdict, *self._traces, self.said, *memory, tail))
