"""Records larger than their ring: nothing is lost, overwritten early, or believed unseen."""

from __future__ import annotations

import os
import signal
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.errors import CorruptRingError, LocalError, RecordTooLarge, RingTimeout
from dsec.ipc import overflow, segment
from dsec.ipc.frames import Role
from dsec.ipc.join import Join, iter_records
from dsec.ipc.overflow import DESCRIPTOR, IN_FLIGHT_BYTES, Spill
from dsec.ipc.ring import FLAG_OVERFLOW, KIND_ACTION, KIND_OBS, KIND_REWARD, Outbox, Reader
from tests.ipc.rings import LIMIT_S, STARTS, Wires, child, put

FIXED = 24
MIB = 1 << 20


def bulk(seq: int, nbytes: int) -> bytes:
    return np.random.default_rng(seq).bytes(nbytes)


def send(outbox: Outbox, spill: Spill, seq: int, rest: bytes, *, timeout_s: float = 0.0) -> None:
    at = outbox.claim(FIXED, LIMIT_S)
    outbox.buffer[at : at + FIXED] = seq.to_bytes(FIXED, "little")
    spill.commit(seq, KIND_OBS, 0, FIXED, rest, timeout_s)


def receive(reader: Reader) -> tuple[int, bytes]:
    reader.next(LIMIT_S)
    fixed = bytes(reader.peer.buffer[reader.offset : reader.offset + FIXED])
    assert int.from_bytes(fixed, "little") == reader.seq, "the fixed part stays in the ring"
    rest = overflow.tail(reader.peer, reader.flags, reader.offset, reader.nbytes, FIXED)
    return reader.seq, bytes(rest)


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("nbytes", [0, 1, 1500, 2049, 4096, 100_000, 5 * MIB])
def test_a_record_of_any_size_passes_a_ring_of_4_kib(nbytes: int, start: int) -> None:
    with Wires(start=start) as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY, Role.REWARD)
        spill = Spill(outbox)
        readers = [wires.reader(role, Role.ENV) for role in (Role.POLICY, Role.REWARD)]
        for seq in range(3):
            send(outbox, spill, seq, bulk(seq, nbytes))
            for reader in readers:
                assert receive(reader) == (seq, bulk(seq, nbytes))
                assert bool(reader.flags & FLAG_OVERFLOW) == (nbytes > 2000)
                reader.release()


@pytest.mark.guarantee("G2")
def test_the_slowest_reader_keeps_what_it_has_not_given_back() -> None:
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY, Role.REWARD)
        spill = Spill(outbox)
        quick, slow = (wires.reader(role, Role.ENV) for role in (Role.POLICY, Role.REWARD))
        for seq in range(8):
            send(outbox, spill, seq, bulk(seq, MIB))
            assert receive(quick) == (seq, bulk(seq, MIB))
            quick.release()
        assert [receive(slow) for _ in range(8)] == [(seq, bulk(seq, MIB)) for seq in range(8)]


def test_what_waits_for_readers_is_bounded_but_two_always_fit() -> None:
    large = IN_FLIGHT_BYTES
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY)
        spill = Spill(outbox)
        reader = wires.reader(Role.POLICY, Role.ENV)
        for seq in range(2):
            send(outbox, spill, seq, bytes([seq]) * large)
        tail = outbox.tail
        with pytest.raises(RingTimeout, match="beside the env ring"):
            send(outbox, spill, 2, b"\2" * large)
        assert outbox.tail == tail, "nothing is published"
        assert receive(reader) == (0, b"\0" * large)
        reader.release()
        send(outbox, spill, 2, b"\2" * large)
        assert [receive(reader)[1][-1] for _ in range(2)] == [1, 2]


def test_room_is_used_again_from_the_start() -> None:
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY)
        spill = Spill(outbox)
        reader = wires.reader(Role.POLICY, Role.ENV)
        for seq in range(50):
            send(outbox, spill, seq, bulk(seq, MIB))
            assert receive(reader) == (seq, bulk(seq, MIB))
            reader.release()
        taken = os.fstat(wires.segments[Role.ENV].fd).st_blocks * 512
        assert taken < 4 * MIB, "50 MiB went through"


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 9 * MIB), st.booleans()), max_size=25))
def test_nothing_is_overwritten_whatever_the_order(steps: list[tuple[int, bool]]) -> None:
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY)
        spill = Spill(outbox)
        reader = wires.reader(Role.POLICY, Role.ENV)
        waiting: deque[tuple[int, bytes]] = deque()
        for seq, (nbytes, reads) in enumerate(steps):
            content = seq.to_bytes(1, "little") * nbytes
            while True:
                try:
                    send(outbox, spill, seq, content)
                    break
                except RingTimeout:
                    assert receive(reader) == waiting.popleft()
                    reader.release()
            waiting.append((seq, content))
            if reads:
                assert receive(reader) == waiting.popleft()
                reader.release()
        while waiting:
            assert receive(reader) == waiting.popleft()


