"""The part of a runner's life that env, policy and reward share: attach, construct, ready, serve,
drain.

A role brings a `Worker`; this file owns the order of the frames, the control channel while
records flow, and what phase and sequence number a failure is reported with. It knows no space
and no record's content. A runner waits for its kernel without a limit of its own, in slices: the
lifeline and the channel's end are the limits, since either ends the process.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from dsec.errors import (
    ChannelClosed,
    ChannelTimeout,
    FrameError,
    RingInterrupted,
    RingTimeout,
)
from dsec.ipc import crash
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    AnyFrame,
    Done,
    Drain,
    Frame,
    Go,
    Kept,
    Phase,
    Ready,
    Resume,
    Retired,
    Role,
    Start,
    Takeover,
    Wire,
)
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import FLAG_END, KIND_END, Outbox, Reader, watch_signal
from dsec.runners import pin, seeds
from dsec.runners.failure import EXIT_KERNEL_GONE, RunnerExit
from dsec.runners.wiring import Attachment, KnownSpaces, Wiring, connect

if TYPE_CHECKING:
    from dsec.failover.codecs.ambient import Ambient

CONTROL_SLICE_S = 60.0
RING_SLICE_S = 1.0
GET_ON_S = 0.2
LOOK_EVERY = 256
"""Records after which a loop looks at its control channel although no signal came: user code may
have taken the signal for itself. A power of two."""

FrameT = TypeVar("FrameT", bound=Frame)


class SteppedAside(Exception):
    """The runner leaves for a successor, which finds everything as it is after record `seq`."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(why)
        self.seq = seq


class DrainedEarly(Exception):
    """Drain came before Go: there is nothing to serve, only to close."""


class Worker(Protocol):
    """What a role does between Ready and Done."""

    learns: bool

    def serve(self, go: Go) -> int:
        """Produce and consume records to the stream's end; return its last sequence number."""

    def close(self) -> dict[str, float]:
        """Close the user's object and return its metrics."""


class Session:
    """One runner's side of its control channel, and the state that a failure is reported with.

    Attributes:
        phase, seq: what a Failed frame says; a role keeps them right where user code may raise.
        where: the config key to blame for what is raised now; empty once records flow.
        draining, fenced: Drain has come; it said that those whom this runner reads are gone.
        attention: the channel wants to be looked at, or has said that the stream is to end.
        pressed: the next record is to be looked at for another reason: a clone was killed.
        lifeline: the descriptor that ends this process with the supervisor.
        open: what its isolation asks for and this system can't enforce, a sentence each.
    """

    def __init__(self, channel: Channel, start: Start, lifeline: int = -1) -> None:
        self.channel = channel
        self.lifeline = lifeline
        self.start = start
        self.role = Role(start.role)
        self.pid = os.getpid()
        self.phase = Phase.IMPORT
        self.seq = 0
        self.where = ""
        self.draining = self.fenced = False
        self.attention = self.pressed = False
        self.open: tuple[str, ...] = ()
        self._seeded: frozenset[str] = frozenset()
        self._taking = False
        self._told_at = time.monotonic()

    @functools.cached_property
    def ambient(self) -> Ambient:
        """The process's own random state. The zygote imports this file, and no numpy for it."""
        from dsec.failover.codecs.ambient import Ambient

        return Ambient(self.start.role, seeds.SEEDED)

    def reseed(self) -> None:
        """Seed the global generators of libraries that have been loaded since the last call; in a
        deterministic run pin what they do."""
        if self.start.deterministic:
            pin.pin()
        self._seeded = seeds.reseed_globals(
            self.start.seed, self.role.name.lower(), done=self._seeded
        )

    def take(self, *, over: bool) -> None:
        """A takeover begins, or is `over` and TakenOver about to be said."""
        self._taking, self._told_at = not over, time.monotonic()

    def get_on(self) -> None:
        """Say now and then, while a takeover takes long, that it gets on."""
        if self._taking and (now := time.monotonic()) - self._told_at > GET_ON_S:
            self._told_at = now
            self.channel.try_send(Kept(0))

    def expect(self, kind: type[FrameT]) -> tuple[FrameT, list[int]]:
        """Wait for the next frame, which must be a `kind`.

        Raises:
            DrainedEarly: it is Drain.
            RunnerExit: the kernel's end of the channel is closed.
            FrameError: it is something else.
        """
        frame, fds = await_frame(self.channel)
        if isinstance(frame, kind):
            return frame, fds
        raise _out_of_place(frame, fds, kind.__name__)

    def expect_wiring(self) -> tuple[Wire | Takeover, list[int]]:
        """Wait for Wire, or for Takeover in its place; raises what `expect` does."""
        frame, fds = await_frame(self.channel)
        if isinstance(frame, Wire | Takeover):
            return frame, fds
        raise _out_of_place(frame, fds, "Wire")

    def connect(self, wire: Wire, fds: Sequence[int]) -> Wiring:
        """Attach the segments; a crash is recorded in my outbox from now on."""
        wiring = connect(self.role, wire, fds)
        crash.attach(wiring.outbox)
        return wiring

    def attach(
        self, takeover: Takeover, fds: Sequence[int], known: KnownSpaces | None = None
    ) -> Attachment:
        """Attach the segments to look at them: my predecessor may be writing yet. `known`: as for
        Attachment.

        Raises:
            FrameError: a descriptor is missing.
            PeerError, MachineError: as for Attachment.
        """
        return Attachment(self.role, takeover.wire, fds, known)

    def resume(self, attachment: Attachment, *, policy_learns: bool) -> tuple[Wiring, int]:
        """Wait until my predecessor is fenced, then open its outbox as mine.

        A Drain that comes meanwhile is obeyed afterwards: the stream wants its end from me.

        Returns:
            The wiring, and a descriptor of what the predecessor kept last, if that is a new one;
            else -1.

        Raises:
            RunnerExit: the kernel's end of the channel is closed.
            FrameError: something else than Resume came.
        """
        kept = self._await_resume()
        self.where = ""
        wiring = attachment.open()
        crash.attach(wiring.outbox)
        wiring.outbox.enter(Phase.IDLE, self.seq)
        wiring.follow(policy_learns=policy_learns)
        self.arm()
        return wiring, kept

    def _await_resume(self) -> int:
        while True:
            frame, fds = await_frame(self.channel)
            if isinstance(frame, Drain):
                self.draining, self.fenced = True, frame.fenced
            elif isinstance(frame, Resume) and len(fds) == (frame.kept >= 0):
                return fds[0] if fds else -1
            else:
                raise _out_of_place(frame, fds, "Resume")

    def arm(self) -> None:
        """From now on a frame interrupts waits on rings."""
        signal.signal(signal.SIGIO, self._on_signal)
        self.channel.arm_sigio(signal.SIGIO)
        watch_signal(signal.SIGIO)
        self.attention = True  # what came before is not announced

    def _on_signal(self, _signum: int, _frame: object) -> None:
        self.attention = True

    def look(self) -> None:
        """Read what is on the control channel, without waiting.

        Raises:
            RunnerExit: the kernel's end of the channel is closed.
            FrameError: a frame that has no place here.
        """
        self.attention = False
        while self.channel.pending():
            drain, _ = self.expect(Drain)
            self.draining, self.fenced = True, drain.fenced
        # Looked at while it waited, perhaps: the loop must hear of it at its next record, too.
        self.attention = self.draining or self.pressed

    def next(self, reader: Reader, then: Phase) -> None:
        """`reader.next` without a limit, looking at the control channel in between."""
        while True:
            try:
                reader.next(RING_SLICE_S, then)
                return
            except (RingTimeout, RingInterrupted):
                self.look()

    def claim(self, outbox: Outbox, nbytes: int) -> int:
        """`outbox.claim` without a limit, looking at the control channel in between."""
        while True:
            try:
                return outbox.claim(nbytes, RING_SLICE_S)
            except (RingTimeout, RingInterrupted):
                self.look()

    def commit(
        self, spill: Spill, seq: int, kind: int, flags: int, fixed: int, rest: bytes
    ) -> None:
        """`spill.commit` without a limit, looking at the control channel in between."""
        while True:
            try:
                spill.commit(seq, kind, flags, fixed, rest, RING_SLICE_S)
                return
            except (RingTimeout, RingInterrupted):
                self.look()

    def write_end(self, outbox: Outbox, seq: int) -> None:
        """Write the empty record that ends a policy's or a reward's stream."""
        self.claim(outbox, 0)
        outbox.commit(seq, KIND_END, FLAG_END, 0)


