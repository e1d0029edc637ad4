"""What others offer for the same work as a ring, as far as it is installed: iceoryx2, faster-fifo.

Owns their set-up, each in the way its documentation shows, with the shortest path it has from
bytes to bytes. Both come with `[bench]`; what is not installed is left out, and `missing` says so.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.processes import Child

WANTED = {"iceoryx2": "iceoryx2", "faster-fifo": "faster_fifo"}
LIMIT_S = 20.0
FIFO_BYTES = 100_000
LAST = 255  # the first byte of the message that ends an echo


def module(package: str) -> Any:
    """The package's module, or None where it is not installed."""
    try:
        return importlib.import_module(WANTED[package])
    except ImportError:
        return None


def missing() -> str:
    """A sentence that names what is not installed; empty if all is."""
    absent = [package for package in WANTED if module(package) is None]
    return f"Not installed, hence left out: {', '.join(absent)}." if absent else ""


class Message(ctypes.Structure):
    """64 bytes as iceoryx2 sends them: a structure of fixed size."""

    _fields_ = (("data", ctypes.c_uint8 * 64),)


class Iceoryx:
    """One side of two publish-subscribe services of iceoryx2, one in each direction.

    Its files lie in a folder and under a prefix of this benchmark's own, and go with `close`.

    Args:
        folder: for its files.
        mine, other: the services that this side writes and reads.
        wait: called between two looks at an empty service.
    """

    def __init__(self, folder: str, mine: str, other: str, wait: Callable[[], None]) -> None:
        api = module("iceoryx2")
        api.set_log_level(api.LogLevel.Fatal)
        config = api.config.default()
        config.global_cfg.root_path = api.Path.new(folder)
        self.prefix = f"{Path(folder).name}-"
        config.global_cfg.prefix = api.FileName.new(self.prefix)
        self.node = api.NodeBuilder.new().config(config).create(api.ServiceType.Ipc)
        self.wait = wait
        services = []
        for name in (mine, other):
            builder = self.node.service_builder(api.ServiceName.new(name))
            services.append(builder.publish_subscribe(Message).open_or_create())
        self.publisher = services[0].publisher_builder().create()
        self.subscriber = services[1].subscriber_builder().create()

    def send(self, data: bytes) -> None:
        """Loan a sample, copy 64 bytes into it, send it."""
        self.publisher.loan_uninit().write_payload(Message.from_buffer_copy(data)).send()

    def receive(self) -> bytes:
        """Poll until a sample is there, and copy it."""
        receive = self.subscriber.receive
        while (sample := receive()) is None:
            self.wait()
        return ctypes.string_at(sample.payload_ptr, 64)

    def meet(self, payload: bytes) -> None:
        """Send until the other side answers: what is sent before it listens is lost."""
        deadline = time.monotonic() + LIMIT_S
        while self.subscriber.receive() is None:
            if time.monotonic() > deadline:
                raise RuntimeError("iceoryx2's other side doesn't answer")
            self.send(payload)
            time.sleep(0.05)
        while self.subscriber.receive() is not None:
            pass

    def close(self) -> None:
        """Take its files away."""
        self.publisher.delete()
        self.subscriber.delete()
        del self.publisher, self.subscriber, self.node
        for left in Path("/dev/shm").glob(f"{self.prefix}*"):
            left.unlink(missing_ok=True)  # one file stays behind whoever closes last


def iceoryx_round_trips(
    stack: ExitStack, payload: bytes, count: int
) -> dict[str, Callable[[], float]]:
    """Microseconds a round trip, both sides polling: without a pause, and yielding to others."""
    if module("iceoryx2") is None:
        return {}

    def by(wait: Callable[[], None]) -> Callable[[], float]:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dsec-bench-"))

        def echo() -> None:
            there = Iceoryx(folder, "there", "here", wait)
            while (data := there.receive())[0] != LAST:
                there.send(data)
            there.close()

        child = Child(echo, lambda: here.send(bytes([LAST]) * 64))
        here = Iceoryx(folder, "here", "there", wait)
        stack.callback(here.close)
        stack.enter_context(child)
        here.meet(payload)

        def measure() -> float:
            start = time.perf_counter()
            for _ in range(count):
                here.send(payload)
                here.receive()
            return (time.perf_counter() - start) / count * 1e6

        return child.measured(measure)

    return {
        "iceoryx2, polling": by(lambda: None),
        "iceoryx2, polling with sched_yield": by(os.sched_yield),
    }


def fifo_streams(
    stack: ExitStack, payload: bytes, count: int, buffered: int
) -> dict[str, Callable[[], float]]:
    """Messages a second through faster-fifo, as it is and without its pickling."""
    api = module("faster-fifo")
    if api is None:
        return {}
    found: dict[str, Callable[[], float]] = {}
    for label, codec in (
        ("faster-fifo", {}),
        ("faster-fifo, bytes as they are", {"loads": bytes, "dumps": bytes}),
    ):
        fifo = api.Queue(max_size_bytes=FIFO_BYTES, **codec)

        def feed(fifo: Any = fifo) -> None:
            while True:
                fifo.put(payload)

        child = stack.enter_context(Child(feed))

        def measure(fifo: Any = fifo) -> float:
            for _ in range(buffered):
                fifo.get()
            start = time.perf_counter()
            for _ in range(count):
                fifo.get()
            return count / (time.perf_counter() - start)

        found[label] = child.measured(measure)
    return found


def fifo_bursts(
    stack: ExitStack, payload: bytes, count: int, buffered: int
) -> dict[str, Callable[[], float]]:
    """The same where the reader takes all that is there."""
    api = module("faster-fifo")
    if api is None:
        return {}
    fifo = api.Queue(max_size_bytes=FIFO_BYTES, loads=bytes, dumps=bytes)

    def feed() -> None:
        while True:
            fifo.put(payload)

    child = stack.enter_context(Child(feed))

    def measure() -> float:
        got = -buffered
        while got < 0:
            got += len(fifo.get_many(max_messages_to_get=256))
        got, start = 0, time.perf_counter()
        while got < count:
            got += len(fifo.get_many(max_messages_to_get=256))
        return got / (time.perf_counter() - start)

    return {"faster-fifo, bytes as they are": child.measured(measure)}