@pytest.mark.guarantee("G2")
def test_a_successor_spares_what_its_predecessor_published() -> None:
    with Wires() as wires:

        def publish() -> None:
            outbox = wires.writer(Role.ENV, Role.POLICY)
            spill = Spill(outbox)
            for seq in range(3):
                send(outbox, spill, seq, bulk(seq, MIB))
            os.kill(os.getpid(), signal.SIGKILL)

        with child(publish) as writer:
            assert writer.wait() == -signal.SIGKILL
        reader = wires.reader(Role.POLICY, Role.ENV)
        assert receive(reader) == (0, bulk(0, MIB))
        reader.release()
        outbox = wires.writer(Role.ENV, Role.POLICY, epoch=2)
        spill = Spill(outbox)
        for seq in range(3, 6):
            send(outbox, spill, seq, bulk(seq, MIB))
        assert [receive(reader) for _ in range(5)] == [(s, bulk(s, MIB)) for s in range(1, 6)]


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    "end",
    [
        b"",
        b"short",
        DESCRIPTOR.pack(0, 1 << 63),
        DESCRIPTOR.pack((1 << 64) - 1, 2),
        DESCRIPTOR.pack(0, 1 << 30),
        DESCRIPTOR.pack(1 << 31, 1),
        DESCRIPTOR.pack(segment.OVERFLOW_BYTES, 1),
        DESCRIPTOR.pack(segment.OVERFLOW_BYTES - 8, 9),
    ],
)
def test_a_place_that_cannot_be_is_a_named_error(end: bytes) -> None:
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY)
        put(outbox, 0, bytes(FIXED) + end, flags=FLAG_OVERFLOW)
        with pytest.raises(CorruptRingError, match="env segment: an overflow"):
            receive(wires.reader(Role.POLICY, Role.ENV))


def test_a_record_beyond_the_area_says_what_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY)
        outbox.area.nbytes = 4 * MIB
        send(outbox, Spill(outbox), 0, bytes(MIB))
        with pytest.raises(RecordTooLarge, match="at most 1,048,576 are possible"):
            send(outbox, Spill(outbox), 1, bytes(MIB + 1))


def test_only_env_and_policy_have_an_area() -> None:
    with Wires() as wires:
        sizes = {role: wires.outbox(role).area.nbytes for role in wires.segments}
        assert sizes == {
            Role.ENV: segment.OVERFLOW_BYTES,
            Role.POLICY: segment.OVERFLOW_BYTES,
            Role.REWARD: 0,
            Role.RECORDER: 0,
        }


def test_a_fork_of_the_writer_cannot_write_the_area() -> None:
    with Wires() as wires:
        outbox = wires.writer(Role.ENV, Role.POLICY)

        def write() -> None:
            with pytest.raises(LocalError, match="was closed"):
                outbox.area.write(0, b"x")

        with child(write) as forked:
            assert forked.wait() == 0
        outbox.area.write(0, b"x")


def test_a_closed_area_is_closed() -> None:
    with Wires() as wires:
        outbox, peer = wires.outbox(Role.ENV), wires.peer(Role.ENV)
        for handle in (outbox, peer):
            handle.close()
            with pytest.raises(LocalError, match="was closed"):
                handle.area.read(0, 1)


@pytest.mark.guarantee("G2")
def test_the_join_hands_on_whole_records() -> None:
    with Wires() as wires:
        boxes = {
            role: wires.writer(role, Role.RECORDER) for role in (Role.ENV, Role.POLICY, Role.REWARD)
        }
        mine = wires.outbox(Role.RECORDER)
        readers = [wires.reader(mine, role) for role in boxes]
        join = Join(*readers, num_envs=1, reward_off_env=0, flags_off_env=8)
        spills = {role: Spill(box) for role, box in boxes.items()}

        def publish(role: Role, seq: int, kind: int, rest: bytes) -> None:
            at = boxes[role].claim(FIXED, LIMIT_S)
            boxes[role].buffer[at : at + FIXED] = bytes(FIXED)
            spills[role].commit(seq, kind, 0, FIXED, rest, 0.0)

        sizes = [10, 3 * MIB, 0, 70_000]
        for seq, size in enumerate(sizes):
            publish(Role.ENV, seq, KIND_OBS, bulk(seq, size))
            if seq < 3:
                publish(Role.POLICY, seq, KIND_ACTION, bulk(seq, sizes[-seq]))
                put(boxes[Role.REWARD], seq, bytes(8), kind=KIND_REWARD)
        batch = join.take(64 * MIB)
        assert batch is not None and batch.count == 3
        for part, count in ((batch.env, 4), (batch.policy, 3)):
            found = list(iter_records(part))
            assert [record.seq for record in found] == list(range(count))
            for record in found:
                size = sizes[record.seq] if count == 4 else sizes[-record.seq]
                assert record.flags == 0
                assert bytes(record.payload) == bytes(FIXED) + bulk(record.seq, size)
        join.release()
        publish(Role.ENV, 4, KIND_OBS, bulk(4, MIB))
        env, policy, reward = join.remainder()
        (record,) = iter_records(env)
        assert bytes(record.payload[FIXED:]) == bulk(4, MIB)
        assert (len(policy), len(reward)) == (0, 0)
