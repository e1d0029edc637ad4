"""A ring that wakes an event loop: the eventfd is written only for who says that it sleeps."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable

import pytest
import uvloop

from dsec.errors import LocalError, RingTimeout
from dsec.ipc.async_reader import AsyncReader
from dsec.ipc.doorbell import Doorbell
from dsec.ipc.frames import Role
from dsec.ipc.ring import FLAG_END
from tests.ipc.rings import LIMIT_S, Wires, child, put


@pytest.fixture(scope="module", autouse=True)
def libuv_started() -> None:
    """Open the pipe that libuv keeps for the life of the process, before leaks are looked for."""
    uvloop.new_event_loop().close()


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
def test_a_small_record_after_a_large_one_wakes_as_well() -> None:
    bell = Doorbell()
    with Wires(roles=(Role.ENV, Role.POLICY)) as wires:
        outbox = wires.outbox(Role.ENV)
        outbox.add_reader(wires.peer(Role.POLICY), eventfd=bell.fd)
        reader = wires.reader(Role.POLICY, Role.ENV)
        put(outbox, 0, b"x" * 1000)
        assert reader.try_next()
        assert reader.arm()
        put(outbox, 1, b"1")
        assert bell.drain() == 1
        assert reader.try_next()
        put(outbox, 2, b"x" * 1000)
        assert reader.try_next()
        put(outbox, 3, b"3")
        assert reader.wait(1, 0.0), "one record is there, whatever its size"
    bell.close()


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_event_loop_reads_what_another_process_writes(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    count = 2000
    bell = Doorbell()
    with Wires(roles=(Role.ENV, Role.POLICY)) as wires:

        def write() -> None:
            outbox = wires.outbox(Role.ENV)
            outbox.add_reader(wires.peer(Role.POLICY), eventfd=bell.fd)
            for seq in range(count):
                put(outbox, seq, b"x" * (seq * 37 % 500))

        async def read() -> list[int]:
            reader = AsyncReader(wires.reader(Role.POLICY, Role.ENV), bell)
            seen = []
            for _ in range(count):
                await reader.next(LIMIT_S)
                seen.append(reader.ring.seq)
                reader.ring.release()
            return seen

        with child(write) as forked, asyncio.Runner(loop_factory=new_loop) as runner:
            assert runner.run(read()) == list(range(count))
            assert forked.wait() == 0
    bell.close()


def test_waiting_in_a_loop_has_a_limit_and_can_be_cancelled() -> None:
    bell = Doorbell()
    with Wires(roles=(Role.ENV, Role.POLICY)) as wires:
        outbox = wires.outbox(Role.ENV)
        outbox.add_reader(wires.peer(Role.POLICY), eventfd=bell.fd)
        reader = AsyncReader(wires.reader(Role.POLICY, Role.ENV), bell)

        async def read() -> None:
            with pytest.raises(RingTimeout, match="env ring"):
                await reader.next(0.01)
            waiting = asyncio.ensure_future(reader.next(LIMIT_S))
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            put(outbox, 0, b"0")
            assert bell.drain() == 0, "nobody waits any more"
            bell.ring()  # an old ring is no record
            await reader.next(LIMIT_S)
            with pytest.raises(RingTimeout):
                await reader.next(0.01)
            bell.close()
            with pytest.raises(LocalError, match="closed"):
                await reader.next(0.01)

        asyncio.run(read())
