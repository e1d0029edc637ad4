"""Addresses of hosts as people write them."""

from __future__ import annotations


def host_port(value: str) -> tuple[str, int]:
    """The two parts of `host:port`; an IPv6 address is in brackets. Raises ValueError."""
    host, colon, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(value)
    return host, int(port)
