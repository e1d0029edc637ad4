"""Messages of bytes: what was put is got, in order, once; what can't be put or got says why."""

from __future__ import annotations

import pytest

from dsec.errors import CorruptRingError, LocalError, RecordTooLarge, RingTimeout
from dsec.ipc.frames import Role
from dsec.ipc.messages import BURST, Receiver, Sender
from dsec.ipc.ring import KIND_ACTION, KIND_OBS, Outbox, stride
from tests.ipc.rings import LIMIT_S, STARTS, Wires, child, pattern, put

E, P, J = Role.ENV, Role.POLICY, Role.RECORDER


def ends(wires: Wires) -> tuple[Outbox, Sender, Receiver]:
    """Both ends of the env's ring in one process."""
    outbox = wires.writer(E, P)
    return outbox, Sender(outbox, KIND_OBS), Receiver(wires.reader(P, E))


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("start", STARTS)
def test_messages_come_out_as_they_went_in(start: int) -> None:
    with Wires(1 << 16, start=start) as wires:
        outbox, sender, receiver = ends(wires)
        for seq in range(200):
            sent = pattern(seq, (seq * 997) % 12_000)
            sender.put(sent, 0.0)
            assert receiver.get(0.0) == sent
        assert sender.seq == 200
        with pytest.raises(RingTimeout):
            receiver.get(0.0)
        assert outbox.claim(outbox.record_bytes_max, 0.0) >= 0, "everything was given back"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_whatever_holds_bytes_can_be_put(kind: type) -> None:
    with Wires() as wires:
        _, sender, receiver = ends(wires)
        sender.put(kind(b"\0\1\2"), 0.0)
        sender.put(kind(b""), 0.0)
        assert [receiver.get(0.0), receiver.get(0.0)] == [b"\0\1\2", b""]


@pytest.mark.guarantee("G2")
def test_many_are_got_at_once_and_given_back_together() -> None:
    with Wires(1 << 16) as wires:
        outbox, sender, receiver = ends(wires)
        sent = [pattern(seq, seq % 40) for seq in range(BURST + 10)]
        for message in sent:
            sender.put(message, 0.0)
        assert receiver.get_many(0.0) == sent[:BURST]
        assert receiver.get_many(0.0) == sent[BURST:]
        with pytest.raises(RingTimeout):
            receiver.get_many(0.0)
        assert outbox.claim(outbox.record_bytes_max, 0.0) >= 0


def test_numbers_go_on_where_they_are_told_to() -> None:
    with Wires() as wires:
        outbox = wires.writer(E, P)
        reader = wires.reader(P, E)
        Sender(outbox, KIND_ACTION, first_seq=7).put(b"x", 0.0)
        reader.next(0.0)
        assert (reader.seq, reader.kind, reader.nbytes) == (7, KIND_ACTION, 1)


def test_what_can_not_be_put_says_why_and_changes_nothing() -> None:
    with Wires() as wires:
        outbox, sender, receiver = ends(wires)
        with pytest.raises(RecordTooLarge, match=r"a record of 3,000 bytes .* at most"):
            sender.put(bytes(3000), 0.0)
        with pytest.raises(LocalError):
            Sender(outbox, 99).put(b"", 0.0)
        for _ in range(2):
            sender.put(bytes(2000), 0.0)
        with pytest.raises(RingTimeout, match="room on the env ring"):
            sender.put(bytes(2000), 0.0)
        assert [len(receiver.get(0.0)), len(receiver.get(0.0))] == [2000, 2000]
        outbox.close()
        with pytest.raises(LocalError):
            sender.put(b"", 0.0)
        receiver._reader.mine.close()
        with pytest.raises(LocalError):
            receiver.get(0.0)
        with pytest.raises(LocalError):
            receiver.get_many(0.0)


@pytest.mark.guarantee("G9")
def test_a_writer_that_lies_is_named() -> None:
    with Wires() as wires:
        _, sender, receiver = ends(wires)
        sender.put(b"one", 0.0)
        sender.put(b"two", 0.0)
        wires.poke(E, 4096 + 64 + 16, (4000).to_bytes(4, "little"))  # the second record's length
        assert receiver.get_many(0.0) == [b"one"], "what came before is whole"
        for _ in range(2):
            with pytest.raises(CorruptRingError, match="env"):
                receiver.get_many(0.0)
        with pytest.raises(CorruptRingError, match="env"):
            receiver.get(0.0)


@pytest.mark.guarantee("G2")
def test_a_full_ring_costs_a_wait_for_many_records() -> None:
    """A writer that waits is woken when an eighth of the ring is free, not for each record."""
    count = 4000
    with Wires(1 << 14) as wires:

        def feed() -> None:
            outbox = wires.writer(E, P)
            outbox.spin = 0
            sender = Sender(outbox, KIND_OBS)
            for seq in range(count):
                sender.put(pattern(seq, 32), LIMIT_S)
            waits = outbox.c.sleeps
            assert waits <= count * stride(32) // (1 << 14) * 8 + 8, f"{waits} waits"

        reader = wires.reader(P, E)
        receiver = Receiver(reader)
        with child(feed) as feeder:
            for seq in range(count):
                assert receiver.get(LIMIT_S) == pattern(seq, 32)
            assert feeder.wait() == 0


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("held", [2016, 1000, 100])
def test_a_reader_that_holds_half_a_ring_does_not_stop_its_writer(held: int) -> None:
    """The room that a waiting writer asks for must come even if the reader waits for the writer."""
    with Wires(4096) as wires:
        outbox = wires.writer(E, P)
        outbox.spin = 0
        reader = wires.reader(P, E)
        other = (2016, 1000, 100)
        with child(
            lambda: [put(outbox, seq, bytes(other[seq % 3])) for seq in range(60)]
        ) as writer:
            kept = 0
            for seq in range(60):
                reader.next(LIMIT_S)
                assert reader.seq == seq
                kept += stride(reader.nbytes)
                if kept > held:
                    reader.release_prior()
                    kept = stride(reader.nbytes)
            reader.release()
            assert writer.wait() == 0
