"""The backends that the contract suite is run over.

Owns, for each, how a pool is made, seen by a reader, left by its writer and adopted by the next.
A backend that is written later is added to BACKENDS and has to pass everything as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from dsec.sml.pool import Pool, PoolReader
from dsec.sml.pool_shm import ShmPool, ShmReader


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


BACKENDS = {"shm": ShmBackend}


@contextmanager
def living(kind: str) -> Iterator[Backend]:
    """A backend without a pool, and without anything left when the block ends."""
    backend = BACKENDS[kind]()
    try:
        yield backend
    finally:
        backend.end()
