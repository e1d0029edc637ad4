"""Lockstep: all lanes answer, late and dead ones are named, and the doorbell is only a hint."""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from dsec.errors import CorruptRingError, LocalError, PeerError, RingInterrupted, RingTimeout
from dsec.ipc import segment
from dsec.ipc.frames import Role
from dsec.ipc.group import GroupSegment, Lockstep, Piece
from dsec.ipc.ring import FLAG_BOUNDARY, FLAG_END, KIND_ACTION, KIND_OBS, Outbox, Reader
from tests.ipc.rings import LIMIT_S, Child, Wires, child, put

E, P = Role.ENV, Role.POLICY

# An observation record of a lane with n environments: n rewards, n flags, then 8 bytes of n * obs.
FIELDS = struct.Struct("<2d2B6x2q")
N = 2


def record(seq: int, actions: tuple[int, ...]) -> bytes:
    """What the env of the tests answers: rewards, flags and observations tell seq and action."""
    return FIELDS.pack(
        float(seq), float(-seq), seq % 2, seq % 3 == 0, 10 * actions[0], 10 * actions[1]
    )


class Vector:
    """N-environment lanes in child processes and the arrays that they are gathered into."""

    def __init__(self, lanes: int, *, doorbell: bool = True, spin: int = 100) -> None:
        self.wires = [Wires(roles=(E, P)) for _ in range(lanes)]
        self.bell = GroupSegment.create("test-group") if doorbell else None
        self.actions = np.zeros((lanes, N), np.int64)
        self.rewards = np.zeros((lanes, N))
        self.flags = np.zeros((lanes, N), np.uint8)
        self.obs = np.zeros((lanes, N), np.int64)
        self.spin = spin
        self.lockstep: Lockstep | None = None

    def lane(self, i: int) -> tuple[Outbox, Reader]:
        outbox = self.wires[i].writer(P, E)
        return outbox, self.wires[i].reader(outbox, E)

    def open(self) -> Lockstep:
        self.lockstep = Lockstep(
            [self.lane(i) for i in range(len(self.wires))],
            actions=[Piece(0, self.actions)],
            sinks=[Piece(0, self.rewards), Piece(16, self.flags), Piece(24, self.obs)],
            action_bytes=16,
            fixed_bytes=FIELDS.size,
            group=GroupSegment(self.bell.fd) if self.bell else None,
            spin=self.spin,
        )
        return self.lockstep

    def env(self, i: int) -> tuple[Outbox, Reader]:
        outbox = self.wires[i].writer(E, P)
        outbox.spin = self.spin
        if self.bell:
            outbox.join_group(GroupSegment(self.bell.fd))
        return outbox, self.wires[i].reader(outbox, P)

    def close(self) -> None:
        self.lockstep = None
        for wires in self.wires:
            wires.close()
        if self.bell:
            self.bell.close()


@contextmanager
def vector(
    lanes: int, serve: Callable[[Vector, int], object] | None, **options: object
) -> Iterator[tuple[Vector, Lockstep, list[Child]]]:
    made = Vector(lanes, **options)  # type: ignore[arg-type]
    with ExitStack() as stack:
        stack.callback(made.close)
        children: list[Child] = []
        if serve is not None:
            for i in range(lanes):
                children.append(stack.enter_context(child(lambda i=i: serve(made, i))))
        yield made, made.open(), children


def answer(outbox: Outbox, reader: Reader, seq: int, extra: bytes = b"", flags: int = 0) -> None:
    """Take action seq - 1 and publish observation seq."""
    actions: tuple[int, ...] = (0, 0)
    if seq:
        reader.next(LIMIT_S)
        assert (reader.seq, reader.kind, reader.nbytes) == (seq - 1, KIND_ACTION, 16)
        actions = struct.unpack_from("<2q", reader.peer.buffer, reader.offset)
        reader.release()
    put(outbox, seq, record(seq, actions) + extra, kind=KIND_OBS, flags=flags)


