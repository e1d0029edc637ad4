"""Control channels over real socket pairs: the asyncio face, on uvloop and on asyncio alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop

from dsec.errors import (
    ChannelClosed,
    ChannelOverflow,
    FrameError,
    LocalError,
    MachineError,
    PeerError,
)
from dsec.ipc import async_channel, datagrams, frames
from dsec.ipc.async_channel import AsyncChannel
from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import FRAME_BYTES_MAX, AnyFrame, Drain, Hello
from tests.ipc.wire import (
    close_all,
    descriptors,
    identity,
    memfds,
    no_descriptors_left,
    send_raw,
)

LARGE = Drain("x" * (FRAME_BYTES_MAX - 100))
WAIT_S = 10.0


@pytest.fixture(scope="module", autouse=True)
def libuv_started() -> None:
    """Open the pipe that libuv keeps for the life of the process, before leaks are looked for."""
    uvloop.new_event_loop().close()


async def readable(sock: socket.socket) -> None:
    """Return once something is there to read, without reading it."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    loop.add_reader(sock.fileno(), there.set)
    try:
        async with asyncio.timeout(WAIT_S):
            await there.wait()
    finally:
        loop.remove_reader(sock.fileno())


class Side:
    """An AsyncChannel that keeps what it gets."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[tuple[AnyFrame, list[int]]] = []
        self.ended: asyncio.Future[PeerError | None] = asyncio.get_running_loop().create_future()
        self.more = asyncio.Event()
        self.channel = AsyncChannel(sock, self._frame, self._end)

    def _frame(self, frame: AnyFrame, fds: list[int]) -> None:
        self.frames.append((frame, fds))
        self.more.set()

    def _end(self, reason: PeerError | None) -> None:
        assert self.channel.closed
        self.ended.set_result(reason)

    async def until(self, count: int) -> list[AnyFrame]:
        async with asyncio.timeout(WAIT_S):
            while len(self.frames) < count:
                self.more.clear()
                await self.more.wait()
        return [frame for frame, _ in self.frames]

    async def end(self) -> PeerError | None:
        async with asyncio.timeout(WAIT_S):
            return await self.ended


Body = Callable[[Side, socket.socket], Awaitable[None]]


@pytest.fixture(params=["uvloop", "asyncio"])
def with_side(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Run a test body on a loop, with one asyncio side and the bare socket of the other."""

    async def main(body: Body) -> None:
        problems: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: problems.append(context))
        ours, theirs = pair()
        with theirs:
            side = Side(ours)
            try:
                await body(side, theirs)
            finally:
                side.channel.close()
        assert not problems

    def run(body: Body) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(body))

    return run


Run = Callable[[Body], None]


