"""What the keys of `pool` that name other hosts have to say together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsec.config.source import Source
from dsec.errors import Diagnostic


def check_hosts(source: Source) -> Iterator[Diagnostic]:
    """Replicas need peers, peers a token, and a backend that reaches them."""
    pool: Any = source.data.get("pool")
    if not isinstance(pool, dict):
        return
    peers, replicas = pool.get("peers") or [], pool.get("replicas") or 0
    backend = pool.get("backend") or "auto"
    if not isinstance(peers, list) or not isinstance(replicas, int | float):
        return
    if replicas > len(peers):
        yield source.diagnostic(
            ("pool", "replicas"),
            f"{replicas} replicas need as many hosts, and `peers` has {len(peers)}",
        )
    if peers and len({str(each) for each in peers}) < len(peers):
        yield source.diagnostic(("pool", "peers"), "a host is named twice")
    if replicas and not pool.get("token_file"):
        yield source.diagnostic(
            ("pool", "replicas"),
            "hosts let in only who has their token: add `token_file: PATH`",
        )
    if replicas and backend == "shm":
        yield source.diagnostic(
            ("pool", "backend"), "shm reaches no other host: use auto or tcp, or replicas: 0"
        )
    if backend == "tcp" and not peers:
        yield source.diagnostic(
            ("pool", "backend"), "there is nobody to reach over tcp: add `peers`, or use auto"
        )
