"""Which atoms may go, and why the others stay: the state-aware reclaimer's decisions.

Pure: entries of a pool, who holds what, and the time go in, a plan comes out; nothing is freed
here. Every byte belongs to an (agent, episode, rollout), and every atom that stays has a reason
that can be told to a person. Three kinds of atoms:

- *held*: pinned, wanted by a standby, or by a reader whose lease hasn't ended. Never freed.
- *kept*: among the last of its agent, young, or weighed by the decay of rewards still. Freed only
  where the pool is fuller than its high watermark, the least weighed and oldest first; but never
  the latest of an agent that lives, because that is what it would be restored from.
- the rest, which go.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from dsec.errors import LocalError
from dsec.sml.pool import Entry, Marks, Usage

Owner = tuple[int, int, int]
"""(agent, episode, rollout)"""


class Why(enum.StrEnum):
    """Why an atom stays, or goes; its value is what a person reads."""

    PINNED = "pinned"
    STANDBY = "wanted by a standby"
    READER = "wanted by a reader"
    LATEST = "the latest of its agent"
    RECENT = "among the last of its agent"
    YOUNG = "young"
    WEIGHED = "weighed by the reward decay still"
    DONE = "nobody needs it"
    GONE = "its agent is gone"
    PRESSURE = "the pool is full"


_HELD = frozenset({Why.PINNED, Why.STANDBY, Why.READER})


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept.

    Attributes:
        keep_last: atoms of each agent, at least 1.
        keep_s: and all younger than this.
        gamma: reward decay, a step; an atom of the episode under way weighs gamma ** (steps since).
        weight_min: and all of at least this weight; above 1 it keeps nothing.
        high: share of the data area above which what is kept goes, too.
        low: share down to which it then goes.
    """

    keep_last: int = 2
    keep_s: float = 0.0
    gamma: float = 0.99
    weight_min: float = 2.0
    high: float = 0.9
    low: float = 0.8

    def __post_init__(self) -> None:
        if self.keep_last < 1 or self.keep_s < 0 or not 0 <= self.gamma <= 1:
            raise LocalError(f"no retention can be {self}: keep_last is 1 or more, gamma 0 to 1")
        if not 0 < self.low <= self.high <= 1 or self.weight_min <= 0:
            raise LocalError(f"no retention can be {self}: 0 < low <= high <= 1, weight_min > 0")


