"""Which transport reaches the peers of a run, and why that one: it is said at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.errors import LocalError
from dsec.sml.remote.tcp import TcpTransport
from dsec.sml.remote.transport import Transport

DEVICES: Final = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A backend.

    Attributes:
        name: `shm` or `tcp`.
        why: in words, for people.
        peers: whom it reaches.
    """

    name: str
    why: str
    peers: Sequence[tuple[str, int]]

    async def transport(self) -> Transport:
        """One for a client: nobody has to reach this side's memory."""
        return await TcpTransport.open("127.0.0.1")


def choose(backend: str, peers: Sequence[tuple[str, int]], devices: Path = DEVICES) -> Chosen:
    """The backend for these peers.

    Args:
        backend: `auto`, or what the configuration insists on.
        devices: where the system lists RDMA devices.

    Raises:
        LocalError: no such backend is there.
    """
    if backend not in ("auto", "shm", "tcp"):
        raise LocalError(f"there is no backend {backend!r}")
    if backend == "shm" or not peers:
        why = "as pool.backend says" if backend == "shm" else "pool.replicas names no other host"
        return Chosen("shm", why, ())
    if backend == "tcp":
        return Chosen("tcp", "as pool.backend says", peers)
    found = sorted(each.name for each in devices.iterdir()) if devices.is_dir() else []
    why = (
        f"RDMA devices are there ({', '.join(found)}), but nothing here uses them yet"
        if found
        else f"this machine has no RDMA device ({devices} lists none)"
    )
    return Chosen("tcp", why, peers)
