"""Which atom each agent of a run directory goes on from: the newest that is whole and fits.

Reads heads first, and bodies only of those that it would take. What is no whole atom is named and
passed over, never removed: the one before it is as good, only older. A pool that outlived its
kernel may have newer ones than the disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.errors import (
    AtomAbsent,
    AtomError,
    AtomForeign,
    MachineError,
    PoolAbsent,
    PoolBusy,
    PoolError,
)
from dsec.sml import codec, ids, spill
from dsec.sml.atom import Atom, Manifest
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ShmPool, ShmReader

FOLDER: Final = "atoms"
PAST: Final = ".past"
"""Behind the name of an atom's file that belongs to what a resumed run has done anew."""


@dataclass(frozen=True, slots=True)
class Found:
    """An atom to go on from."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Wanted:
    """One agent, and what of it may be gone on from.

    Attributes:
        rank: its place in the configuration.
        most: the last sequence number that the recording reaches; None: any.
    """

    name: str
    rank: int
    most: int | None = None


def newest(folder: Path, agents: Iterable[Wanted]) -> tuple[dict[str, Found], list[str]]:
    """The newest atom of each agent that has one, and what is to be said of others.

    Args:
        folder: where atoms lie, one file each; it may not exist.
    """
    notes: list[str] = []
    by_rank = _by_rank(folder, notes)
    found: dict[str, Found] = {}
    for agent in agents:
        passed: list[str] = []
        for label, path in by_rank.get(agent.rank, ()):
            if agent.most is not None and label.seq > agent.most:
                continue  # written after what the recording has of it
            try:
                found[agent.name] = Found(path, _whole(path, agent.name).manifest)
                break
            except (AtomError, MachineError) as error:
                passed.append(str(error))
        if passed:
            taken = found.get(agent.name)
            then = (
                f"it goes on from {ids.shown(taken.manifest.id)}, at step {taken.manifest.seq}"
                if taken is not None
                else "it has no other and begins anew"
            )
            notes.append(f"{agent.name}: {'; '.join(passed)}: {then}")
    return found, notes


def at(folder: Path, agent: Wanted, seq: int | None) -> Found:
    """The atom of an agent at one sequence number; the newest for None.

    Raises:
        AtomError: there is none; says which there are, or what is wrong with it.
    """
    if seq is None:
        found, notes = newest(folder, [agent])
        if agent.name in found:
            return found[agent.name]
        raise AtomForeign(notes[0] if notes else f"{folder} holds no atom of {agent.name}")
    labels = _by_rank(folder, []).get(agent.rank, [])
    for label, path in labels:
        if label.seq == seq:
            return Found(path, _whole(path, agent.name).manifest)
    there = ", ".join(str(label.seq) for label, _ in reversed(labels)) or "none"
    raise AtomForeign(f"{folder} holds no atom of {agent.name} at step {seq}; there are: {there}")


def rescue(folder: Path, pool: str) -> None:
    """Bring to disk the atoms that only a pool has, which outlived its kernel: the last few of each
    agent. No file that is there already is touched.

    Raises:
        MachineError: the disk is full, or can't be written.
    """
    try:
        reader = ShmReader(pool)
    except (PoolAbsent, PoolError):
        return  # there is none, or none that can be read: what is on disk has to do
    with reader:
        for atom_id in [entry.label.id for entry in reader.entries()]:
            if not spill.path_of(folder, atom_id).exists():
                with contextlib.suppress(
                    AtomError, AtomAbsent, PoolBusy
                ):  # damaged: there are others
                    spill.spill(reader, (atom_id,), folder)


def set_aside(folder: Path, pool: str, beginnings: Mapping[int, int]) -> None:
    """Let nobody go on from atoms that are later than where agents go on: what they led to is done
    anew, perhaps otherwise. Files get another name, in the pool they are freed.

    Args:
        beginnings: sequence numbers by rank; atoms of other agents stay.

    Raises:
        OSError: a file can't be renamed.
        PoolOwned: somebody writes the pool.
    """
    for rank, labels in _by_rank(folder, []).items():
        for label, path in labels:
            if label.seq > beginnings.get(rank, label.seq):
                path.rename(path.with_name(path.name + PAST))
    with contextlib.suppress(PoolAbsent, PoolError), ShmPool.adopt(pool) as kept:
        for label in [entry.label for entry in kept.entries()]:
            if label.seq > beginnings.get(label.agent, label.seq):
                kept.free(label.id)


def _by_rank(folder: Path, notes: list[str]) -> Mapping[int, list[tuple[Label, Path]]]:
    """What lies there by the agent's rank, the newest first."""
    by_rank: dict[int, list[tuple[Label, Path]]] = {}
    for path in spill.files(folder):
        try:
            label = spill.label_of(path)
        except (AtomError, MachineError) as error:
            notes.append(f"passed over: {error}")
            continue
        by_rank.setdefault(label.agent, []).append((label, path))
    for labels in by_rank.values():
        labels.sort(key=lambda each: (each[0].seq, each[0].id), reverse=True)
    return by_rank


def _whole(path: Path, name: str) -> Atom:
    """The atom, if an agent can go on from it.

    Raises:
        AtomError: it is damaged, another agent's, or lacks what an agent consists of.
    """
    body = spill.load(path).body
    try:
        atom = codec.decode(body)
    except AtomError as error:
        raise type(error)(f"{path}: {error}") from None
    if atom.manifest.agent != name:
        raise AtomForeign(f"{path} is an atom of {atom.manifest.agent}, not of {name}")
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
        raise AtomForeign(f"{path} holds nothing of {' and '.join(missing)}")
    return atom