@dataclass(slots=True)
class Holds:
    """Leases of readers: an atom isn't freed while somebody's lease of it runs.

    A lease ends by itself, so that a reader that dies holds nothing for ever; and a reader that
    comes too late is told by checksum and generation that its atom is gone.
    """

    _until: dict[int, dict[str, float]] = field(default_factory=dict)

    def hold(self, atom_id: int, holder: str, until_s: float) -> None:
        """Hold an atom, or hold it longer."""
        leases = self._until.setdefault(atom_id, {})
        leases[holder] = max(until_s, leases.get(holder, until_s))

    def release(self, holder: str, atom_id: int | None = None) -> None:
        """Let go of one atom, or of all that this holder holds."""
        for each in list(self._until) if atom_id is None else [atom_id]:
            leases = self._until.get(each, {})
            leases.pop(holder, None)
            if not leases:
                self._until.pop(each, None)

    def expire(self, now_s: float) -> None:
        """Forget the leases that have ended."""
        for atom_id, leases in list(self._until.items()):
            running = {holder: until for holder, until in leases.items() if until > now_s}
            if running:
                self._until[atom_id] = running
            else:
                del self._until[atom_id]

    def holders(self, atom_id: int, now_s: float) -> list[str]:
        """Who holds an atom."""
        leases = self._until.get(atom_id, {})
        return sorted(holder for holder, until in leases.items() if until > now_s)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One atom and what becomes of it."""

    entry: Entry
    why: tuple[Why, ...]

    @property
    def held(self) -> bool:
        """Nothing may free it."""
        return bool(_HELD & set(self.why))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with each atom of a pool.

    Attributes:
        frees: in the order in which they should go.
        keeps: with all their reasons.
        short_bytes: by how much the pool stays above its high watermark when all that may go is
            gone: then the owners of what stays are to be told.
    """

    frees: tuple[Verdict, ...]
    keeps: tuple[Verdict, ...]
    short_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What belongs to one owner."""

    atoms: int
    bytes: int


def attribute(entries: Iterable[Entry]) -> dict[Owner, Share]:
    """Whose every byte is, largest first."""
    found: dict[Owner, Share] = {}
    for entry in entries:
        label = entry.label
        owner = (label.agent, label.episode, label.rollout)
        old = found.get(owner, Share(0, 0))
        found[owner] = Share(old.atoms + 1, old.bytes + entry.room)
    return dict(sorted(found.items(), key=lambda item: (-item[1].bytes, item[0])))


def plan(
    entries: Iterable[Entry],
    usage: Usage,
    retention: Retention,
    now_s: float,
    *,
    holds: Holds | None = None,
    living: Set[int] | None = None,
    standbys: bool = True,
) -> Plan:
    """Decide about every atom.

    Args:
        entries: all atoms of the pool.
        usage: of the pool.
        now_s: Unix time.
        holds: the leases of readers; those that have ended don't count.
        living: ranks of the agents that go on; None if that isn't known, and all count as living.
        standbys: is there anybody whom a standby would serve? Not where the kernel is gone.
    """
    ordered = sorted(entries, key=lambda each: (each.label.agent, -each.label.id))
    keeps: list[Verdict] = []
    frees: list[Verdict] = []
    agent, nth, latest = -1, 0, None
    for entry in ordered:
        if entry.label.agent != agent:
            agent, nth, latest = entry.label.agent, 0, entry
        assert latest is not None
        why = _held(entry, holds, now_s, standbys)
        alive = living is None or agent in living
        if alive:
            why += _kept(entry, latest, nth, retention, now_s)
        nth += 1
        if why:
            keeps.append(Verdict(entry, tuple(why)))
        else:
            frees.append(Verdict(entry, (Why.DONE if alive else Why.GONE,)))
    used = usage.room_bytes - sum(each.entry.room for each in frees)
    return _under_pressure(frees, keeps, used, usage, retention)


def _held(entry: Entry, holds: Holds | None, now_s: float, standbys: bool) -> list[Why]:
    why = []
    if entry.marks & Marks.PINNED:
        why.append(Why.PINNED)
    if entry.marks & Marks.STANDBY and standbys:
        why.append(Why.STANDBY)
    if holds is not None and holds.holders(entry.label.id, now_s):
        why.append(Why.READER)
    return why


def _kept(entry: Entry, latest: Entry, nth: int, retention: Retention, now_s: float) -> list[Why]:
    why = []
    if nth == 0:
        why.append(Why.LATEST)
    elif nth < retention.keep_last:
        why.append(Why.RECENT)
    if now_s - entry.label.created_s < retention.keep_s:
        why.append(Why.YOUNG)
    if weight(entry, latest, retention.gamma) >= retention.weight_min:
        why.append(Why.WEIGHED)
    return why


def weight(entry: Entry, latest: Entry, gamma: float) -> float:
    """How much the rewards since still depend on an atom: gamma for each step, nothing across the
    end of an episode. `latest` is the latest atom of the same agent."""
    one, other = entry.label, latest.label
    if (one.episode, one.rollout) != (other.episode, other.rollout):
        return 0.0
    return float(gamma ** max(0, other.seq - one.seq))


def _under_pressure(
    frees: list[Verdict], keeps: list[Verdict], used: int, usage: Usage, retention: Retention
) -> Plan:
    if used > retention.high * usage.data_bytes:
        latest = {each.entry.label.agent: each.entry for each in keeps if Why.LATEST in each.why}
        going: set[int] = set()
        for each in sorted(keeps, key=lambda one: _last_to_go(one, latest, retention)):
            if used <= retention.low * usage.data_bytes:
                break
            if not each.held and Why.LATEST not in each.why:
                going.add(each.entry.label.id)
                used -= each.entry.room
                frees.append(Verdict(each.entry, (Why.PRESSURE,)))
        keeps = [each for each in keeps if each.entry.label.id not in going]
    short = max(0, used - int(retention.high * usage.data_bytes))
    return Plan(tuple(frees), tuple(keeps), short)


def _last_to_go(
    each: Verdict, latest: Mapping[int, Entry], retention: Retention
) -> tuple[float, int, int]:
    label = each.entry.label
    newest = latest.get(label.agent, each.entry)
    return weight(each.entry, newest, retention.gamma), label.created_s, label.id
