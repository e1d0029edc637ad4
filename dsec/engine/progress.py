"""The run at a glance: totals, speed and time left, from a live report. Pure; the clock is given.

Speed is that of the last few seconds and not the average since the start, so that a slow phase
shows while it lasts; the time left is estimated from it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from dsec.engine.plan import Quota
from dsec.report import AgentReport, RunReport

WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is to show at one moment.

    Attributes:
        states: number of agents by state.
        steps_quota, episodes_quota: what all agents together have to do; 0 for the one that
            doesn't bound the run.
        steps_per_s: over the last seconds, None before there is anything to measure.
        mean_return: mean over the agents of the mean return of their latest episodes.
        eta_s: seconds left at the present speed.
        agents: every agent's report, in the order of the configuration.
    """

    elapsed_s: float
    states: Counter[str]
    steps: int
    episodes: int
    deaths: int
    failovers: int = 0
    steps_quota: int = 0
    episodes_quota: int = 0
    steps_per_s: float | None = None
    episodes_per_s: float | None = None
    mean_return: float | None = None
    eta_s: float | None = None
    agents: tuple[AgentReport, ...] = ()

    @property
    def done_share(self) -> float:
        """Share of the work that is done, 0.0 to 1.0."""
        if self.steps_quota:
            return min(1.0, self.steps / self.steps_quota)
        return min(1.0, self.episodes / self.episodes_quota) if self.episodes_quota else 0.0


class Meter:
    """Turns a live report into snapshots.

    Args:
        quotas: of all agents.
        now: seconds of any monotonic clock at the start.
    """

    def __init__(self, quotas: list[Quota], now: float) -> None:
        self._steps_quota = sum(quota.steps for quota in quotas)
        self._episodes_quota = sum(quota.episodes for quota in quotas)
        self._start = now
        self._past: deque[tuple[float, int, int]] = deque()

    def read(self, report: RunReport, now: float) -> Snapshot:
        """Take a snapshot at `now`."""
        agents = tuple(report.agents.values())
        steps = sum(agent.steps for agent in agents)
        episodes = sum(agent.episodes for agent in agents)
        steps_per_s, episodes_per_s = self._speed(now, steps, episodes)
        returns = [agent.returns_last for agent in agents if agent.episodes]
        eta_s = None
        if self._steps_quota and steps_per_s:
            eta_s = max(0, self._steps_quota - steps) / steps_per_s
        elif self._episodes_quota and episodes_per_s:
            eta_s = max(0, self._episodes_quota - episodes) / episodes_per_s
        return Snapshot(
            elapsed_s=now - self._start,
            states=Counter(agent.state for agent in agents),
            steps=steps,
            episodes=episodes,
            deaths=len(report.deaths) + len(report.failovers),
            failovers=len(report.failovers),
            steps_quota=self._steps_quota,
            episodes_quota=self._episodes_quota,
            steps_per_s=steps_per_s,
            episodes_per_s=episodes_per_s,
            mean_return=sum(returns) / len(returns) if returns else None,
            eta_s=eta_s,
            agents=agents,
        )

    def _speed(self, now: float, steps: int, episodes: int) -> tuple[float | None, float | None]:
        if not steps and not self._past:
            return None, None  # nobody steps yet: the time until now counts for no speed
        self._past.append((now, steps, episodes))
        while len(self._past) > 2 and self._past[1][0] <= now - WINDOW_S:
            self._past.popleft()
        then, steps_then, episodes_then = self._past[0]
        if now <= then:
            return None, None
        return (steps - steps_then) / (now - then), (episodes - episodes_then) / (now - then)
