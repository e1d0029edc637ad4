"""What every transport promises: one suite, run over each. A transport that is written later is
added to TRANSPORTS and has to pass everything as it is. Where a device is missing it is not in it.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from dsec.errors import AccessDenied, LocalError, PeerGone, VersionMismatch
from dsec.sml.remote.tcp import TcpTransport
from dsec.sml.remote.transport import (
    PARAMETERS_BYTES_MAX,
    SECRET_BYTES,
    Access,
    Connection,
    Region,
    Transport,
)
from dsec.sml.remote.words import address_of, load_word

PAGES = 64
SIZE = PAGES * mmap.PAGESIZE
SECRET = b"s" * SECRET_BYTES

TRANSPORTS: dict[str, Callable[[], Awaitable[Transport]]] = {
    "tcp": lambda: TcpTransport.open("127.0.0.1", limit_s=2.0)
}


class Ends(NamedTuple):
    """Two transports, a region of the second, and a connection each way."""

    one: Transport
    two: Transport
    memory: mmap.mmap
    region: Region
    there: Connection
    back: Connection


@asynccontextmanager
async def ends(make: Callable[[], Awaitable[Transport]], access: Access) -> Any:
    one, two = await make(), await make()
    memory = mmap.mmap(-1, SIZE)
    try:
        region = await two.register(address_of(memory), SIZE, access)
        mine, theirs = await one.prepare(SECRET), await two.prepare(SECRET)
        assert 0 < len(mine.parameters) <= PARAMETERS_BYTES_MAX
        back = await theirs.connect(mine.parameters)
        there = await mine.connect(theirs.parameters)
        yield Ends(one, two, memory, region, there, back)
    finally:
        await one.close()
        await two.close()
        await one.close()
        memory.close()


@pytest.fixture(params=sorted(TRANSPORTS))
def make(request: pytest.FixtureRequest) -> Callable[[], Awaitable[Transport]]:
    return TRANSPORTS[request.param]


BOTH = Access.READ | Access.WRITE


def run(work: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(limited())


@pytest.mark.parametrize("nbytes", [1, 7, 8, 1023, 1024, 1025, 100_000, SIZE])
def test_bytes_come_back_as_they_were_written(
    make: Callable[[], Awaitable[Transport]], nbytes: int
) -> None:
    async def work() -> None:
        async with ends(make, BOTH) as e:
            data = bytes((i * 7 + i // 251) & 0xFF for i in range(nbytes))
            await e.there.write(e.region, SIZE - nbytes, data)
            assert e.memory[SIZE - nbytes :] == data
            into = e.one.buffer(nbytes)
            await e.there.read(e.region, SIZE - nbytes, into)
            assert into == data
            plain = bytearray(nbytes)
            await e.there.read(e.region, SIZE - nbytes, memoryview(plain))
            assert plain == data
            e.one.release(into)

    run(work())


def test_many_operations_at_once_each_do_what_they_say(
    make: Callable[[], Awaitable[Transport]],
) -> None:
    async def work() -> None:
        async with ends(make, BOTH) as e:
            writes = [e.there.write(e.region, i * 512, bytes([i]) * 512) for i in range(200)]
            await asyncio.gather(*writes)
            parts = [bytearray(512) for _ in range(200)]
            await asyncio.gather(
                *(e.there.read(e.region, i * 512, memoryview(p)) for i, p in enumerate(parts))
            )
            assert all(part == bytes([i]) * 512 for i, part in enumerate(parts))

    run(work())


def test_a_word_is_seen_behind_all_that_was_written_before(
    make: Callable[[], Awaitable[Transport]],
) -> None:
    async def work() -> None:
        async with ends(make, BOTH) as e:
            for turn in range(1, 30):
                data = bytes([turn]) * 50_000
                both = asyncio.gather(
                    e.there.write(e.region, mmap.PAGESIZE, data),
                    e.there.publish(e.region, 64, turn << 32 | turn),
                )
                for _ in range(1_000_000):
                    if load_word(e.region.address + 64) == turn << 32 | turn:
                        break
                    await asyncio.sleep(0)
                assert e.memory[mmap.PAGESIZE : mmap.PAGESIZE + 50_000] == data
                await both

    run(work())


@pytest.mark.parametrize("what", ["key", "beyond", "end", "write", "read", "publish"])
def test_what_is_not_granted_is_denied_and_ends_the_connection(
    make: Callable[[], Awaitable[Transport]], what: str
) -> None:
    access = {"write": Access.READ, "publish": Access.READ, "read": Access.WRITE}.get(what, BOTH)

    async def work() -> None:
        async with ends(make, access) as e:
            region = e.region
            into = memoryview(bytearray(4096))
            wrong = Region(region.address, region.length, region.key ^ 1)
            tried = {
                "key": lambda: e.there.read(wrong, 0, into),
                "beyond": lambda: e.there.read(region, SIZE, into),
                "end": lambda: e.there.write(region, SIZE - 10, bytes(4096)),
                "write": lambda: e.there.write(region, 0, b"x" * 4096),
                "read": lambda: e.there.read(region, 0, into),
                "publish": lambda: e.there.publish(region, 0, 1),
            }[what]
            with pytest.raises(AccessDenied):
                await tried()
            assert e.memory[:] == bytes(SIZE)
            with pytest.raises(PeerGone):
                await e.there.read(region, 0, into)

    run(work())


def test_misuse_is_refused_before_anything_is_sent(
    make: Callable[[], Awaitable[Transport]],
) -> None:
    async def work() -> None:
        async with ends(make, BOTH) as e:
            into = memoryview(bytearray(8))
            for tried in (
                e.there.read(e.region, -1, into),
                e.there.read(e.region, 0, memoryview(b"readonly")),
                e.there.read(e.region, 0, memoryview(bytearray())),
                e.there.publish(e.region, 4, 1),
                e.there.publish(e.region, 0, 1 << 64),
                e.there.publish(e.region, 0, -1),
            ):
                with pytest.raises(LocalError):
                    await tried
            await e.there.read(e.region, 0, into)

    run(work())


def test_a_region_that_was_taken_away_is_denied(
    make: Callable[[], Awaitable[Transport]],
) -> None:
    async def work() -> None:
        async with ends(make, BOTH) as e:
            reads = [
                asyncio.ensure_future(e.there.read(e.region, 0, memoryview(bytearray(SIZE))))
                for _ in range(8)
            ]
            await asyncio.sleep(0)
            await e.two.unregister(e.region)
            e.memory.close()  # nobody touches it any more
            done = await asyncio.gather(*reads, return_exceptions=True)
            assert all(each is None or isinstance(each, AccessDenied | PeerGone) for each in done)
            with pytest.raises((AccessDenied, PeerGone)):
                await e.there.read(e.region, 0, memoryview(bytearray(8)))
            with pytest.raises(LocalError):
                await e.two.unregister(e.region)

    run(work())


@pytest.mark.parametrize("end", ["own", "other", "transport"])
def test_when_an_end_closes_what_is_under_way_says_that_the_peer_is_gone(
    make: Callable[[], Awaitable[Transport]], end: str
) -> None:
    async def work() -> None:
        async with ends(make, BOTH) as e:
            await e.there.read(e.region, 0, memoryview(bytearray(8)))
            under_way = [
                asyncio.ensure_future(e.there.write(e.region, 0, bytes(SIZE))) for _ in range(20)
            ]
            await asyncio.sleep(0)
            await {"own": e.there, "other": e.back, "transport": e.two}[end].close()
            done = await asyncio.gather(*under_way, return_exceptions=True)
            assert any(isinstance(each, PeerGone) for each in done)
            assert all(each is None or isinstance(each, PeerGone) for each in done)
            with pytest.raises(PeerGone):
                await e.there.read(e.region, 0, memoryview(bytearray(8)))

    run(work())


def test_other_parameters_are_refused(make: Callable[[], Awaitable[Transport]]) -> None:
    async def work() -> None:
        one = await make()
        try:
            for bad in (b"x", b"nothing of this kind" * 4):
                pending = await one.prepare(SECRET)
                with pytest.raises(VersionMismatch):
                    await pending.connect(bad)
                await pending.close()
        finally:
            await one.close()

    run(work())


def test_tcp_lets_nobody_in_without_the_connections_secret() -> None:
    async def work() -> None:
        one, two = await TRANSPORTS["tcp"](), await TRANSPORTS["tcp"]()
        memory = mmap.mmap(-1, SIZE)
        try:
            region = await two.register(address_of(memory), SIZE, BOTH)
            mine, theirs = await one.prepare(b"w" * 32), await two.prepare(SECRET)
            await theirs.connect(mine.parameters)
            there = await mine.connect(theirs.parameters)
            with pytest.raises(PeerGone):
                await there.write(region, 0, b"x")
            assert memory[0] == 0
        finally:
            await one.close()
            await two.close()
            memory.close()

    run(work())


def test_tcp_says_so_when_there_is_no_answer_in_time() -> None:
    """A peer that is stopped: its kernel takes bytes in, and nobody answers."""

    async def work() -> None:
        one = await TcpTransport.open("127.0.0.1", limit_s=0.3)
        silent = socket.create_server(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        try:
            mine = await one.prepare(SECRET)
            theirs = mine.parameters[:24] + port.to_bytes(2, "little") + b"127.0.0.1"
            there = await mine.connect(theirs)
            with pytest.raises(PeerGone, match=r"0\.3 s"):
                await there.read(Region(0, 8, 1), 0, memoryview(bytearray(8)))
        finally:
            await one.close()
            silent.close()

    run(work())
