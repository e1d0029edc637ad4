"""What a host knows of runs whose atoms it keeps copies of: who holds what, and when it takes over.

Pure: requests and the time go in, answers and decisions come out. A run is held by its source as
long as that one says so (tenure.py); a run whose source was silent for the lease's time is taken
over by its heir, the first of the run's peers, under the next epoch. What was taken is never given
back: a source that returns is told which of its agents are not its own any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsec.errors import FencedOut, LocalError
from dsec.sml.remote.tenure import Grants

MARKS_KEPT: Final = 64


@dataclass(slots=True)
class Ward:
    """One run.

    Attributes:
        run: its own name, which no other run has.
        config: of it, as text.
        agents: all of it, by rank.
        heir: whether this host takes it over when its source is silent.
        epoch: counts the hosts that it had.
        taken: agents that went on here, and may not anywhere else.
        over: agents that have nothing left to do.
        wanted: agents that its source is asked to hand over.
        handed: agents that it has handed over, to be begun here.
        marks: by agent, the hash chain at boundaries that are committed: seq to 40 bytes.
    """

    run: str
    config: str
    agents: tuple[str, ...]
    heir: bool
    epoch: int = 1
    taken: dict[str, int] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)
    marks: dict[str, dict[int, bytes]] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        """Agents that somebody has to go on with."""
        return [each for each in self.agents if each not in self.taken and each not in self.over]

    def lasting(self) -> dict[str, Any]:
        """What has to outlive this host's process."""
        return {
            "run": self.run, "config": self.config, "agents": list(self.agents), "heir": self.heir,
            "epoch": self.epoch, "taken": self.taken, "over": sorted(self.over),
        }  # fmt: skip

    @classmethod
    def known(cls, said: Mapping[str, Any]) -> Ward:
        """What `lasting` has said."""
        return cls(
            said["run"], said["config"], tuple(said["agents"]), said["heir"], said["epoch"],
            dict(said["taken"]), set(said["over"]),
        )  # fmt: skip


class Wards:
    """All of them.

    Args:
        lease_s: of sources.
        agents_of: the names of all agents of a configuration, by rank; raises DsecError.
    """

    def __init__(self, lease_s: float, agents_of: Callable[[str], tuple[str, ...]]) -> None:
        self._agents_of = agents_of
        self.lease_s = lease_s
        self.wards: dict[str, Ward] = {}
        self._grants = Grants(lease_s)

    def remember(self, ward: Ward, now: float) -> None:
        """One from an earlier life of this process: its source has the whole lease from now on."""
        self.wards[ward.run] = ward
        self._grants.heard(ward.run, now)

    def asked(self, what: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Answer a source, or who wants to move an agent.

        Raises:
            FencedOut: the run is not its source's any more.
            LocalError: no such run is known, or no such thing can be asked for.
        """
        try:
            match what.get("do"):
                case "ward":
                    return self._enter(what, now)
                case "hold":
                    return self._hold(self._ward(what), int(what["number"]), now)
                case "marks":
                    self._mark(self._ward(what), what["marks"])
                case "over":
                    self._ward(what).over |= set(what["agents"])
                case "hand":
                    self._hand(self._ward(what), str(what["agent"]))
                case "move":
                    return self._move(self._ward(what), str(what["agent"]))
                case other:
                    raise LocalError(f"{other!r} is nothing to be asked for")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LocalError(f"no such request can be: {error!r}") from None
        return {}

    def due(self, now: float) -> list[tuple[Ward, list[str]]]:
        """What is to be taken over: agents that were handed over, and all of a silent source."""
        found = []
        silent = set(self._grants.ended(now))
        for ward in self.wards.values():
            agents = [each for each in ward.handed if each not in ward.taken]
            if ward.run in silent and ward.heir:
                agents = ward.left
            if agents:
                found.append((ward, sorted(agents, key=ward.agents.index)))
        return found

    def take(self, ward: Ward, agents: list[str]) -> int:
        """They are this host's from now on; returns under which epoch."""
        ward.epoch += 1
        for each in agents:
            ward.taken[each] = ward.epoch
        ward.handed -= set(agents)
        ward.wanted -= set(agents)
        return ward.epoch

    def check_seat(self, run: str) -> Ward:
        """Whether a source may write. Raises FencedOut, LocalError."""
        ward = self._ward({"run": run})
        if ward.taken and not ward.left:
            raise FencedOut(_taken(ward))
        return ward

    # ------------------------------------------------------------ inside

    def _ward(self, what: Mapping[str, Any]) -> Ward:
        found = self.wards.get(str(what["run"]))
        if found is None:
            raise LocalError(
                f"this host knows no run {what['run']}: it is none of the peers (pool.peers) that "
                "the run replicates to, or the run is over"
            )
        return found

    def _enter(self, what: Mapping[str, Any], now: float) -> dict[str, Any]:
        agents = self._agents_of(str(what["config"]))
        ward = self.wards.get(str(what["run"]))
        if ward is None:
            ward = Ward(str(what["run"]), str(what["config"]), agents, bool(what["heir"]))
            self.wards[ward.run] = ward
        elif ward.agents != agents:
            raise LocalError(f"run {ward.run} had other agents before")
        if ward.run in self._grants.ended(now) and ward.heir and ward.left:
            raise FencedOut(
                f"run {ward.run} is being taken over: its source was silent for too long"
            )
        ward.config = str(what["config"])
        ward.over = {str(each) for each in what["over"]}
        self._grants.heard(ward.run, now)
        return {"taken": sorted(ward.taken), "lease_s": self.lease_s}

    def _hold(self, ward: Ward, number: int, now: float) -> dict[str, Any]:
        if ward.run in self._grants.ended(now) and ward.heir and ward.left:
            raise FencedOut(
                f"run {ward.run} is being taken over: its source was silent for too long"
            )
        self._grants.heard(ward.run, now)
        return {"number": number, "taken": sorted(ward.taken), "wanted": sorted(ward.wanted)}

    def _mark(self, ward: Ward, marks: Mapping[str, Any]) -> None:
        for agent, pairs in marks.items():
            if agent not in ward.agents:
                raise LocalError(f"run {ward.run} has no agent {agent}")
            kept = ward.marks.setdefault(agent, {})
            for seq, mark in pairs:
                kept[int(seq)] = bytes(mark)
            for old in sorted(kept)[: max(0, len(kept) - MARKS_KEPT)]:
                del kept[old]

    def _hand(self, ward: Ward, agent: str) -> None:
        if agent not in ward.wanted:
            raise LocalError(f"nobody wants agent {agent} of run {ward.run}")
        ward.handed.add(agent)

    def _move(self, ward: Ward, agent: str) -> dict[str, Any]:
        if agent not in ward.agents:
            raise LocalError(f"run {ward.run} has no agent {agent}")
        if agent in ward.over:
            raise LocalError(f"agent {agent} of run {ward.run} has nothing left to do")
        if agent not in ward.taken:
            ward.wanted.add(agent)
            return {"state": "handed over" if agent in ward.handed else "asked for"}
        return {"state": "taken", "epoch": ward.taken[agent]}


def _taken(ward: Ward) -> str:
    return f"run {ward.run} goes on elsewhere since epoch {ward.epoch}: {', '.join(ward.taken)}"
