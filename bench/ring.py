"""One ring between two processes, against what the standard library offers.

Owns the echo and the stream; knows nothing of agents. `round trip`: 64 bytes there and back, one at
a time. `stream`: 64-byte messages one by one, counted by the receiver. Python on both ends.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.context import ForkContext
from types import TracebackType

from bench.measure import Result, interleave
from dsec.ipc import ring, segment
from dsec.ipc.frames import Role

PAYLOAD = bytes(range(64))
RING_BYTES = 1 << 20
LIMIT_S = 20.0
CONTEXT: ForkContext = multiprocessing.get_context("fork")


class Child:
    """A forked process that runs one function; it is killed when the block is left."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                function()
                code = 0
            finally:
                os._exit(code)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


class RingPair:
    """Two rings, one in each direction: role ENV writes here, role POLICY in the child."""

    def __init__(self, spin: int) -> None:
        self.spin = spin
        self.segments = [
            segment.create(f"bench-{role.name}", role, RING_BYTES, epoch=1)
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

    def echo(self) -> None:
        """The child of `round trip`."""
        outbox, reader = self.open(Role.POLICY, Role.ENV)
        while True:
            reader.next(LIMIT_S)
            data = reader.peer.buffer[reader.offset : reader.offset + reader.nbytes]
            offset = outbox.claim(reader.nbytes, LIMIT_S)
            outbox.buffer[offset : offset + reader.nbytes] = data
            outbox.commit(reader.seq, ring.KIND_ACTION, 0, reader.nbytes)
            reader.release()

    def feed(self) -> None:
        """The child of `stream`."""
        outbox, _ = self.open(Role.POLICY, Role.ENV)
        size, seq = len(PAYLOAD), 0
        while True:
            offset = outbox.claim(size, LIMIT_S)
            outbox.buffer[offset : offset + size] = PAYLOAD
            outbox.commit(seq, ring.KIND_ACTION, 0, size)
            seq += 1


def round_trips(stack: ExitStack, count: int) -> dict[str, Callable[[], float]]:
    """Microseconds a round trip, by candidate."""

    def by_ring(spin: int) -> Callable[[], float]:
        pair = RingPair(spin)
        outbox, reader = pair.open(Role.ENV, Role.POLICY)
        stack.enter_context(Child(pair.echo))
        size, seq = len(PAYLOAD), 0

        def measure() -> float:
            nonlocal seq
            start = time.perf_counter()
            for _ in range(count):
                offset = outbox.claim(size, LIMIT_S)
                outbox.buffer[offset : offset + size] = PAYLOAD
                outbox.commit(seq, ring.KIND_OBS, 0, size)
                seq += 1
                reader.next(LIMIT_S)
                bytes(reader.peer.buffer[reader.offset : reader.offset + reader.nbytes])
                reader.release()
            return (time.perf_counter() - start) / count * 1e6

        return measure

    near, far = CONTEXT.Pipe()

    def echo() -> None:
        while True:
            far.send_bytes(far.recv_bytes())

    stack.enter_context(Child(echo))

    def by_pipe() -> float:
        start = time.perf_counter()
        for _ in range(count):
            near.send_bytes(PAYLOAD)
            near.recv_bytes()
        return (time.perf_counter() - start) / count * 1e6

    return {
        "multiprocessing.Pipe": by_pipe,
        "ring, polling then futex (the default)": by_ring(ring.SPIN_DEFAULT),
        "ring, futex at once": by_ring(0),
    }


def streams(stack: ExitStack, count: int) -> dict[str, Callable[[], float]]:
    """Messages a second, by candidate. Both feeders stand still when their buffer is full."""
    pair = RingPair(ring.SPIN_DEFAULT)
    _, reader = pair.open(Role.ENV, Role.POLICY)
    stack.enter_context(Child(pair.feed))
    queue = CONTEXT.Queue(maxsize=1000)

    def feed_queue() -> None:
        while True:
            queue.put(PAYLOAD)

    stack.enter_context(Child(feed_queue))

    def by_ring() -> float:
        start = time.perf_counter()
        for _ in range(count):
            reader.next(LIMIT_S)
            bytes(reader.peer.buffer[reader.offset : reader.offset + reader.nbytes])
            reader.release()
        return count / (time.perf_counter() - start)

    def by_queue() -> float:
        start = time.perf_counter()
        for _ in range(count):
            queue.get(timeout=LIMIT_S)
        return count / (time.perf_counter() - start)

    return {"multiprocessing.Queue": by_queue, "ring": by_ring}


def run(quick: bool) -> list[Result]:
    """Both measurements."""
    rounds, count = (3, 300) if quick else (15, 4000)
    with ExitStack() as stack:
        trips = interleave(round_trips(stack, count), rounds)
    with ExitStack() as stack:
        flows = interleave(streams(stack, count * 20), rounds)
    return [
        Result("round trip, 64 bytes", "µs", trips, "multiprocessing.Pipe", better="lower"),
        Result("stream, 64 bytes, one by one", "messages/s", flows, "multiprocessing.Queue"),
    ]
