"""What the pools of this machine hold and why, and freeing what nobody holds.

Owns the look at pools from outside, as dsec-rdma-gc takes it. A pool whose writer lives is only
read: what it frees is its writer's business. One whose writer is gone is adopted, which takes the
same lock as any writer does. Decisions are reclaim.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from dsec.errors import AtomAbsent, AtomError, PoolBusy, PoolError, PoolOwned, PoolUnfinished
from dsec.sml import codec, named
from dsec.sml.pool import Entry, Pool, PoolReader, Usage
from dsec.sml.pool_shm import ShmPool, ShmReader
from dsec.sml.reclaim import Owner, Plan, Retention, Share, Why, attribute, plan


@dataclass(slots=True)
class Survey:
    """One pool as it was found.

    Attributes:
        owner: process id of the living writer; 0 if it can't be seen; None if there is none.
        persist: may it outlive its kernel?
        problem: why it can't be read; then there is nothing below.
        agents: name by rank, as far as atoms tell.
        shares: whose every byte is.
        reasons: atoms that stay, by reason; one may have several.
        plan: what may go.
        freed_atoms, freed_bytes: what went.
        unlinked: is the whole pool gone?
    """

    name: str
    size: int = 0
    owner: int | None = None
    persist: bool = False
    created_s: int = 0
    problem: str = ""
    unfinished: bool = False
    usage: Usage | None = None
    agents: dict[int, str] = field(default_factory=dict)
    shares: dict[Owner, Share] = field(default_factory=dict)
    reasons: dict[Why, int] = field(default_factory=dict)
    plan: Plan | None = None
    freed_atoms: int = 0
    freed_bytes: int = 0
    unlinked: bool = False

    @property
    def leaked(self) -> bool:
        """Does it lie about although nobody owns it and nobody asked for it to stay?"""
        held = any(each.held for each in self.plan.keeps) if self.plan else False
        usable = not self.problem or self.unfinished
        return self.owner is None and usable and not self.persist and not held


def pools() -> list[str]:
    """The names of all pools of this machine."""
    return named.names()


def look(name: str, retention: Retention, now_s: float) -> Survey:
    """Read a pool; changes nothing.

    Raises:
        PoolAbsent: there is none of this name.
    """
    with_lock = named.attach(name)
    try:
        found = Survey(name, with_lock.size, named.owner_of(with_lock))
    finally:
        with_lock.close()
    try:
        with ShmReader(name) as reader:
            _describe(reader, found, retention, now_s)
    except PoolError as error:
        found.problem = str(error)
        found.unfinished = isinstance(error, PoolUnfinished)
    return found


def collect(
    name: str, retention: Retention, now_s: float, *, persisted_too: bool = False
) -> Survey:
    """Free what nobody holds of a pool whose writer is gone; take the pool away if nothing in it is
    held, and it wasn't asked to outlive its kernel. A pool that can't be read stays as it is, one
    that was never finished goes.

    Args:
        persisted_too: one that was asked to is taken away as well, if nothing in it is held.

    Raises:
        PoolAbsent: there is none of this name.
        PoolOwned: its writer lives.
    """
    found = look(name, retention, now_s)
    if found.owner is not None:
        raise PoolOwned(
            f"pool {name} belongs to process {found.owner or '(not visible here)'}, which lives",
            "What it may free, it frees by itself.",
        )
    if found.problem:
        if found.unfinished:
            segment = named.orphan(name)
            try:
                segment.unlink()
            finally:
                segment.close()
            found.unlinked = True
        return found
    with ShmPool.adopt(name) as pool:
        _describe(pool, found, retention, now_s)  # again: now nobody else changes it
        held = any(each.held for each in found.plan.keeps) if found.plan else False
        if found.leaked or (persisted_too and not held):
            found.freed_atoms, found.freed_bytes = len(list(pool.entries())), found.size
            pool.unlink()
            found.unlinked = True
        elif found.plan is not None:
            found.freed_bytes = carry_out(pool, found.plan)
            found.freed_atoms = len(found.plan.frees)
    return found


def carry_out(pool: Pool, decided: Plan) -> int:
    """Free what a plan frees. Returns the bytes of the pool that this gave back."""
    for each in decided.frees:
        pool.free(each.entry.label.id)
    return sum(each.entry.room for each in decided.frees)


def _describe(pool: ShmReader | ShmPool, found: Survey, retention: Retention, now_s: float) -> None:
    entries = list(pool.entries())
    found.persist, found.created_s = pool.persist, pool.created_s
    found.usage = pool.usage()
    found.shares = attribute(entries)
    found.plan = plan(entries, found.usage, retention, now_s, standbys=found.owner is not None)
    found.reasons = dict(Counter(why for each in found.plan.keeps for why in each.why))
    found.agents = _names(pool, entries)


def _names(pool: PoolReader, entries: Iterable[Entry]) -> dict[int, str]:
    """Who the agents are, by the manifest of one atom of each."""
    names: dict[int, str] = {}
    for entry in entries:
        rank = entry.label.agent
        if rank in names:
            continue
        try:
            names[rank] = codec.decode(pool.get(entry.label.id)).manifest.agent
        except (AtomAbsent, AtomError, PoolBusy):
            continue  # freed meanwhile, or no atom of ours: the next of this rank may tell
    return names
