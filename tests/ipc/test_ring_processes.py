"""One ring between processes that sleep, race and are killed."""

from __future__ import annotations

import random
import signal
import time

import pytest

from dsec.ipc._ring import lib
from dsec.ipc.frames import Role
from dsec.ipc.ring import KIND_ACTION
from tests.ipc.rings import LIMIT_S, Wires, child, pattern, payload_of, put

E, P, R, J = Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER


@pytest.mark.guarantee("G2")
@pytest.mark.slow
def test_a_writer_killed_at_random_moments_leaves_a_gapless_prefix() -> None:
    rng = random.Random(1)
    lives = 60
    with Wires(start=2**64 - 4096) as wires:
        reader = wires.reader(P, E)
        seen = 0

        def take() -> None:
            nonlocal seen
            while reader.try_next():
                assert reader.seq == seen
                assert payload_of(reader) == pattern(seen, seen * 37 % 1500)
                seen += 1
                reader.release()

        def write() -> None:
            outbox = wires.writer(E, P)
            for seq in range(seen, seen + 10**9):
                put(outbox, seq, pattern(seq, seq * 37 % 1500))

        killed = 0
        for _ in range(lives):
            with child(write) as forked:
                until = seen + rng.randrange(1, 40)
                deadline = time.monotonic() + LIMIT_S
                while seen < until:
                    assert time.monotonic() < deadline
                    take()
                for _ in range(rng.randrange(3000)):
                    pass
                forked.kill()
                killed += forked.wait() == -signal.SIGKILL
            take()
        assert killed == lives, "every life was ended, none ended by itself"
        assert seen >= lives


@pytest.mark.guarantee("G2")
@pytest.mark.slow
def test_two_sleepers_never_miss_each_other() -> None:
    """Ping-pong without polling. The slice is an hour, so a lost wake-up is a time-out."""
    rounds = 8000
    with Wires(roles=(E, P)) as wires:

        def play(mine: Role, other: Role, serve: bool) -> int:
            lib.dsec_slice_ns = 3600 * 10**9
            outbox = wires.writer(mine, other)
            outbox.spin = 0
            reader = wires.reader(outbox, other)
            for seq in range(rounds):
                if serve:
                    put(outbox, seq, b"ping")
                reader.next(5.0)
                assert reader.seq == seq
                reader.release()
                if not serve:
                    put(outbox, seq, b"pong")
            return int(outbox.c.sleeps)

        slice_ns = lib.dsec_slice_ns
        try:
            with child(lambda: play(P, E, False)) as forked:
                assert play(E, P, True) > 100, "they did sleep"
                assert forked.wait() == 0
        finally:
            lib.dsec_slice_ns = slice_ns


@pytest.mark.guarantee("G2")
@pytest.mark.slow
def test_a_full_ring_between_processes_loses_nothing() -> None:
    """A fast writer and three readers of different speed, on a ring of two large records."""
    count = 1500
    with Wires() as wires:

        def read(role: Role, spin: int) -> None:
            reader = wires.reader(role, E)
            reader.mine.spin = spin
            for seq in range(count):
                reader.next(LIMIT_S)
                assert reader.seq == seq
                assert payload_of(reader) == pattern(seq, seq * 61 % 2017)
                reader.release()

        with (
            child(lambda: read(P, 0)) as p,
            child(lambda: read(R, 1000)) as r,
            child(lambda: read(J, 5)) as j,
        ):
            outbox = wires.writer(E, P, R, J)
            for seq in range(count):
                put(outbox, seq, pattern(seq, seq * 61 % 2017), kind=KIND_ACTION)
            assert [each.wait() for each in (p, r, j)] == [0, 0, 0]
