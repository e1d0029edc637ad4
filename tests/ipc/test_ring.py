"""One ring, by its interface: what is committed is read whole, in order, once; errors say why."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from dsec.errors import (
    CorruptRingError,
    LocalError,
    RecordTooLarge,
    RingInterrupted,
    RingTimeout,
)
from dsec.ipc import ring, segment
from dsec.ipc._ring import lib
from dsec.ipc.frames import Phase, Role
from dsec.ipc.ring import (
    FLAG_BOUNDARY,
    FLAG_END,
    FLAG_URGENT,
    KIND_OBS,
    Outbox,
    Peer,
    Reader,
    stride,
)
from tests.ipc.rings import LIMIT_S, STARTS, Wires, pattern, payload_of, put

E, P, R, J = Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER


@pytest.fixture(params=STARTS, ids=["0", "2^32", "2^63", "2^64"])
def wires(request: pytest.FixtureRequest) -> Iterator[Wires]:
    """Segments whose positions begin shortly before each power of two that could matter."""
    with Wires(start=request.param) as made:
        yield made


@pytest.mark.guarantee("G2")
def test_records_come_out_as_they_went_in(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    reader = wires.reader(P, E)
    for seq in range(200):
        nbytes = (seq * 97) % (outbox.record_bytes_max + 1)
        put(outbox, seq, pattern(seq, nbytes), flags=FLAG_BOUNDARY * (seq % 2))
        reader.next(0.0)
        assert (reader.seq, reader.nbytes, reader.kind) == (seq, nbytes, KIND_OBS)
        assert (reader.flags, reader.epoch) == (seq % 2, 1)
        assert payload_of(reader) == pattern(seq, nbytes)
        reader.release()
    assert reader.available == 0


def test_strides_are_aligned_and_few() -> None:
    assert [stride(n) for n in (0, 32, 33, 96, 97, 4064, 4065)] == [
        64,
        64,
        128,
        128,
        192,
        4096,
        4608,
    ]
    for n in (5000, 70_000, 1_000_000, 12_345_678):
        assert stride(n) >= n + 32
        assert stride(n) % 64 == 0
        assert stride(n) - n <= max(64, n // 8 + 64), "at most an eighth is padding"
    assert len({stride(n) for n in range(100_000, 200_000, 7)}) <= 10


def test_a_reader_may_hold_records_and_go_on(wires: Wires) -> None:
    outbox = wires.writer(E, R)
    reader = wires.reader(R, E)
    for seq in range(3):
        put(outbox, seq, pattern(seq, 1000))
    reader.next(0.0)
    first = reader.offset
    reader.next(0.0)
    assert bytes(reader.peer.buffer[first : first + 1000]) == pattern(0, 1000), "still held"
    with pytest.raises(RingTimeout):
        outbox.claim(1000, 0.0)
    reader.release_prior()
    put(outbox, 3, pattern(3, 1000))
    assert payload_of(reader) == pattern(1, 1000), "the current one is kept"
    reader.release()
    reader.release()
    reader.next(0.0)
    reader.next(0.0)
    assert reader.seq == 3


def test_records_that_were_done_with_are_passed_by(wires: Wires) -> None:
    outbox = wires.writer(E, R)
    reader = wires.reader(R, E)
    reader.pass_by(5)
    for seq in range(3, 9):
        put(outbox, seq, pattern(seq, 400))
    reader.pass_by(3)
    reader.pass_by(6)
    held = reader.available
    reader.next(0.0)
    assert (reader.seq, payload_of(reader)) == (6, pattern(6, 400))
    with pytest.raises(RingTimeout):
        outbox.claim(outbox.record_bytes_max, 0.0)  # what was passed by is held
    reader.release()
    outbox.claim(outbox.record_bytes_max, 0.0)
    reader.pass_by(400)
    assert held == 3 * stride(400) and reader.available == 0
    assert not reader.try_next()


def test_a_record_takes_at_most_half_the_ring(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    most = outbox.record_bytes_max
    assert most == 4096 // 2 - 32
    put(outbox, 0, bytes(most))
    put(outbox, 1, bytes(most))
    with pytest.raises(RecordTooLarge, match=f"{most + 1:,} bytes on the env ring of 4,096"):
        outbox.claim(most + 1, 0.0)
    with pytest.raises(RecordTooLarge):
        outbox.claim(2**40, 0.0)


def test_commit_can_be_shorter_than_the_claim_and_a_claim_can_be_replaced(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    reader = wires.reader(P, E)
    before = outbox.tail
    outbox.claim(2000, 0.0)
    offset = outbox.claim(500, 0.0)
    outbox.buffer[offset : offset + 3] = b"abc"
    assert not reader.try_next(), "a claim is invisible"
    outbox.commit(0, KIND_OBS, 0, 3)
    assert reader.try_next()
    assert payload_of(reader) == b"abc"
    assert outbox.tail == (before + 64) % 2**64


def test_misuse_is_a_local_error_and_publishes_nothing(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    reader = wires.reader(P, E)
    with pytest.raises(LocalError, match="wrong order"):
        outbox.commit(0, KIND_OBS, 0, 0)
    outbox.claim(10, 0.0)
    for kind, flags, nbytes in ((0, 0, 1), (5, 0, 1), (KIND_OBS, 1 << 16, 1), (KIND_OBS, 0, 11)):
        with pytest.raises(LocalError):
            outbox.commit(0, kind, flags, nbytes)
    assert not reader.try_next()
    outbox.commit(0, KIND_OBS, 0, 10)
    with pytest.raises(LocalError):
        outbox.commit(1, KIND_OBS, 0, 10)
    with pytest.raises(LocalError):
        outbox.add_reader(wires.peer(E))
    with Wires(0, roles=(J,)) as ringless, pytest.raises(LocalError):
        Reader(outbox, ringless.peer(J))


def test_after_close_every_call_is_a_local_error_and_views_stay_valid(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    mine = wires.outbox(P)
    reader = wires.reader(mine, E)
    put(outbox, 0, b"still here")
    reader.next(0.0)
    view = reader.peer.buffer[reader.offset : reader.offset + reader.nbytes]
    for close in (mine.close, reader.peer.close):
        close()
        close()
        calls = (reader.try_next, reader.release, reader.release_prior, reader.arm)
        for call in (*calls, partial(reader.pass_by, 1)):
            with pytest.raises(LocalError, match="after close"):
                call()
        with pytest.raises(LocalError, match="after close"):
            reader.next(0.0)
        assert reader.available == 0
    with pytest.raises(LocalError, match="closed"):
        _ = reader.peer.buffer
    outbox.close()
    with pytest.raises(LocalError, match="after close"):
        outbox.claim(1, 0.0)
    gc.collect()
    assert bytes(view) == b"still here"


def test_timeouts_are_never_early(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    reader = wires.reader(P, E)
    for spin in (0, 10, 100_000_000):
        reader.mine.spin = outbox.spin = spin
        before = time.monotonic()
        with pytest.raises(RingTimeout, match="a record on the env ring"):
            reader.next(0.05)
        assert time.monotonic() - before >= 0.05
        assert not reader.wait(3, 0.01)
    put(outbox, 0, bytes(2016))
    put(outbox, 1, bytes(2016))
    for spin in (0, 10, 100_000_000):
        outbox.spin = spin
        before = time.monotonic()
        with pytest.raises(RingTimeout, match="room on the env ring"):
            outbox.claim(1, 0.05)
        assert time.monotonic() - before >= 0.05
    reader.next(0.0)
    assert reader.seq == 0, "a time-out leaves the ring as it was"


def test_the_slowest_reader_holds_the_writer_back(wires: Wires) -> None:
    outbox = wires.writer(E, P, R, J)
    readers = [wires.reader(role, E) for role in (P, R, J)]
    put(outbox, 0, bytes(2016))
    put(outbox, 1, bytes(2016))
    for reader in readers:
        with pytest.raises(RingTimeout):
            outbox.claim(1, 0.0)
        reader.next(0.0)
        reader.release()
    outbox.claim(1, 0.0)
    put(outbox, 2, bytes(2016))
    outbox.remove_reader(J)
    outbox.remove_reader(J)
    for reader in readers[:2]:
        reader.next(0.0)
        reader.release()
    put(outbox, 3, b"J is forgotten")
    with pytest.raises(CorruptRingError, match="recorder"):
        outbox.add_reader(wires.peer(J))  # overtaken: what it has not read is gone


@pytest.mark.guarantee("G2", "G9")
@pytest.mark.parametrize("cursor", [64, 2**40, 1, 2**63, -4160])
def test_a_cursor_outside_the_ring_names_its_reader(cursor: int) -> None:
    with Wires() as wires:
        outbox = wires.writer(E, P, R)
        put(outbox, 0, bytes(2016))
        put(outbox, 1, bytes(2016))
        bad = (outbox.tail + cursor) % 2**64
        wires.poke(R, lib.dsec_page_offset(4), bad.to_bytes(8, "little"))
        with pytest.raises(CorruptRingError, match=f"reward segment: its cursor {bad}"):
            outbox.claim(1, 0.0)
        with pytest.raises(CorruptRingError, match="reward segment"):
            outbox.add_reader(wires.peer(R))
        outbox.add_reader(wires.peer(P))


def test_wait_ends_at_enough_at_the_end_and_at_half_a_ring(wires: Wires) -> None:
    outbox = wires.writer(E, R)
    reader = wires.reader(R, E)
    put(outbox, 0, b"x")
    reader.next(0.0)
    put(outbox, 1, b"x")
    assert not reader.wait(2, 0.0)
    put(outbox, 2, b"x")
    assert reader.wait(2, 0.0)
    assert not reader.wait(3, 0.0)
    put(outbox, 3, b"x", flags=FLAG_URGENT)
    assert reader.wait(100, 0.0)
    while reader.try_next():
        reader.release()
    assert not reader.wait(100, 0.0), "the urgent record is behind"
    for seq in range(4, 4 + 32):
        put(outbox, seq, b"x")
    assert reader.wait(100, 0.0), "half a ring is enough, or the writer could wait for space"
    while reader.try_next():
        reader.release()
    put(outbox, 99, b"x", flags=FLAG_END)
    assert reader.wait(100, 0.0)


def test_a_successor_goes_on_at_the_tail(wires: Wires) -> None:
    outbox = wires.writer(E, P)
    reader = wires.reader(P, E)
    put(outbox, 0, b"first life")
    offset = outbox.claim(100, 0.0)
    outbox.buffer[offset : offset + 4] = b"torn"
    outbox.close()
    successor = wires.writer(E, P, epoch=2)
    put(successor, 1, b"second life")
    reader.next(0.0)
    assert (payload_of(reader), reader.epoch) == (b"first life", 1)
    reader.release()
    again = wires.reader(P, E)
    again.next(0.0)
    assert (payload_of(again), again.epoch, again.seq) == (b"second life", 2, 1)


def test_the_progress_word_is_idle_while_waiting() -> None:
    with Wires() as wires:
        outbox = wires.writer(E, P)
        mine = wires.outbox(P)
        mine.spin = 0
        reader = wires.reader(mine, E)
        word = segment.ProgressWord(wires.segments[P].fd)
        mine.enter(Phase.LEARN, 7)
        thread = threading.Thread(target=reader.next, args=(LIMIT_S, Phase.ACT))
        thread.start()
        deadline = time.monotonic() + LIMIT_S
        while word.read()[0] is not Phase.IDLE:
            assert time.monotonic() < deadline
        put(outbox, 8, b"")
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        phase, since, seq = word.read()
        assert (phase, seq) == (Phase.ACT, 8)
        assert since <= time.monotonic_ns()
        word.close()


# ---------------------------------------------------------------- signals


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """SIGALRM in 50 ms, with a Python handler that counts."""
    seen: list[int] = []
    old = signal.signal(signal.SIGALRM, lambda signo, frame: seen.append(signo))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    yield seen
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def test_a_signal_cuts_a_sleep(alarms: list[int]) -> None:
    with Wires() as wires:
        reader = wires.reader(P, E)
        reader.mine.spin = 0
        with pytest.raises(RingInterrupted, match="a signal came"):
            reader.next(LIMIT_S)
        assert alarms == [signal.SIGALRM]
        outbox = wires.writer(E, P)
        outbox.spin = 0
        put(outbox, 0, bytes(2016))
        put(outbox, 1, bytes(2016))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(RingInterrupted):
            outbox.claim(1, LIMIT_S)
        reader.next(0.0)
        assert reader.seq == 0


def test_a_watched_signal_cuts_polling_once(alarms: list[int]) -> None:
    ring.watch_signal(signal.SIGALRM)
    ring.watch_signal(signal.SIGALRM)
    with Wires() as wires:
        reader = wires.reader(P, E)
        reader.mine.spin = 2**32 - 1
        with pytest.raises(RingInterrupted):
            reader.next(LIMIT_S)
        assert alarms == [signal.SIGALRM], "the Python handler ran as well"
        with pytest.raises(RingTimeout):
            reader.next(0.01)
        signal.raise_signal(signal.SIGALRM)
        with pytest.raises(RingInterrupted):
            reader.wait(1, LIMIT_S)
    with pytest.raises(LocalError, match="can't be watched"):
        ring.watch_signal(signal.SIGKILL)


def test_opening_refuses_a_segment_of_another_role_or_size() -> None:
    with Wires() as wires:
        made = wires.segments[E]
        with pytest.raises(CorruptRingError, match="claims role 0 instead of 1"):
            Peer(made.fd, made.size, P)
        with pytest.raises(CorruptRingError, match="claims role 0 instead of 2"):
            Outbox(made.fd, made.size, R)
        wires.poke(E, 0, b"XX")
        with pytest.raises(CorruptRingError, match="env segment: magic number"):
            Peer(made.fd, made.size, E)