def test_frames_and_descriptors_cross(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        peer = Channel(theirs)
        files = memfds(2)
        want = [identity(fd) for fd in files]
        assert side.channel.send(Hello(1), files)
        peer.send(Hello(2), files)
        close_all(files)
        assert await side.until(1) == [Hello(2)]
        frame, got = peer.recv(WAIT_S)
        assert frame == Hello(1)
        for fds in (got, side.frames[0][1]):
            assert [identity(fd) for fd in fds] == want
            close_all(fds)

    with_side(body)


def test_the_end_comes_after_the_last_frame(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        side.channel.send(Drain("never read"))
        for i in range(50):
            send_raw(theirs, frames.encode(Hello(i)))
        theirs.close()
        side.channel.send(Drain("to the dead"))
        assert await side.end() is None
        assert [frame for frame, _ in side.frames] == [Hello(i) for i in range(50)]
        assert not side.channel.send(Hello(1))

    with_side(body)


@pytest.mark.parametrize("nonsense", [b"\x00", b"\xff" * 100, bytes(FRAME_BYTES_MAX + 1)])
@pytest.mark.guarantee("G9")
def test_garbage_closes_the_channel_with_its_reason(with_side: Run, nonsense: bytes) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        files = memfds(1)
        send_raw(theirs, frames.encode(Hello(1)))
        send_raw(theirs, nonsense, files)
        close_all(files)
        before = descriptors()
        assert isinstance(await side.end(), FrameError)
        assert [frame for frame, _ in side.frames] == [Hello(1)]
        assert len(descriptors()) < len(before)

    with_side(body)


def test_too_many_descriptors_close_the_channel(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        files = memfds(1)
        send_raw(theirs, frames.encode(Hello(1)), files * 17)
        close_all(files)
        assert isinstance(await side.end(), FrameError)
        assert not side.frames

    with_side(body)


def test_a_slow_reader_gets_everything_in_order(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        peer = Channel(theirs)
        count = 0
        while not side.channel.queued:
            assert side.channel.send(Hello(count))
            count += 1
        (file,) = memfds(1)
        want = identity(file)
        for _ in range(40):
            assert side.channel.send(Hello(count), [file])
            count += 1
        os.close(file)
        assert side.channel.queued == 41
        for i in range(count):
            await readable(theirs)
            frame, fds = peer.recv(0.0)
            assert frame == Hello(i)
            assert [identity(fd) for fd in fds] == ([want] if i >= count - 40 else [])
            close_all(fds)
        assert side.channel.queued == 0

    with_side(body)


@pytest.mark.parametrize("frame", [Hello(1), LARGE], ids=["many", "large"])
def test_a_peer_that_never_reads_overflows(with_side: Run, frame: AnyFrame) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        (file,) = memfds(1)
        accepted = 0
        while side.channel.send(frame, [file]):
            accepted += 1
            assert accepted < 100_000
        os.close(file)
        assert side.channel.closed and not side.ended.done()
        reason = await side.end()
        assert isinstance(reason, ChannelOverflow)
        assert "doesn't read" in str(reason)

    before = descriptors()
    with_side(body)
    assert descriptors() == before


def test_closing_drops_the_queue_and_its_descriptors(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        before = descriptors()
        (file,) = memfds(1)
        while side.channel.queued < 10:
            side.channel.send(Hello(1), [file])
        os.close(file)
        assert len(descriptors()) > len(before)
        side.channel.close()
        side.channel.close()
        assert len(descriptors()) == len(before) - 1
        assert not side.channel.send(Hello(1))
        await asyncio.sleep(0)
        assert not side.ended.done()

    with_side(body)


def test_a_peer_that_dies_with_our_queue_full_leaves_nothing(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        (file,) = memfds(1)
        while side.channel.queued < 10:
            side.channel.send(Hello(1), [file])
        os.close(file)
        send_raw(theirs, frames.encode(Hello(2)))
        theirs.close()
        assert await side.end() is None
        assert [frame for frame, _ in side.frames] == [Hello(2)]
        assert side.channel.queued == 0

    before = descriptors()
    with_side(body)
    assert descriptors() == before


def test_one_wake_up_reads_a_bounded_number_of_frames(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        for i in range(100):
            send_raw(theirs, frames.encode(Hello(i)))
        seen = [0]
        while seen[-1] < 100:
            await asyncio.sleep(0)
            seen.append(len(side.frames))
        assert max(b - a for a, b in itertools.pairwise(seen)) <= 2 * (
            async_channel.FRAMES_PER_WAKE_MAX
        )

    with_side(body)


def test_closing_inside_on_frame_delivers_no_more(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        side.channel.close()
        got: list[AnyFrame] = []
        first = asyncio.Event()
        ours, other = pair()

        def take(frame: AnyFrame, fds: list[int]) -> None:
            got.append(frame)
            again.close()
            first.set()

        again = AsyncChannel(ours, take, lambda reason: got.append(Hello(-1)))
        send_raw(other, frames.encode(Hello(1)))
        send_raw(other, frames.encode(Hello(2)))
        async with asyncio.timeout(WAIT_S):
            await first.wait()
        await asyncio.sleep(0)
        assert got == [Hello(1)]
        other.close()

    with_side(body)


def test_misuse_raises_at_the_caller(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        (file,) = memfds(1)
        with pytest.raises(LocalError, match="17 descriptors"):
            side.channel.send(Hello(1), [file] * 17)
        with pytest.raises(FrameError, match="at most"):
            side.channel.send(Drain("x" * FRAME_BYTES_MAX))
        os.close(file)
        with pytest.raises(LocalError, match="can't send"):
            side.channel.send(Hello(1), [file])
        while not side.channel.queued:
            side.channel.send(Hello(1))
        with pytest.raises(LocalError, match="can't keep"):
            side.channel.send(Hello(1), [file])
        (good,) = memfds(1)
        with no_descriptors_left(), pytest.raises(MachineError, match="1 more descriptors"):
            side.channel.send(Hello(1), [good])
        os.close(good)
        assert not side.channel.closed

    with_side(body)


def test_a_queued_frame_that_the_kernel_refuses_closes_the_channel(with_side: Run) -> None:
    async def body(side: Side, theirs: socket.socket) -> None:
        while not side.channel.queued:
            side.channel.send(Hello(1))
        side.channel.send(LARGE)
        with socket.socket(fileno=os.dup(side.channel.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer = Channel(theirs)
        while not side.ended.done():
            if peer.pending():
                with contextlib.suppress(ChannelClosed):
                    peer.recv(0.0)
            await asyncio.sleep(0)
        reason = await side.end()
        assert type(reason) is PeerError and "Message too long" in str(reason)

    with_side(body)


def test_a_shortage_in_the_kernel_is_waited_out(
    with_side: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ETOOMANYREFS needs an unprivileged sender with thousands of descriptors in flight.
    short = [3]

    def sendmsg(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
        if short[0]:
            short[0] -= 1
            raise OSError(errno.ETOOMANYREFS, "Too many references")
        datagrams.sendmsg(sock, data, fds)

    monkeypatch.setattr(async_channel, "sendmsg", sendmsg)

    async def body(side: Side, theirs: socket.socket) -> None:
        short[0] = 3
        for i in range(3):
            assert side.channel.send(Hello(i))
        assert side.channel.queued == 3
        peer = Channel(theirs)
        await readable(theirs)
        assert [peer.recv(WAIT_S)[0] for _ in range(3)] == [Hello(i) for i in range(3)]
        assert short[0] == 0

    with_side(body)
