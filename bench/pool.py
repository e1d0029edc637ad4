"""The pool on shm and tcp: GB/s of atoms, beside a plain memcpy and a plain copy through a socket.

Owns the other host, which is a process of this machine: what goes between the two goes over
loopback, so the figures are of the code and the processor, not of a network.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.measure import Result, interleave
from dsec.errors import PoolAbsent
from dsec.sml.pool import Label, Pool, PoolReader
from dsec.sml.pool_shm import ShmPool, ShmReader
from dsec.sml.remote import wire
from dsec.sml.remote.node import Node
from dsec.sml.remote.pool import Place, RemotePool, RemoteReader
from dsec.sml.remote.tcp import TcpTransport
from dsec.sml.remote.tcp_link import fill

ATOMS = 64
ROUNDS, ROUNDS_QUICK = 15, 2
TOKEN = secrets.token_bytes(32)
SIZES = {"16 KB": 16 << 10, "256 KB": 256 << 10, "4 MB": 4 << 20}


def run(quick: bool) -> list[Result]:
    """One table for reading and one for writing, for each size of atoms."""
    sizes = list(SIZES.items())[1:2] if quick else SIZES.items()
    rounds = ROUNDS_QUICK if quick else ROUNDS
    return [each for name, nbytes in sizes for each in _measure(name, nbytes, rounds)]


def _measure(name: str, nbytes: int, rounds: int) -> list[Result]:
    body = secrets.token_bytes(nbytes)
    count = max(4, min(ATOMS, (64 << 20) // nbytes))
    with _host(nbytes, count) as (place, pool_name, plain), _local(nbytes, count) as local:
        local_reader = ShmReader(local.name)
        far_reader = RemoteReader(place, pool_name)
        far = RemotePool(place, wire.Seat(f"{pool_name}-w", 2 * count * nbytes + (1 << 20), 4096,
                                          persist=False, space=(1, 2)))  # fmt: skip
        link = socket.create_connection(plain)
        try:
            into = bytearray(nbytes)
            reads: dict[str, Callable[[], float]] = {
                "memcpy": lambda: _paced(nbytes, count, lambda n: bytes(memoryview(body))),
                "socket": lambda: _paced(nbytes, count, lambda n: _pull(link, into)),
                "shm": lambda: _read(local_reader, nbytes, count),
                "tcp": lambda: _read(far_reader, nbytes, count),
            }
            writes: dict[str, Callable[[], float]] = {
                "memcpy": reads["memcpy"],
                "socket": reads["socket"],
                "shm": lambda: _write(local, body, count),
                "tcp": lambda: _write(far, body, count),
            }
            note = f"{count} atoms of {name} a round; the other host is a process over loopback."
            return [
                Result(f"reading, {name}", "GB/s", interleave(reads, rounds), "memcpy", note=note),
                Result(f"writing, {name}", "GB/s", interleave(writes, rounds), "memcpy", note=note),
            ]
        finally:
            link.close()
            far.close()
            far_reader.close()
            local_reader.close()


def _paced(nbytes: int, count: int, step: Callable[[int], Any]) -> float:
    start = time.perf_counter()
    for number in range(count):
        step(number)
    return nbytes * count / (time.perf_counter() - start) / 1e9


def _read(pool: PoolReader, nbytes: int, count: int) -> float:
    return _paced(nbytes, count, pool.get)


def _write(pool: Pool, body: bytes, count: int) -> float:
    first = time.time_ns() & ((1 << 61) - 1)
    found = _paced(len(body), count, lambda n: pool.put(Label(first + n), body))
    for number in range(count):
        pool.free(first + number)
    return found


def _pull(link: socket.socket, into: bytearray) -> None:
    """Ask for one body, and take it in: a copy through a socket and nothing else."""
    link.sendall(b"?")
    view, done = memoryview(into), 0
    while done < len(into):
        done += link.recv_into(view[done:])


@contextmanager
def _local(nbytes: int, count: int) -> Iterator[ShmPool]:
    name = f"bench-{uuid.uuid4().hex}"
    with ShmPool.create(name, 4 * count * nbytes + (1 << 20), atoms_max=4096) as pool:
        for number in range(count):
            pool.put(Label(number), secrets.token_bytes(nbytes))
        try:
            yield pool
        finally:
            pool.unlink()


@contextmanager
def _host(nbytes: int, count: int) -> Iterator[tuple[Place, str, tuple[str, int]]]:
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(far, TOKEN, nbytes, count))
    process.start()
    try:
        name, port, plain = near.recv()
        place = Place("127.0.0.1", port, TOKEN, lambda: TcpTransport.open("127.0.0.1"))
        yield place, name, ("127.0.0.1", plain)
    finally:
        near.send(None)
        process.join(30)


class _Shelf:
    """The pool to be read, and those that are to be written."""

    def __init__(self, pool: ShmPool) -> None:
        self._pool = pool

    def find(self, name: str) -> ShmPool:
        if name != self._pool.name:
            raise PoolAbsent(f"there is no pool {name}", "")
        return self._pool

    def seat(self, wanted: wire.Seat, pool: ShmPool | None) -> ShmPool:
        return ShmPool.create(wanted.pool, wanted.size, atoms_max=wanted.atoms_max)

    def left(self, name: str, pool: ShmPool) -> None:
        if pool is not self._pool:
            pool.unlink()
            pool.close()

    def stored(self, name: str, label: Label) -> None:
        pass

    async def asked(self, peer: str, what: dict[str, Any]) -> dict[str, Any]:
        return what


def _serve(parent: Connection, token: bytes, nbytes: int, count: int) -> None:
    async def serve() -> None:
        with _local(nbytes, count) as pool:
            node = Node(await TcpTransport.open("127.0.0.1"), token, _Shelf(pool))
            _, port = await node.start("127.0.0.1")
            plain = socket.create_server(("127.0.0.1", 0))
            plain.setblocking(False)
            answering = asyncio.create_task(_answer(plain, secrets.token_bytes(nbytes)))
            parent.send((pool.name, port, plain.getsockname()[1]))
            await asyncio.get_running_loop().run_in_executor(None, parent.recv)
            answering.cancel()
            plain.close()
            await node.close()

    asyncio.run(serve())


async def _answer(plain: socket.socket, body: bytes) -> None:
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(plain)
    with peer:
        one = memoryview(bytearray(1))
        while True:
            try:
                await fill(peer, one)
            except EOFError:
                return
            await loop.sock_sendall(peer, body)
