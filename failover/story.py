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
        self._noticed = now
        self._reaped = now

    def reaped(self, now: float, death: Death) -> None:
        """A lost one is reaped."""
        self.deaths.append(death)
        self._reaped = now

    def given_up(self, why: str) -> list[Death]:
        """Its deaths, if there is no successor; `why`, if not empty, is put into words."""
        *others, last = self.deaths
        cause = f"{last.cause} (not replaced: {why})" if why else last.cause
        return [*others, replace(last, cause=cause)]

    def failover(self, now: float, epoch: int, said: TakenOver, poisoned: bool) -> Failover:
        """The whole, at the moment when its successor goes on."""
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
            fence_ms=(self._reaped - self._noticed) * 1e3,
            restore_ms=said.restore_ms,
            replay_ms=said.replay_ms,
            total_ms=(now - self._noticed) * 1e3 + (detect_ms or 0.0),
        )