def echo(steps: int) -> Callable[[Vector, int], None]:
    def serve(made: Vector, i: int) -> None:
        outbox, reader = made.env(i)
        for seq in range(steps + 1):
            answer(outbox, reader, seq)

    return serve


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("doorbell", [True, False], ids=["doorbell", "no doorbell"])
@pytest.mark.parametrize("spin", [0, 1000])
def test_every_lane_gets_its_action_and_gives_its_observation(doorbell: bool, spin: int) -> None:
    steps, lanes = 200, 3
    with vector(lanes, echo(steps), doorbell=doorbell, spin=spin) as (made, lockstep, children):
        assert lockstep.gather(LIMIT_S) is False
        assert made.obs.tolist() == [[0, 0]] * lanes
        for step in range(1, steps + 1):
            made.actions[:] = np.arange(lanes * N).reshape(lanes, N) + step
            assert lockstep.step(LIMIT_S) is False
            assert (made.obs == 10 * made.actions).all()
            assert (made.rewards == [step, -step]).all()
            assert (made.flags == [step % 2, step % 3 == 0]).all()
        assert [lockstep.seq(i) for i in range(lanes)] == [steps] * lanes
        assert [each.wait() for each in children] == [0] * lanes


def test_extras_and_ends_are_told_and_stay_readable() -> None:
    def serve(made: Vector, i: int) -> None:
        outbox, reader = made.env(i)
        answer(outbox, reader, 0)
        answer(outbox, reader, 1, extra=b"final of lane 1" if i == 1 else b"")
        answer(outbox, reader, 2, flags=FLAG_BOUNDARY if i == 0 else FLAG_END)
        if i == 0:
            answer(outbox, reader, 3)
            assert reader.flags == FLAG_BOUNDARY, "the cut was copied onto the action"

    with vector(2, serve) as (made, lockstep, children):
        assert not lockstep.gather(LIMIT_S)
        assert lockstep.with_extras == []
        assert lockstep.step(LIMIT_S)
        assert (lockstep.with_extras, lockstep.ended) == ([1], [])
        assert bytes(lockstep.extras(1)) == b"final of lane 1"
        assert bytes(lockstep.extras(0)) == b""
        assert lockstep.step(LIMIT_S)
        assert (lockstep.with_extras, lockstep.ended) == ([], [1])
        made.actions[:] = 5
        rows = made.obs[1].tolist()
        assert lockstep.step(LIMIT_S) is False
        assert made.obs.tolist() == [[50, 50], rows], "an ended lane takes no further part"
        assert [each.wait() for each in children] == [0, 0]


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("doorbell", [True, False], ids=["doorbell", "no doorbell"])
def test_a_dead_lane_is_named_and_can_be_replaced(doorbell: bool) -> None:
    def serve(made: Vector, i: int) -> None:
        outbox, reader = made.env(i)
        answer(outbox, reader, 0)
        if i == 1:
            reader.next(LIMIT_S)
            os.kill(os.getpid(), signal.SIGKILL)
        for seq in (1, 2):
            answer(outbox, reader, seq)

    with vector(3, serve, doorbell=doorbell) as (made, lockstep, children):
        lockstep.gather(LIMIT_S)
        made.actions[:] = 7
        with pytest.raises(RingTimeout, match=r"lanes \[1\]"):
            lockstep.step(0.3)
        assert children[1].wait() == -signal.SIGKILL
        assert lockstep.missing == [1]
        assert made.obs[[0, 2]].tolist() == [[70, 70]] * 2, "the others were gathered"
        with pytest.raises(LocalError):
            lockstep.step(0.1)

        def succeed() -> None:
            outbox, reader = made.env(1)
            for seq in (1, 2):
                answer(outbox, reader, seq)

        with child(succeed) as successor:
            lockstep.gather(LIMIT_S)
            assert made.obs.tolist() == [[70, 70]] * 3
            made.actions[:] = 8
            lockstep.step(LIMIT_S)
            assert made.obs.tolist() == [[80, 80]] * 3
            assert successor.wait() == 0
        assert [children[i].wait() for i in (0, 2)] == [0, 0]


