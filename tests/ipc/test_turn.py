"""A turn does what commit, release, claim and next do, and says what it could not do."""

from __future__ import annotations

import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import CorruptRingError, LocalError, RingInterrupted, RingTimeout
from dsec.ipc.frames import Phase, Role
from dsec.ipc.ring import (
    FLAG_BOUNDARY,
    FLAG_END,
    KIND_ACTION,
    KIND_OBS,
    Outbox,
    Reader,
)
from dsec.ipc.segment import ProgressWord
from dsec.ipc.turn import FLAGS_SHIFT, ROW_BITS, ROW_MASK, Turn
from tests.ipc.rings import LIMIT_S, STARTS, Wires, child, payload_of, put

E, P = Role.ENV, Role.POLICY


def env_side(wires: Wires, *, limit_s: float = 0.0) -> tuple[Outbox, Reader, Turn]:
    """An env's outbox, its reader of the policy's ring, and its turns: 24 bytes for 8."""
    outbox = wires.writer(E, P)
    reader = wires.reader(outbox, P)
    turn = Turn(
        reader,
        kind=KIND_OBS,
        nbytes=24,
        due_kind=KIND_ACTION,
        due_bytes=8,
        exact=True,
        ahead=0,
        phase=Phase.STEP,
        timeout_s=limit_s,
    )
    return outbox, reader, turn


@pytest.mark.guarantee("G2")
@given(
    start=st.sampled_from(STARTS),
    steps=st.lists(st.tuples(st.booleans(), st.booleans(), st.binary(min_size=24, max_size=24))),
)
def test_turns_and_single_calls_make_the_same_stream(
    start: int, steps: list[tuple[bool, bool, bytes]]
) -> None:
    with Wires(4096, start=start) as wires:
        outbox, reader, turn = env_side(wires)
        policy = wires.writer(P, E)
        seen = wires.reader(policy, E)
        offset = outbox.claim(24, 0.0)
        for seq, (whole, marked, data) in enumerate(steps):
            outbox.buffer[offset : offset + 24] = data
            action, flags = seq.to_bytes(8, "little"), FLAG_BOUNDARY * marked
            put(policy, seq, action, kind=KIND_ACTION, flags=flags)
            if whole:
                got = turn.take(seq, flags)
                assert got >> FLAGS_SHIFT == flags
                offset, at = (row * 64 + 32 for row in (got & ROW_MASK, got >> ROW_BITS & ROW_MASK))
                reader.look()
                assert reader.offset == at
            else:
                outbox.commit(seq, KIND_OBS, flags, 24)
                reader.release()
                offset = outbox.claim(24, 0.0)
                reader.next(0.0)
            assert (reader.seq, reader.flags, payload_of(reader)) == (seq, flags, action)
            seen.next(0.0)
            assert (seen.seq, seen.kind, seen.flags) == (seq, KIND_OBS, flags)
            assert payload_of(seen) == data
            seen.release()
        assert policy.claim(policy.record_bytes_max, 0.0) >= 0, "all but the last are given back"


@pytest.mark.guarantee("G2")
def test_what_is_late_is_waited_for_by_the_single_calls() -> None:
    with Wires() as wires:
        outbox, reader, turn = env_side(wires)
        policy = wires.writer(P, E)
        seen = wires.reader(policy, E)
        outbox.claim(24, 0.0)
        with pytest.raises(RingTimeout, match="policy ring"):
            turn.take(0)
        seen.next(0.0)
        assert seen.seq == 0, "published all the same"
        put(policy, 0, bytes(8), kind=KIND_ACTION)
        outbox.claim(24, 0.0)
        reader.next(0.0)
        assert reader.seq == 0


def test_no_room_is_said_and_nothing_lost() -> None:
    with Wires() as wires:
        outbox, reader, turn = env_side(wires)
        policy = wires.writer(P, E)
        seen = wires.reader(policy, E)
        outbox.claim(24, 0.0)
        count = 0
        with pytest.raises(RingTimeout):
            while True:
                put(policy, count, bytes(8), kind=KIND_ACTION)
                turn.take(count)
                count += 1
        assert count == outbox.capacity // 64 - 1
        for seq in range(count + 1):
            seen.next(0.0)
            assert seen.seq == seq
        seen.release()
        outbox.claim(24, 0.0)
        reader.next(0.0)
        assert reader.seq == count


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("seq", "kind", "nbytes"), [(5, KIND_ACTION, 8), (0, KIND_OBS, 8), (0, KIND_ACTION, 9)]
)
def test_another_record_than_the_one_due_is_shown(seq: int, kind: int, nbytes: int) -> None:
    with Wires() as wires:
        outbox, reader, turn = env_side(wires)
        put(wires.writer(P, E), seq, bytes(nbytes), kind=kind, flags=FLAG_END)
        outbox.claim(24, 0.0)
        assert turn.take(0) == -1
        assert (reader.seq, reader.kind, reader.nbytes) == (seq, kind, nbytes)


