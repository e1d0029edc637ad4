"""A ring that wakes an event loop: the eventfd is written only for who says that it sleeps."""

from __future__ import annotations

import asyncio
import fcntl
import os

import pytest

from dsec.ipc.doorbell import Doorbell
from dsec.ipc.frames import Role
from dsec.ipc.ring import FLAG_END
from tests.ipc.rings import LIMIT_S, Wires, child, put


def test_ring_drain_close() -> None:
    bell = Doorbell()
    assert fcntl.fcntl(bell.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert bell.drain() == 0
    bell.ring()
    bell.ring()
    assert bell.drain() == 2
    os.eventfd_write(bell.fd, 2**64 - 2)
    bell.ring()  # full: nothing to add
    assert bell.drain() == 2**64 - 2
    adopted = Doorbell(os.dup(bell.fd))
    adopted.ring()
    assert bell.drain() == 1
    adopted.close()
    bell.close()
    bell.close()
    assert bell.fd == -1


def test_only_an_armed_reader_is_rung() -> None:
    bell = Doorbell()
    with Wires(roles=(Role.ENV, Role.POLICY)) as wires:
        outbox = wires.outbox(Role.ENV)
        outbox.add_reader(wires.peer(Role.POLICY), eventfd=bell.fd)
        reader = wires.reader(Role.POLICY, Role.ENV)
        put(outbox, 0, b"0")
        assert bell.drain() == 0, "awake: nobody to wake"
        assert not reader.arm(), "a record is there already"
        assert reader.try_next()
        assert reader.arm()
        put(outbox, 1, b"1")
        put(outbox, 2, b"2")
        assert bell.drain() == 1, "one want, one wake-up"
        while reader.try_next():
            reader.release()
        assert reader.arm(3)
        put(outbox, 3, b"3")
        assert bell.drain() == 0, "it waits for three"
        put(outbox, 4, b"4", flags=FLAG_END)
        assert bell.drain() == 1, "nobody sleeps through the end"
        reader.disarm()
        put(outbox, 5, b"5")
        assert bell.drain() == 0
    bell.close()


@pytest.mark.guarantee("G2")
def test_an_event_loop_reads_what_another_process_writes() -> None:
    count = 2000
    bell = Doorbell()
    with Wires(roles=(Role.ENV, Role.POLICY)) as wires:

        def write() -> None:
            outbox = wires.outbox(Role.ENV)
            outbox.add_reader(wires.peer(Role.POLICY), eventfd=bell.fd)
            for seq in range(count):
                put(outbox, seq, b"x" * (seq % 50))

        async def read() -> int:
            loop = asyncio.get_running_loop()
            reader = wires.reader(Role.POLICY, Role.ENV)
            done = loop.create_future()
            seen = 0

            def on_bell() -> None:
                nonlocal seen
                bell.drain()
                while seen < count:
                    while reader.try_next():
                        assert reader.seq == seen
                        seen += 1
                        reader.release()
                    if reader.arm():
                        break
                if seen == count and not done.done():
                    done.set_result(None)

            loop.add_reader(bell.fd, on_bell)
            on_bell()
            await asyncio.wait_for(done, LIMIT_S)
            loop.remove_reader(bell.fd)
            return seen

        with child(write) as forked:
            assert asyncio.run(read()) == count
            assert forked.wait() == 0
    bell.close()
