"""Which atom each agent of a run directory goes on from: the newest that is whole and fits.

Reads heads first, and bodies only of those that it would take. What is no whole atom of this run is
named and passed over, never removed: the one before it is as good, only older. A pool that outlived
its kernel may have newer ones than the disk. Nothing is changed here; reopen.py does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dsec.errors import (
    AtomAbsent,
    AtomError,
    AtomForeign,
    AtomTooNew,
    AtomTooOld,
    MachineError,
    PoolAbsent,
    PoolBusy,
    PoolForeign,
    PoolUnfinished,
)
from dsec.sml import codec, ids, named, spill
from dsec.sml.atom import Atom, Manifest
from dsec.sml.ids import Space
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmReader

FOLDER: Final = "atoms"
_NOT_OURS: Final = (AtomTooOld, AtomTooNew)
"""Who goes on without such an atom does something else than its writer would."""


@dataclass(frozen=True, slots=True)
class Found:
    """An atom to go on from.

    Attributes:
        path: its file; where only a pool has it, the one that it will get.
    """

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Wanted:
    """One agent, and what of it may be gone on from.

    Attributes:
        rank: its place in the configuration.
        most: the last sequence number that the recording reaches; None: any.
        width: its environments; 0: any number.
    """

    name: str
    rank: int
    most: int | None = None
    width: int = 0


@dataclass(slots=True)
class Left:
    """The atoms that a run has left.

    Attributes:
        folder: where they lie, one file each; it may not exist.
        space: the name space of the run's atoms; None: not known, so any.
        pool: what has atoms beside it; empty if nothing does.
        unfit: files that are no atom of this run, or damaged.
        notes: what is to be said of those.
        places: by the agent's rank, the newest first; no path where only the pool has it.
    """

    folder: Path
    space: Space | None = None
    pool: str = ""
    unfit: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    places: dict[int, list[tuple[Label, Path | None]]] = field(default_factory=dict)

    def pass_over(self, path: Path | None) -> None:
        """It is not gone on from."""
        if path is not None:
            self.unfit.append(path)


def left(folder: Path, space: Space | None = None, pool: str = "") -> Left:
    """See what there is.

    Args:
        pool: one that may have outlived its kernel; empty: none is looked for.

    Raises:
        AtomTooOld, AtomTooNew: a file of a version that this doesn't read.
        PoolError: there is a segment of the pool's name that is no pool of this run.
        PoolOwned: a living process writes it.
    """
    found = Left(folder, space)
    for path in spill.files(folder):
        try:
            label = spill.label_of(path)
        except _NOT_OURS:
            raise
        except (AtomError, MachineError) as error:
            found.notes.append(f"passed over: {_told(error)}")
            found.pass_over(path)
            continue
        found.places.setdefault(label.agent, []).append((label, path))
    if pool:
        _from_pool(found, pool)
    for labels in found.places.values():
        labels.sort(key=lambda each: (each[0].seq, each[0].id, each[1] is None), reverse=True)
    return found


def _from_pool(found: Left, name: str) -> None:
    """Add what a pool has and the disk hasn't: the last few of each agent."""
    try:
        named.orphan(name).close()  # whoever gets the lock knows that nobody writes it
        reader = ShmReader(name)
    except (PoolAbsent, PoolUnfinished):
        return
    with reader:
        if found.space is not None and reader.space != found.space:
            raise PoolForeign(f"pool {name}: it holds atoms of another run")
        found.pool = name
        on_disk = {label.id: path for each in found.places.values() for label, path in each}
        for label in [entry.label for entry in reader.entries()]:
            path = on_disk.get(label.id)
            if path is not None:
                if _is_whole(path):
                    continue
                found.pass_over(path)
            found.places.setdefault(label.agent, []).append((label, None))


def _is_whole(path: Path) -> bool:
    try:
        spill.load(path)
    except (AtomError, MachineError):
        return False
    return True


