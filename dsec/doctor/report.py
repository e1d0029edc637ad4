"""What the doctor is asked and what it answers: the values that pass through this room.

Owns no rule and reads nothing. A line always says what was found; one that is not a pass also says
what mends it.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """How a line came out, the best first."""

    PASS = "pass"
    WARN = "warn"
    """It works, but slower, or less of it, than it could."""
    FAIL = "fail"
    """What was asked for can't work."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What the machine is to be good for.

    Attributes:
        agents: so many at a time.
        pool_bytes: size of the pool of atoms; None where nobody has said.
        cluster: atoms are to be kept on several hosts.
        device: an RDMA device that is to be used; None for any.
        port: of that device; None for the first active one.
        gid: index of its address; None for the first that can be reached by IPv4.
    """

    agents: int = 1
    pool_bytes: int | None = None
    cluster: bool = False
    device: str | None = None
    port: int | None = None
    gid: int | None = None

    @property
    def rdma(self) -> bool:
        """An RDMA device was asked for by name, port or address: without one it can't work."""
        return (self.device, self.port, self.gid) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at.

    Attributes:
        group: `machine`, `isolation`, `rdma` or `network`.
        name: of what was looked at, in one or two words; unique.
        verdict: what it means for what is wanted.
        found: what there is, with numbers.
        remedy: the command or setting that mends it; empty only for a pass.
    """

    group: str
    name: str
    verdict: Verdict
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.verdict is Verdict.PASS, f"{self.name}: what mends it?"


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, in the order in which they are shown."""

    lines: tuple[Line, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many lines came out how."""
        counted = Counter(line.verdict for line in self.lines)
        return {verdict: counted[verdict] for verdict in Verdict}

    @property
    def verdict(self) -> Verdict:
        """The worst of all lines."""
        return max((line.verdict for line in self.lines), key=list(Verdict).index)
