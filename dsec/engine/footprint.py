"""What the processes of a run hold in memory: sampled while it runs, for the summary.

Owns the reading of /proc/PID/smaps_rollup, its pace, and the sums. What counts is PSS, the
proportional set size: a page that n processes share counts for one n-th in each of them, so that
the figures of all processes add up to what the run takes of the machine. To find it out the system
walks the page tables of a process, a millisecond or more, and the process waits meanwhile. So the
first few agents are sampled soon, in an order that jumps through the configuration, and the rest
at a pace that costs half a hundredth of a core, whatever their number. The reading is done in a
thread, because the supervisor's loop has better things to wait for.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SOON = 8  # agents, the first ones
SOON_SHARE = 0.05  # of a core
SHARE = 0.005
PAUSE_MIN_S = 0.02
LOOK_S = 0.25
_GOLDEN = 0.6180339887498949

Living = Callable[[str], Sequence[tuple[str, int]]]
"""The processes that an agent has now, as (role, pid); of the empty name the servers."""


def pss_bytes(pid: int) -> int | None:
    """The proportional set size of a process; None if it is gone or the system doesn't say."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb", buffering=0) as file:  # noqa: PTH123
            text = file.read()
    except OSError:  # ESRCH comes from read, where a process has no memory any more
        return None
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


@dataclass(slots=True)
class Ledger:
    """The latest sample of each agent, by role, and the most that an agent had.

    Attributes:
        latest: by agent, then by role.
        peak: by agent, the largest sum over its roles.
        servers: zygotes and recorder, by name.
        supervisor_peak: the most that this process had resident.
    """

    latest: dict[str, dict[str, int]] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)
    supervisor_peak: int | None = None

    def note(self, agent: str, found: Mapping[str, int]) -> None:
        """Take over one sample of all processes of an agent (or, under "", of the servers)."""
        if not agent:
            self.servers.update(found)
        elif found:
            self.latest[agent] = dict(found)
            self.peak[agent] = max(self.peak.get(agent, 0), sum(found.values()))

    def totals(self) -> dict[str, Any]:
        """The `memory` of a summary, in bytes; None where nothing was sampled."""
        roles: dict[str, list[int]] = {}
        for found in self.latest.values():
            for role, size in found.items():
                roles.setdefault(role, []).append(size)
        most = max(self.peak, key=lambda name: self.peak[name], default=None)
        return {
            "agents_sampled": len(self.latest),
            "agent_pss_bytes": _mean([sum(found.values()) for found in self.latest.values()]),
            "agent_pss_peak_bytes": self.peak[most] if most is not None else None,
            "agent_pss_peak": most,
            "role_pss_bytes": {role: _mean(sizes) for role, sizes in sorted(roles.items())},
            "servers_pss_bytes": sum(self.servers.values()) if self.servers else None,
            "supervisor_rss_peak_bytes": self.supervisor_peak,
        }


def _mean(sizes: Sequence[int]) -> int | None:
    return round(sum(sizes) / len(sizes)) if sizes else None


def own_peak_bytes() -> int:
    """The most that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def sample(ledger: Ledger, names: Sequence[str], living: Living) -> None:
    """Sample agents into `ledger` until cancelled.

    Args:
        ledger: where to.
        names: of all agents.
        living: asked before each sample.
    """
    queue = ["", *(names[index] for index in _jumping(len(names)))]
    taken = 0
    while True:
        skipped = 0
        for name in queue:
            processes = living(name)
            if not processes:
                skipped += 1
                continue
            spent_s = await asyncio.to_thread(_sample_one, ledger, name, processes)
            taken += 1
            share = SOON_SHARE if taken <= SOON else SHARE
            await asyncio.sleep(max(PAUSE_MIN_S, spent_s / share))
        if skipped == len(queue):
            await asyncio.sleep(LOOK_S)


def _sample_one(ledger: Ledger, name: str, processes: Sequence[tuple[str, int]]) -> float:
    """Return the processor time that it took."""
    begun = time.thread_time()
    found = {role: pss_bytes(pid) for role, pid in processes}
    if all(size is not None for size in found.values()):
        ledger.note(name, {role: size for role, size in found.items() if size is not None})
    return time.thread_time() - begun


def _jumping(count: int) -> list[int]:
    """0 to count - 1, each once, so that the first few are spread over all of them."""
    return sorted(range(count), key=lambda index: (index * _GOLDEN) % 1.0)
