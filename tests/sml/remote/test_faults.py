"""What can go wrong between two hosts: each is noticed, has a name, and is survived by the host."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dsec.errors import (
    AtomTorn,
    FencedOut,
    FrameError,
    LocalError,
    MachineError,
    PeerGone,
    PoolAbsent,
    PoolOwned,
    RemotePoolError,
    StaleLease,
    VersionMismatch,
    WrongToken,
)
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool
from dsec.sml.remote import wire
from dsec.sml.remote.handshake import read_token
from dsec.sml.remote.node import Node
from dsec.sml.remote.peer import Peer, RemoteSeat, RemoteView
from dsec.sml.remote.stream import Stream, greet
from dsec.sml.remote.tcp import TcpTransport
from dsec.sml.remote.transport import Region
from dsec.sml.remote.words import seal
from tests.sml.backends import TOKEN, OneShelf

LEASE_S = 0.6


class World:
    """A host, and what happened there."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.shelf = OneShelf()
        self.name = f"test-{uuid.uuid4().hex}"
        self.transports: list[TcpTransport] = []
        self.peers: list[Peer] = []

    async def begin(self, lease_s: float) -> None:
        self.node = Node(
            await TcpTransport.open("127.0.0.1"), TOKEN, self.shelf, lease_s=lease_s,
            event=lambda what, **facts: self.events.append((what, facts)),
        )  # fmt: skip
        self.host, self.port = await self.node.start("127.0.0.1")

    async def peer(self, token: bytes = TOKEN) -> Peer:
        transport = await TcpTransport.open("127.0.0.1", limit_s=1.0)
        self.transports.append(transport)
        peer = await Peer.connect(self.host, self.port, token, transport)
        self.peers.append(peer)
        return peer

    async def seat(self, peer: Peer, *, make: bool = True) -> RemoteSeat:
        wanted = wire.Seat(self.name, 1 << 20, 64, persist=False, space=(1, 2), make=make)
        return await RemoteSeat.take(peer, wanted)

    async def happened(self, what: str) -> dict[str, Any]:
        """The facts of an event, which has to come within five seconds."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for known, facts in self.events:
                if known == what:
                    return facts
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {what} among {self.events}")

    async def end(self) -> None:
        for peer in self.peers:
            await peer.close()
        for transport in self.transports:
            await transport.close()
        await self.node.close()
        if (Path("/dev/shm") / f"dsec-pool-{self.name}").exists():
            with ShmPool.adopt(self.name) as pool:
                pool.unlink()


@asynccontextmanager
async def world(lease_s: float = 20.0) -> AsyncIterator[World]:
    made = World()
    await made.begin(lease_s)
    try:
        yield made
    finally:
        await made.end()


def scenario(work: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(limited())


def test_a_wrong_token_is_named_on_both_sides_and_tells_nothing() -> None:
    async def work() -> None:
        async with world() as w:
            with pytest.raises(WrongToken):
                await w.peer(b"another token, as long as it has to be")
            assert (await w.happened("refused"))["kind"] == "WrongToken"
            await w.peer()

    scenario(work)


def test_another_protocol_version_is_named_on_both_sides() -> None:
    async def work() -> None:
        async with world() as w:
            reader, writer = await asyncio.open_connection(w.host, w.port)
            stream = Stream(reader, writer, server=False)
            await stream.send(wire.Hello(99, b"n" * 32))
            answer = (await stream.receive(5.0)).message
            assert isinstance(answer, wire.Refused)
            assert answer.kind == "VersionMismatch"
            assert (await w.happened("refused"))["kind"] == "VersionMismatch"
            await stream.close()
            with pytest.raises(VersionMismatch):
                raise wire.raised(answer)

    scenario(work)


def test_what_is_no_frame_ends_that_session_and_no_other() -> None:
    async def work() -> None:
        async with world() as w:
            good = await w.peer()
            reader, writer = await asyncio.open_connection(w.host, w.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read(100) == b""
            writer.close()
            bad = Stream(*await asyncio.open_connection(w.host, w.port), server=False)
            await greet(bad, TOKEN)
            await bad.send(wire.Joined(b"", 1.0))
            with pytest.raises(PeerGone):
                await bad.receive(5.0)
            await bad.close()
            await good.ask(wire.Renew(7), wire.Renewed)
            with pytest.raises(FrameError):
                await good.ask(wire.Renew(7), wire.Done)

    scenario(work)


def test_half_a_write_of_a_peer_that_died_is_never_looked_at_and_is_named() -> None:
    async def work() -> None:
        async with world() as w:
            peer = await w.peer()
            seat = await w.seat(peer)
            await seat.put(Label(1), b"whole" * 100)
            slot = await peer.ask(wire.Slot(w.name, 5000), wire.Leased)
            head = seal(Label(2), slot.generation, b"y" * 5000)
            await peer.link.write(Region(slot.address, slot.length, slot.key), 0, head + b"y" * 99)
            with pytest.raises(AtomTorn, match="not published"):
                await peer.ask(wire.Take(w.name, slot.slot), wire.Done)
            await peer.close()
            assert (await w.happened("half a write"))["kind"] == "AtomTorn"
            heir = await w.peer()
            again = await w.seat(heir, make=False)
            view = await RemoteView.attach(heir, w.name)
            assert [each.label.id for each in await view.entries()] == [1]
            await again.put(Label(2), b"other")
            assert await view.get(2) == b"other"

    scenario(work)


def test_bytes_that_are_not_what_was_to_be_written_are_called_torn() -> None:
    async def work() -> None:
        async with world() as w:
            peer = await w.peer()
            await w.seat(peer)
            slot = await peer.ask(wire.Slot(w.name, 5000), wire.Leased)
            head = seal(Label(2), slot.generation, b"y" * 5000)
            room = Region(slot.address, slot.length, slot.key)
            words = Region(slot.words_address, slot.words_length, slot.words_key)
            await peer.link.write(room, 0, head + b"y" * 4999 + b"z")
            await peer.link.publish(words, slot.word_offset, slot.generation)
            with pytest.raises(AtomTorn, match="not what was to be written"):
                await peer.ask(wire.Take(w.name, slot.slot), wire.Done)

    scenario(work)


def test_what_was_published_and_not_taken_when_its_writer_died_counts() -> None:
    async def work() -> None:
        async with world() as w:
            peer = await w.peer()
            await w.seat(peer)
            slot = await peer.ask(wire.Slot(w.name, 50), wire.Leased)
            room = Region(slot.address, slot.length, slot.key)
            words = Region(slot.words_address, slot.words_length, slot.words_key)
            sealed = seal(Label(2), slot.generation, b"y" * 50) + b"y" * 50
            await peer.link.write(room, 0, sealed)
            await peer.link.publish(words, slot.word_offset, slot.generation)
            await peer.close()
            assert (await w.happened("taken late"))["atom"] == 2

    scenario(work)


def test_a_silent_peer_loses_its_lease_and_knows_it_by_its_own_clock() -> None:
    async def work() -> None:
        async with world(LEASE_S) as w:
            peer = await w.peer()
            seat = await w.seat(peer)
            await seat.put(Label(1), b"before")
            view = await RemoteView.attach(peer, w.name)
            for task in peer._tasks:  # stopped, as by SIGSTOP: it renews nothing any more
                task.cancel()
            await asyncio.sleep(LEASE_S / 2)
            assert not peer.alive
            with pytest.raises(StaleLease, match="may be used for"):
                await view.get(1)
            with pytest.raises(StaleLease):
                await seat.put(Label(2), b"too late")
            await w.happened("session over")
            heir = await w.peer()
            await w.seat(heir, make=False)
            with pytest.raises(PeerGone):
                await peer.link.read(Region(0, 8, 1), 0, memoryview(bytearray(8)))

    scenario(work)


def test_one_writer_at_a_time_and_pools_that_are_not_there() -> None:
    async def work() -> None:
        async with world() as w:
            one, two = await w.peer(), await w.peer()
            with pytest.raises(PoolAbsent):
                await w.seat(one, make=False)
            with pytest.raises(PoolAbsent):
                await RemoteView.attach(one, "nothing")
            seat = await w.seat(one)
            with pytest.raises(PoolOwned, match="is written by"):
                await w.seat(two)
            with pytest.raises(FencedOut):
                await two.ask(wire.Free(w.name, 1), wire.Done)
            await seat.rise()
            with pytest.raises(FencedOut):
                await seat.put(Label(1), b"x")
            await w.seat(two, make=False)

    scenario(work)


def test_memory_goes_only_when_no_reader_can_reach_it() -> None:
    async def work() -> None:
        async with world(LEASE_S) as w:
            writer, reader = await w.peer(), await w.peer()
            seat = await w.seat(writer)
            await seat.put(Label(1), b"x" * 1000)
            view = await RemoteView.attach(reader, w.name)
            gone = asyncio.ensure_future(w.node.withdraw(w.name))
            while w.name not in reader.closing:
                assert await view.get(1) == b"x" * 1000
            assert await view.get(1) == b"x" * 1000
            await view.detach()
            await gone
            with pytest.raises(RemotePoolError):
                await view.get(1)

    scenario(work)


def test_another_transport_is_refused_by_name() -> None:
    async def work() -> None:
        async with world() as w:
            stream = Stream(*await asyncio.open_connection(w.host, w.port), server=False)
            await greet(stream, TOKEN)
            await stream.send(wire.Join("verbs", b"x"), 1)
            answer = (await stream.receive(5.0)).message
            assert isinstance(answer, wire.Refused)
            with pytest.raises(LocalError, match=r"by tcp, not by verbs: pool\.backend"):
                raise wire.raised(answer)
            await stream.close()

    scenario(work)


def test_a_token_file_is_secret_and_long(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(MachineError, match="can't read"):
        read_token(path)
    path.write_text("short\n")
    path.chmod(0o644)
    with pytest.raises(MachineError, match="others may read"):
        read_token(path)
    path.chmod(0o600)
    with pytest.raises(MachineError, match="5 bytes; at least 16"):
        read_token(path)
    path.write_text("0123456789abcdef\n")
    assert read_token(path) == b"0123456789abcdef"
