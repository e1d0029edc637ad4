"""Leases between hosts: who may act when, by clocks that nobody compares.

Pure: time comes in as an argument, from the own monotonic clock of whoever asks. A lease of T
seconds ends for its holder T/2 after it *asked* for the renewal that was granted, and for the
grantor T after it last *heard* such a request. A request is heard after it was sent, so as long as
one clock runs at most twice as fast as the other the holder has stopped before the grantor gives
what it held to somebody else, whatever is delayed or lost on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dsec.errors import LocalError, StaleLease

RENEWALS: Final = 6
"""Requests in the time after which a holder stops: so many have to be lost in a row."""


@dataclass(slots=True)
class Tenure:
    """The holder's side.

    Attributes:
        lease_s: T, as the grantor said.
        what: is held, for messages.
    """

    lease_s: float
    what: str
    _asked: dict[int, float] = field(default_factory=dict)
    _count: int = 0
    _since: float | None = None
    _next: float = 0.0

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise LocalError(f"a lease lasts longer than {self.lease_s} s")

    def ask(self, now: float) -> int:
        """A request is sent now; its number, which the answer has as well."""
        self._count += 1
        self._asked[self._count] = now
        self._next = now + self.lease_s / 2 / RENEWALS
        return self._count

    def granted(self, number: int) -> None:
        """An answer came. One that overtook another counts; one to nothing that was asked not."""
        sent = self._asked.get(number)
        if sent is None:
            return
        for each in [n for n in self._asked if n <= number]:
            del self._asked[each]
        self._since = sent if self._since is None else max(self._since, sent)

    def due(self, now: float) -> bool:
        """Whether it is time to ask again."""
        return now >= self._next

    @property
    def next_s(self) -> float:
        """When it is."""
        return self._next

    def valid(self, now: float) -> bool:
        """Whether what is held may be used."""
        return self._since is not None and now < self._since + self.lease_s / 2

    def require(self, now: float) -> None:
        """Raise StaleLease unless it may."""
        if not self.valid(now):
            ago = "never granted" if self._since is None else f"{now - self._since:.1f} s old"
            raise StaleLease(
                f"the lease of {self.what} is {ago}; it may be used for {self.lease_s / 2:g} s"
            )


@dataclass(slots=True)
class Grants:
    """The grantor's side, of any number of holders.

    Attributes:
        lease_s: T.
    """

    lease_s: float
    _heard: dict[str, float] = field(default_factory=dict)

    def heard(self, holder: str, now: float) -> None:
        """A request came, and is granted."""
        self._heard[holder] = now

    def drop(self, holder: str) -> None:
        """The holder has said that it holds nothing any more, or its lease has ended."""
        self._heard.pop(holder, None)

    def free_s(self, holder: str) -> float:
        """From when on nobody holds what this holder held; 0 if it holds nothing."""
        heard = self._heard.get(holder)
        return 0.0 if heard is None else heard + self.lease_s

    def ended(self, now: float) -> list[str]:
        """Whose leases have ended; they stay among them until they are dropped."""
        return [each for each, heard in self._heard.items() if now >= heard + self.lease_s]