def _out_of_place(frame: AnyFrame, fds: Sequence[int], wanted: str) -> Exception:
    """What to raise for a frame that is not the one that was due; its descriptors are closed."""
    for fd in fds:
        os.close(fd)
    if isinstance(frame, Drain):
        return DrainedEarly()
    return FrameError(f"{type(frame).__name__} came where {wanted} was due")


def await_frame(channel: Channel) -> tuple[AnyFrame, list[int]]:
    """The next frame, whenever it comes.

    Raises:
        RunnerExit: the kernel's end of the channel is closed.
        FrameError: a datagram that is no frame.
    """
    while True:
        try:
            return channel.recv(CONTROL_SLICE_S)
        except ChannelTimeout:
            continue
        except ChannelClosed:
            raise RunnerExit(EXIT_KERNEL_GONE) from None


def live(session: Session, wiring: Wiring, worker: Worker) -> None:
    """Everything from Ready to Done."""
    session.where = ""
    session.phase = Phase.IDLE
    wiring.outbox.enter(Phase.IDLE, 0)
    pinned = pin.in_force() if session.start.deterministic else {}
    session.channel.send(Ready(learns=worker.learns, pinned=pinned, open=session.open))
    try:
        go, _ = session.expect(Go)
    except DrainedEarly:
        _end(session, wiring, worker, 0)
    else:
        wiring.follow(policy_learns=go.policy_learns)
        session.arm()
        serve_to_end(session, wiring, worker, go)


def serve_to_end(session: Session, wiring: Wiring, worker: Worker, go: Go) -> None:
    """From Go, or Resume, to Done, or Retired."""
    try:
        last = worker.serve(go)
    except SteppedAside as left:
        session.channel.send(Retired(left.seq, str(left)))
        _close(session, wiring, worker, left.seq)
        return
    except BaseException:
        wiring.outbox.enter(Phase.IDLE, session.seq)  # to describe it may take a while
        raise
    _end(session, wiring, worker, last)


def _end(session: Session, wiring: Wiring, worker: Worker, last: int) -> None:
    metrics = _close(session, wiring, worker, last)
    session.channel.send(Done(role=session.role, seq=last, metrics=metrics))


def _close(session: Session, wiring: Wiring, worker: Worker, last: int) -> dict[str, float]:
    session.phase, session.seq = Phase.CLOSE, last
    wiring.outbox.enter(Phase.CLOSE, last)
    metrics = worker.close()
    wiring.outbox.enter(Phase.IDLE, last)
    return metrics