@pytest.mark.guarantee("G9")
def test_a_peer_that_lies_is_named() -> None:
    with Wires() as wires:
        outbox, _, turn = env_side(wires)
        put(wires.writer(P, E), 0, bytes(8), kind=KIND_ACTION)
        wires.poke(P, 4096, bytes(8 * 4))
        with pytest.raises(LocalError, match="wrong order"):
            turn.take(0)
        outbox.claim(24, 0.0)
        with pytest.raises(CorruptRingError, match="policy segment: no record"):
            turn.take(0)
        wires.poke(P, 1024 + 256 * E, (2**40).to_bytes(8, "little"))
        for seq in range(1, outbox.capacity // 64):  # until it has to look at the cursor
            with pytest.raises(CorruptRingError) as caught:
                turn.take(seq)
            if "its cursor" in str(caught.value):
                break
        else:
            pytest.fail("the cursor was never looked at")
        outbox.close()
        with pytest.raises(LocalError, match="after close"):
            turn.take(2)


def test_what_is_kept_is_not_given_back() -> None:
    with Wires() as wires:
        outbox, reader, turn = env_side(wires)
        policy = wires.writer(P, E)
        outbox.claim(24, 0.0)
        assert not turn.keep
        turn.keep = True
        assert turn.keep
        for seq in range(3):
            put(policy, seq, bytes(8), kind=KIND_ACTION)
            turn.take(seq)
        with pytest.raises(RingTimeout):
            put(policy, 3, bytes(2000), kind=KIND_ACTION)
            policy.claim(policy.record_bytes_max, 0.0)
        reader.release()
        assert policy.claim(policy.record_bytes_max, 0.0) >= 0


def test_the_progress_word_follows_and_a_signal_cuts_it_short() -> None:
    with Wires() as wires:
        outbox, reader, turn = env_side(wires, limit_s=LIMIT_S)
        policy = wires.writer(P, E)
        word = ProgressWord(wires.segments[E].fd)
        put(policy, 0, bytes(8), kind=KIND_ACTION)
        outbox.claim(24, 0.0)
        turn.take(0)
        phase, _, seq = word.read()
        assert (phase, seq) == (Phase.STEP, 0)
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        main, over = threading.main_thread().ident, threading.Event()
        assert main is not None
        sender = threading.Thread(target=_signal_until, args=(over, main))
        try:
            sender.start()
            with pytest.raises(RingInterrupted):
                turn.take(1)
        finally:
            over.set()
            sender.join(LIMIT_S)
            signal.signal(signal.SIGUSR1, before)
            word.close()
        seen = wires.reader(policy, E)
        seen.next(0.0)
        seen.next(0.0)
        assert seen.seq == 1, "published before it was cut short"
        assert reader.c.now.seq == 0


def _signal_until(over: threading.Event, thread: int) -> None:
    """Again and again: a signal may come between a wait's last look and its sleep."""
    while not over.wait(0.01):
        signal.pthread_kill(thread, signal.SIGUSR1)


@pytest.mark.guarantee("G2")
def test_two_processes_take_turns() -> None:
    count = 3000
    with Wires() as wires:

        def policy_side() -> None:
            outbox = wires.writer(P, E)
            reader = wires.reader(outbox, E)
            turn = Turn(
                reader,
                kind=KIND_ACTION,
                nbytes=8,
                due_kind=KIND_OBS,
                due_bytes=24,
                exact=False,
                ahead=1,
                phase=Phase.ACT,
                timeout_s=LIMIT_S,
            )
            offset = outbox.claim(8, LIMIT_S)
            reader.next(LIMIT_S)
            at = reader.offset
            for seq in range(count):
                outbox.buffer[offset : offset + 8] = reader.peer.buffer[at : at + 8]
                if seq == count - 1:
                    outbox.commit(seq, KIND_ACTION, 0, 8)
                    return
                got = turn.take(seq)
                offset, at = (row * 64 + 32 for row in (got & ROW_MASK, got >> ROW_BITS))

        with child(policy_side) as forked:
            outbox, reader, turn = env_side(wires, limit_s=LIMIT_S)
            offset = outbox.claim(24, LIMIT_S)
            for seq in range(count):
                outbox.buffer[offset : offset + 24] = (seq * 7).to_bytes(24, "little")
                got = turn.take(seq)
                assert got >= 0
                offset, at = (row * 64 + 32 for row in (got & ROW_MASK, got >> ROW_BITS))
                assert reader.peer.buffer[at : at + 8] == (seq * 7).to_bytes(8, "little")
            assert forked.wait() == 0