def newest(there: Left, agents: Iterable[Wanted]) -> dict[str, Found]:
    """The newest atom of each agent that has one; `there` then says what is to be said of others.

    Raises:
        AtomTooOld, AtomTooNew: one that would be it is of a version that this doesn't read.
    """
    found: dict[str, Found] = {}
    for agent in agents:
        passed: list[str] = []
        for label, path in there.places.get(agent.rank, ()):
            if agent.most is not None and label.seq > agent.most:
                continue  # written after what the recording has of it
            try:
                found[agent.name] = _fitting(there, agent, label, path)
                break
            except _NOT_OURS:
                raise
            except (AtomError, AtomAbsent, PoolBusy, MachineError) as error:
                passed.append(_told(error))
                there.pass_over(path)
        if passed:
            taken = found.get(agent.name)
            then = (
                f"it goes on from {ids.shown(taken.manifest.id)}, at step {taken.manifest.seq}"
                if taken is not None
                else "it has no other and begins anew"
            )
            there.notes.append(f"{agent.name}: {'; '.join(passed)}: {then}")
    return found


def at(there: Left, agent: Wanted, seq: int | None) -> Found:
    """The atom of an agent at one sequence number; the newest for None.

    Raises:
        AtomError: there is none; says which there are, or what is wrong with it.
    """
    if seq is None:
        found = newest(there, [agent])
        if agent.name in found:
            return found[agent.name]
        notes = there.notes
        raise AtomForeign(notes[0] if notes else f"{there.folder} holds no atom of {agent.name}")
    labels = there.places.get(agent.rank, [])
    for label, path in labels:
        if label.seq == seq:
            return _fitting(there, agent, label, path)
    known = ", ".join(str(label.seq) for label, _ in reversed(labels)) or "none"
    raise AtomForeign(
        f"{there.folder} holds no atom of {agent.name} at step {seq}; there are: {known}"
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _fitting(there: Left, agent: Wanted, label: Label, path: Path | None) -> Found:
    """An atom that an agent can go on from. Raises as `whole`."""
    where = path if path is not None else spill.path_of(there.folder, label.id)
    if path is not None:
        body = spill.load(path).body
    else:
        with ShmReader(there.pool) as reader:
            body = reader.get(label.id)
    atom = whole(body, where, agent, there.space)
    if atom.manifest.id != label.id or atom.manifest.seq != label.seq:
        raise AtomForeign(f"{where} holds another atom than its head says")
    return Found(where, atom.manifest)


def whole(body: bytes, where: Path, agent: Wanted, space: Space | None = None) -> Atom:
    """The atom, if an agent can go on from it.

    Raises:
        AtomError: it is damaged, another agent's or another run's, or lacks what an agent consists
            of.
    """
    try:
        atom = codec.decode(body)
    except AtomError as error:
        raise type(error)(f"{where}: {error}") from None
    manifest = atom.manifest
    if manifest.agent != agent.name:
        raise AtomForeign(f"{where} is an atom of {manifest.agent}, not of {agent.name}")
    if space is not None and ids.from_uuid(space, manifest.uuid) != manifest.id:
        raise AtomForeign(f"{where} is an atom of another run's {manifest.agent}")
    if agent.width not in (0, len(atom.env)) and atom.env:
        raise AtomForeign(
            f"{where} holds {len(atom.env)} environments, and {agent.name} has {agent.width}"
        )
    missing = [
        what
        for what, there in (
            ("its environments", atom.env),
            ("its policy", atom.policy is not None),
            ("its observation", atom.observation),
        )
        if not there
    ]
    if missing:
        raise AtomForeign(f"{where} holds nothing of {' and '.join(missing)}")
    return atom


def later(there: Left, beginnings: Mapping[int, int]) -> Iterable[tuple[Label, Path | None]]:
    """The atoms beyond where agents go on, by rank: what they led to is done anew, perhaps
    otherwise."""
    for rank, labels in there.places.items():
        for label, path in labels:
            if label.seq > beginnings.get(rank, label.seq):
                yield label, path
