"""The story of one failover while it happens, told at its end as one event. Pure."""

from __future__ import annotations

from dataclasses import replace

from dsec.ipc.frames import TakenOver
from dsec.report import Death, Failover


class Story:
    """From the loss of a seat to its being held again.

    Args:
        now: when the loss was noticed.
        cause: of it, as far as it was known then.

    Attributes:
        deaths: complete ones, the first is what it all began with unless a successor was faster.
    """

    def __init__(self, now: float, cause: str) -> None:
        self.cause = cause
        self.deaths: list[Death] = []
        self._noticed = self._fenced = now
        self._resumed: tuple[float, int, TakenOver, bool] | None = None

    def fenced(self, now: float) -> None:
        """A lost one can't write any more."""
        self._fenced = now

    def reaped(self, death: Death) -> None:
        """A lost one is reaped."""
        self.deaths.append(death)

    @property
    def is_over(self) -> bool:
        """The seat is held again."""
        return self._resumed is not None

    def resumed(self, now: float, epoch: int, said: TakenOver, poisoned: bool) -> None:
        """Its successor, which is incarnation `epoch`, goes on."""
        self._resumed = now, epoch, said, poisoned

    def given_up(self, why: str) -> list[Death]:
        """Its deaths, if there is no successor; `why`, if not empty, is put into words."""
        *others, last = self.deaths
        cause = f"{last.cause} (not replaced: {why})" if why else last.cause
        return [*others, replace(last, cause=cause)]

    def failover(self) -> Failover:
        """The whole, when it is over and all who were lost are reaped."""
        assert self._resumed is not None, "it is over"
        now, epoch, said, poisoned = self._resumed
        first = min(self.deaths, key=lambda death: death.epoch)
        detect_ms = (self._noticed - first.at) * 1e3 if 0.0 < first.at <= self._noticed else None
        return Failover(
            agent=first.agent,
            role=first.role,
            epoch=epoch,
            death=first,
            tried=tuple(death.cause for death in self.deaths if death is not first),
            level=said.level,
            exact=said.exact,
            why=said.why,
            poisoned=poisoned,
            seq=said.seq,
            action_last=said.action_last,
            replayed=said.replayed,
            detect_ms=detect_ms,
            fence_ms=(self._fenced - self._noticed) * 1e3,
            restore_ms=said.restore_ms,
            replay_ms=said.replay_ms,
            total_ms=(now - self._noticed) * 1e3 + (detect_ms or 0.0),
        )
