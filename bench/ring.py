"""One ring between two processes, against what the standard library and others offer.

Owns the echo and the streams; knows nothing of agents. Python on both ends, and both ends do the
same work whoever carries it: a bytes object goes in, a bytes object of the same content comes out.
`round trip`: 64 bytes there and back, one at a time, both sides awake. `asleep`: the same with
pauses, so that each message finds its receiver asleep. `stream`: 64-byte messages one by one.
`28 KB`: payloads written in place and read as views, against a plain copy of as many bytes to
memory that is in no cache.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.context import ForkContext

import numpy as np

from bench import ring_peers
from bench.measure import Result, interleave, percentile
from bench.processes import Child
from dsec.ipc import ring, segment
from dsec.ipc.frames import Role
from dsec.ipc.messages import Receiver, Sender

PAYLOAD = bytes(range(64))
LARGE = 28 * 1024
RING_BYTES = 1 << 17  # 1,024 records of 64 bytes; other buffers hold about as many
BUFFERED = 2000
LARGE_RING_BYTES = 1 << 21  # 64 records of 28 KB, as an agent's ring has them by default
COLD_BYTES = 256 << 20  # more than the caches of most machines
PAUSE_S = 0.002
LIMIT_S = 20.0
CONTEXT: ForkContext = multiprocessing.get_context("fork")
Trials = dict[str, Callable[[], float]]


class RingPair:
    """Two rings, one in each direction: role ENV writes here, role POLICY in the child."""

    def __init__(self, spin: int = ring.SPIN_DEFAULT, ring_bytes: int = RING_BYTES) -> None:
        self.spin = spin
        self.segments = [
            segment.create(f"bench-{role.name}", role, ring_bytes, epoch=1)
            for role in (Role.ENV, Role.POLICY)
        ]

    def open(self, mine: Role, other: Role) -> tuple[ring.Outbox, ring.Reader]:
        """This side's outbox, and its reader of the other side's."""
        by_role = {Role(each.role): each for each in self.segments}
        outbox = ring.Outbox(by_role[mine].fd, by_role[mine].size, mine)
        peer = ring.Peer(by_role[other].fd, by_role[other].size, other)
        outbox.spin = self.spin
        outbox.add_reader(peer)
        return outbox, ring.Reader(outbox, peer)

    def messages(self, mine: Role, other: Role) -> tuple[Sender, Receiver]:
        """The same for messages of bytes."""
        outbox, reader = self.open(mine, other)
        return Sender(outbox, ring.KIND_OBS), Receiver(reader)

    def echo(self) -> None:
        """A child that sends back what comes."""
        sender, receiver = self.messages(Role.POLICY, Role.ENV)
        put, get = sender.put, receiver.get
        while True:
            put(get(LIMIT_S), LIMIT_S)

    def feed(self) -> None:
        """A child that sends 64 bytes again and again."""
        put = self.messages(Role.POLICY, Role.ENV)[0].put
        while True:
            put(PAYLOAD, LIMIT_S)

    def feed_in_place(self) -> None:
        """The same by the calls that runners use."""
        outbox, _ = self.open(Role.POLICY, Role.ENV)
        claim, commit, buffer = outbox.claim, outbox.commit, outbox.buffer
        size, seq = len(PAYLOAD), 0
        while True:
            offset = claim(size, LIMIT_S)
            buffer[offset : offset + size] = PAYLOAD
            commit(seq, ring.KIND_OBS, 0, size)
            seq += 1

    def feed_large(self) -> None:
        """A child that sends 28 KB again and again."""
        outbox, _ = self.open(Role.POLICY, Role.ENV)
        claim, commit, buffer = outbox.claim, outbox.commit, outbox.buffer
        data, seq = memoryview(bytearray(LARGE)), 0
        while True:
            offset = claim(LARGE, LIMIT_S)
            buffer[offset : offset + LARGE] = data
            commit(seq, ring.KIND_OBS, 0, LARGE)
            seq += 1


def ring_echo(stack: ExitStack, spin: int) -> Callable[[], None]:
    """One round trip through a pair of rings."""
    pair = RingPair(spin)
    sender, receiver = pair.messages(Role.ENV, Role.POLICY)
    stack.enter_context(Child(pair.echo))
    put, get = sender.put, receiver.get

    def trip() -> None:
        put(PAYLOAD, LIMIT_S)
        get(LIMIT_S)

    return trip


def pipe_echo(stack: ExitStack) -> Callable[[], None]:
    """One round trip through a multiprocessing.Pipe."""
    near, far = CONTEXT.Pipe()

    def echo() -> None:
        while True:
            far.send_bytes(far.recv_bytes())

    stack.enter_context(Child(echo))
    send, receive = near.send_bytes, near.recv_bytes

    def trip() -> None:
        send(PAYLOAD)
        receive()

    return trip


def awake(stack: ExitStack, count: int) -> Trials:
    """Microseconds a round trip, one right after the other."""

    def timed(trip: Callable[[], None]) -> Callable[[], float]:
        def measure() -> float:
            start = time.perf_counter()
            for _ in range(count):
                trip()
            return (time.perf_counter() - start) / count * 1e6

        return measure

    return {
        **ring_peers.iceoryx_round_trips(stack, PAYLOAD, count),
        "multiprocessing.Pipe": timed(pipe_echo(stack)),
        "ring, polling then futex (the default)": timed(ring_echo(stack, ring.SPIN_DEFAULT)),
        "ring, futex at once": timed(ring_echo(stack, 0)),
    }


def asleep(stack: ExitStack, count: int) -> Trials:
    """The slowest of 100 round trips, in microseconds, with a pause before each."""

    def paced(trip: Callable[[], None]) -> Callable[[], float]:
        def measure() -> float:
            took = []
            for _ in range(count):
                time.sleep(PAUSE_S)
                start = time.perf_counter()
                trip()
                took.append(time.perf_counter() - start)
            return percentile(took, 0.99) * 1e6

        return measure

    return {
        "multiprocessing.Pipe": paced(pipe_echo(stack)),
        "ring, polling then futex (the default)": paced(ring_echo(stack, ring.SPIN_DEFAULT)),
        "ring, futex at once": paced(ring_echo(stack, 0)),
    }


def streams(stack: ExitStack, count: int) -> Trials:
    """Messages a second, one by one. All feeders stand still when their buffer is full."""
    queue = CONTEXT.Queue(maxsize=1000)

    def feed_queue() -> None:
        while True:
            queue.put(PAYLOAD)

    def counted(get: Callable[[], object]) -> Callable[[], float]:
        def measure() -> float:
            for _ in range(BUFFERED):  # what was sent while nobody measured
                get()
            start = time.perf_counter()
            for _ in range(count):
                get()
            return count / (time.perf_counter() - start)

        return measure

    pair, in_place = RingPair(), RingPair()
    receiver = pair.messages(Role.ENV, Role.POLICY)[1]
    _, reader = in_place.open(Role.ENV, Role.POLICY)
    buffer = reader.peer.buffer

    def next_in_place() -> None:
        reader.next(LIMIT_S)
        buffer[reader.offset : reader.offset + reader.nbytes].tobytes()
        reader.release()

    trials = {
        "multiprocessing.Queue": counted(queue.get),
        **ring_peers.fifo_streams(stack, PAYLOAD, count, BUFFERED),
        "ring": counted(partial(receiver.get, LIMIT_S)),
        "ring, by the calls of runners": counted(next_in_place),
    }
    for feeder in (feed_queue, pair.feed, in_place.feed_in_place):
        stack.enter_context(Child(feeder))
    return trials


def bursts(stack: ExitStack, count: int) -> Trials:
    """Messages a second where the reader takes all that is there, up to 256."""
    pair = RingPair()
    receiver = pair.messages(Role.ENV, Role.POLICY)[1]
    stack.enter_context(Child(pair.feed))

    def measure() -> float:
        got = -BUFFERED
        while got < 0:
            got += len(receiver.get_many(LIMIT_S))
        got, start = 0, time.perf_counter()
        while got < count:
            got += len(receiver.get_many(LIMIT_S))
        return got / (time.perf_counter() - start)

    return {**ring_peers.fifo_bursts(stack, PAYLOAD, count, BUFFERED), "ring": measure}


def large(stack: ExitStack, count: int) -> Trials:
    """Payloads of 28 KB a second."""

    def received(use: Callable[[memoryview], object]) -> Callable[[], float]:
        pair = RingPair(ring_bytes=LARGE_RING_BYTES)
        _, reader = pair.open(Role.ENV, Role.POLICY)
        buffer = reader.peer.buffer
        child = stack.enter_context(Child(pair.feed_large))

        def measure() -> float:
            for _ in range(LARGE_RING_BYTES // LARGE):
                reader.next(LIMIT_S)
                reader.release()
            start = time.perf_counter()
            for _ in range(count):
                reader.next(LIMIT_S)
                use(buffer[reader.offset : reader.offset + reader.nbytes])
                reader.release()
            return count / (time.perf_counter() - start)

        return child.measured(measure)

    mine = memoryview(bytearray(LARGE))

    def copy_out(view: memoryview) -> None:
        mine[:] = view

    trials = {
        "ring, read as a view": received(lambda view: view[0]),
        "ring, copied out by its reader": received(copy_out),
    }
    # Only now: what is there at a fork is copied once more at its first change.
    cold = memoryview(np.full(COLD_BYTES, 1, np.uint8)).cast("B")  # every page touched before
    data = memoryview(bytearray(LARGE))
    at = 0

    def copy() -> float:
        nonlocal at
        start = time.perf_counter()
        for _ in range(count):
            cold[at : at + LARGE] = data
            at = (at + LARGE) % (COLD_BYTES - LARGE)
        return count / (time.perf_counter() - start)

    return {"copy to cold memory, one process": copy, **trials}


def run(quick: bool) -> list[Result]:
    """All of them."""
    rounds, count = (3, 300) if quick else (15, 4000)
    found = {}
    for measure, number in (
        (awake, count),
        (asleep, count // 40 + 50),
        (streams, max(count * 20, 40_000)),
        (bursts, max(count * 40, 40_000)),
        (large, count),
    ):
        with ExitStack() as stack:
            found[measure] = interleave(measure(stack, number), rounds)
    default, copied = "ring, polling then futex (the default)", "ring, copied out by its reader"
    name, unit, note = "stream, 64 bytes, one by one", "messages/s", ring_peers.missing()
    peer = next(iter(found[awake]))
    results = [
        Result("round trip, 64 bytes, both awake", "µs", found[awake], peer, "lower",
               {default: 2.5} if peer.startswith("iceoryx2") else {}, note),
        Result("round trip, 64 bytes, both asleep: the p99 of a round", "µs", found[asleep],
               "multiprocessing.Pipe", "lower", {default: 1.0, "ring, futex at once": 1.0},
               f"A pause of {PAUSE_S * 1e3:g} ms before each."),
        Result(name, unit, found[streams], "multiprocessing.Queue", target={"ring": 10.0},
               note=note),
    ]  # fmt: skip
    if "faster-fifo" in found[streams]:
        against = {key: value for key, value in found[streams].items() if "multi" not in key}
        results.append(Result(name, unit, against, "faster-fifo", target={"ring": 3.0}))
    first = next(iter(found[bursts]))
    results += [
        Result("stream, 64 bytes, the reader takes what is there", unit, found[bursts], first),
        Result("28 KB", "payloads/s", found[large], next(iter(found[large])),
               target={copied: 0.8, "ring, read as a view": 0.8},
               note="A ring of 2 MB. The writer writes every byte of every payload."),
    ]  # fmt: skip
    return results