def test_a_dropped_lane_is_left_out_and_a_new_one_joins_with_new_segments() -> None:
    made = Vector(2)
    try:
        lockstep = made.open()
        envs = [made.env(0), made.env(1)]
        answer(*envs[0], 0)
        with pytest.raises(RingTimeout, match=r"\[1\]"):
            lockstep.gather(0.0)
        lockstep.drop(1)
        lockstep.gather(0.0)
        made.wires[1].close()
        made.wires[1] = Wires(roles=(E, P), start=2**32 - 64)
        envs[1] = made.env(1)
        lockstep.replace(1, *made.lane(1))
        answer(*envs[1], 0)
        lockstep.gather(0.0)
        with pytest.raises(RingTimeout, match=r"\[0, 1\]"):
            lockstep.step(0.0)
        for env in envs:
            answer(*env, 1)
        lockstep.gather(0.0)
        assert made.rewards.tolist() == [[1.0, -1.0]] * 2
    finally:
        made.close()


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("count", [0, 1, 2**32 - 1, 2**64 - 1])
def test_a_wrong_count_costs_time_and_nothing_else(count: int) -> None:
    """A runner may die before or after its increment, or write anything."""
    with vector(2, echo(20), spin=0) as (made, lockstep, children):
        assert made.bell is not None
        lockstep.gather(LIMIT_S)
        for step in range(1, 21):
            os.pwrite(made.bell.fd, count.to_bytes(8, "little"), 128)
            if step % 4 == 0:
                os.pwrite(made.bell.fd, b"\xff" * 8, 256)
            made.actions[:] = step
            lockstep.step(LIMIT_S)
            assert (made.obs == 10 * step).all()
        assert [each.wait() for each in children] == [0, 0]


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("seq", "kind", "nbytes", "text"),
    [
        (5, KIND_OBS, FIELDS.size, "sequence number 5 instead of 1"),
        (0, KIND_OBS, FIELDS.size, "sequence number 0 instead of 1"),
        (1, KIND_ACTION, FIELDS.size, "has kind 2"),
        (1, KIND_OBS, FIELDS.size - 1, "has 39 bytes; 40 make one"),
    ],
)
def test_a_lane_that_breaks_the_protocol_is_named(
    seq: int, kind: int, nbytes: int, text: str
) -> None:
    with vector(2, None) as (made, lockstep, _):
        envs = [made.env(0), made.env(1)]
        for env in envs:
            answer(*env, 0)
        lockstep.gather(0.0)
        put(envs[1][0], seq, bytes(nbytes), kind=kind)
        with pytest.raises(CorruptRingError, match=text):
            lockstep.step(0.0)
        lockstep.drop(1)
        answer(*envs[0], 1)
        lockstep.gather(0.0)
        assert made.rewards[0].tolist() == [1.0, -1.0]


def test_a_signal_cuts_a_step_and_gather_goes_on() -> None:
    old = signal.signal(signal.SIGALRM, lambda signo, frame: None)
    try:
        with vector(2, None, spin=0) as (made, lockstep, _):
            envs = [made.env(0), made.env(1)]
            for env in envs:
                answer(*env, 0)
            lockstep.gather(0.0)
            made.actions[:] = 3
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)  # the first may come before the sleep
            with pytest.raises(RingInterrupted):
                lockstep.step(LIMIT_S)
            signal.setitimer(signal.ITIMER_REAL, 0)
            thread = threading.Thread(target=lambda: [answer(*env, 1) for env in envs])
            thread.start()
            lockstep.gather(LIMIT_S)
            thread.join()
            assert made.obs.tolist() == [[30, 30]] * 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_what_does_not_fit_is_refused_at_once() -> None:
    made = Vector(2)
    try:
        lanes = [made.lane(i) for i in range(2)]
        good = Piece(0, made.actions)
        for actions, sinks in (
            ([Piece(1, made.actions)], []),
            ([Piece(-1, made.actions)], []),
            ([Piece(0, np.zeros(3, np.uint8))], []),
            ([Piece(0, np.zeros((2, 2), np.int64).T)], []),
            ([good], [Piece(40, made.flags)]),
        ):
            with pytest.raises(LocalError, match="doesn't divide"):
                Lockstep(lanes, actions=actions, sinks=sinks, action_bytes=16, fixed_bytes=40)
        with pytest.raises(LocalError, match="0 lanes"):
            Lockstep([], actions=[], sinks=[], action_bytes=0, fixed_bytes=0)
        frozen = np.zeros((2, 2))
        frozen.flags.writeable = False
        with pytest.raises(LocalError, match="read-only"):
            Lockstep(
                lanes, actions=[good], sinks=[Piece(0, frozen)], action_bytes=16, fixed_bytes=40
            )
        closed = Lockstep(lanes, actions=[good], sinks=[], action_bytes=16, fixed_bytes=40)
        lanes[0][0].close()
        with pytest.raises(LocalError, match="lane 0 of 2: used after close"):
            closed.gather(0.1)
    finally:
        made.close()


@pytest.mark.guarantee("G9")
def test_only_a_doorbell_is_taken_for_one() -> None:
    outbox = segment.create("not-a-bell", E, 0, epoch=1)
    ring = segment.create("not-a-bell", E, 4096, epoch=1)
    try:
        with pytest.raises(CorruptRingError, match="role 255 segment: its header claims role 0"):
            GroupSegment(outbox.fd)
        with pytest.raises(PeerError):
            GroupSegment(ring.fd)
    finally:
        outbox.close()
        ring.close()
