"""The backends that the contract suite is run over.

Owns, for each, how a pool is made, seen by a reader, left by its writer and adopted by the next.
A backend that is written later is added to BACKENDS and has to pass everything as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from dsec.errors import PoolAbsent
from dsec.sml.pool import Label, Pool, PoolReader
from dsec.sml.pool_shm import ShmPool, ShmReader
from dsec.sml.remote import wire
from dsec.sml.remote.courier import Courier
from dsec.sml.remote.node import Node
from dsec.sml.remote.pool import Place, RemotePool, RemoteReader
from dsec.sml.remote.tcp import TcpTransport
from dsec.sml.remote.transport import Transport

TOKEN = b"a token for tests, and for them only"
Made = TypeVar("Made", RemotePool, RemoteReader)


class Backend(Protocol):
    """One place where a pool lives, through all its writers."""

    def create(self, size_bytes: int, atoms_max: int) -> Pool: ...

    def reader(self) -> PoolReader: ...

    def adopt(self) -> Pool: ...

    def end(self) -> None: ...


class ShmBackend:
    """A named segment of this machine."""

    def __init__(self) -> None:
        self.name = f"test-{uuid.uuid4().hex}"
        self.stack = ExitStack()

    def create(self, size_bytes: int, atoms_max: int) -> ShmPool:
        pool = ShmPool.create(self.name, size_bytes, atoms_max=atoms_max, space=(7, 8))
        self.stack.callback(pool.close)
        return pool

    def reader(self) -> ShmReader:
        return self.stack.enter_context(ShmReader(self.name))

    def adopt(self) -> ShmPool:
        return self.stack.enter_context(ShmPool.adopt(self.name))

    def end(self) -> None:
        self.stack.close()
        with ShmPool.adopt(self.name) as last:
            last.unlink()


class RemoteBackend:
    """A pool of another host, by `transport`: its host is a thread here, and so is its reader."""

    def __init__(self, transport: Callable[[], Awaitable[Transport]]) -> None:
        self.shelf = OneShelf()
        self.stack = ExitStack()
        self._courier = Courier("host")
        self._name = f"test-{uuid.uuid4().hex}"
        host, port = self._courier.call(self._start(transport))
        self.place = Place(host, port, TOKEN, transport)

    async def _start(self, transport: Callable[[], Awaitable[Transport]]) -> tuple[str, int]:
        self.node = Node(await transport(), TOKEN, self.shelf)
        return await self.node.start("127.0.0.1")

    def create(self, size_bytes: int, atoms_max: int) -> RemotePool:
        wanted = wire.Seat(self._name, size_bytes, atoms_max, persist=False, space=(7, 8))
        return self._enter(RemotePool(self.place, wanted))

    def reader(self) -> RemoteReader:
        return self._enter(RemoteReader(self.place, self._name))

    def adopt(self) -> RemotePool:
        wanted = wire.Seat(self._name, 0, 0, persist=False, space=(0, 0), make=False)
        return self._enter(RemotePool(self.place, wanted))

    def _enter(self, made: Made) -> Made:
        self.stack.callback(made.close)
        return made

    def end(self) -> None:
        self.stack.close()
        self._courier.call(self.node.close())
        self._courier.close()
        with ShmPool.adopt(self._name) as last:
            last.unlink()


class OneShelf:
    """Pools of this machine by their own names; whoever has the token may make them."""

    def __init__(self) -> None:
        self.pools: dict[str, ShmPool] = {}

    def find(self, name: str) -> ShmPool:
        if name not in self.pools:
            raise PoolAbsent(f"there is no pool {name}", "")
        return self.pools[name]

    def seat(self, wanted: wire.Seat, pool: ShmPool | None) -> ShmPool:
        if pool is not None:
            pool.succeed()
        elif wanted.make:
            pool = ShmPool.create(
                wanted.pool, wanted.size, atoms_max=wanted.atoms_max, space=wanted.space
            )
        else:
            pool = ShmPool.adopt(wanted.pool)
        self.pools[wanted.pool] = pool
        return pool

    def left(self, name: str, pool: ShmPool) -> None:
        self.pools.pop(name, None)
        pool.close()

    def stored(self, name: str, label: Label) -> None:
        pass

    async def asked(self, peer: str, what: dict[str, Any]) -> dict[str, Any]:
        return {"peer": peer, **what}


def tcp_backend() -> RemoteBackend:
    """One whose bytes go over TCP, as where there is no RDMA card."""
    return RemoteBackend(lambda: TcpTransport.open("127.0.0.1"))


BACKENDS: dict[str, Callable[[], Backend]] = {"shm": ShmBackend, "tcp": tcp_backend}


@contextmanager
def living(kind: str) -> Iterator[Backend]:
    """A backend without a pool, and without anything left when the block ends."""
    backend = BACKENDS[kind]()
    try:
        yield backend
    finally:
        backend.end()
