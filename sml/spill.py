"""Atoms on disk: one file for each, whole or not there at all, and proven when it is read.

Owns the files `ASA-000123.atom` of a folder. A file is written under a hidden name, synchronised,
and only then renamed, so that a crash at any point leaves the old file or the new one. What an atom
means is not looked into: a body is bytes, its label stands before it.

    bytes  0 magic | 8 version | 10 marks | 12 length | 16 id | 24 seq | 32 agent | 36 episode
          40 rollout | 44 created | 48 xxh3 of the body | 56 xxh3 of bytes 0 to 55 | 64 body
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from dsec.errors import (
    AtomCorrupt,
    AtomExists,
    AtomForeign,
    AtomTooNew,
    AtomTooOld,
    AtomTruncated,
    MachineError,
)
from dsec.sml import ids
from dsec.sml.pool import Label, Marks, Pool, PoolReader

VERSION = 1
OLDEST = 1
MAGIC = b"DASAFILE"
SUFFIX = ".atom"
_HEAD = struct.Struct("<8sHHIQQIIIIQ")
_SUM = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size + _SUM.size


@dataclass(frozen=True, slots=True)
class Spilled:
    """An atom as it was read from disk."""

    label: Label
    marks: Marks
    body: bytes


def path_of(folder: Path, atom_id: int) -> Path:
    """Where an atom lies."""
    return folder / f"{ids.shown(atom_id)}{SUFFIX}"


def spill(pool: PoolReader, wanted: Iterable[int], folder: Path) -> list[Path]:
    """Write atoms to disk, replacing what was there of the same ids. The pool keeps them.

    Returns:
        The files, all of which are on the disk and not only in its cache.

    Raises:
        AtomAbsent, AtomCorrupt, PoolBusy: see PoolReader.get; those before it are written.
        MachineError: the disk is full, or the folder can't be written.
    """
    written = []
    for atom_id in wanted:
        entry = pool.entry(atom_id)
        body = pool.get(atom_id)
        path = path_of(folder, atom_id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _replace(path, _head(entry.label, entry.marks, body) + body)
        except OSError as error:
            raise MachineError(
                f"can't write {path}: {error.strerror}", "Make room there, or spill elsewhere."
            ) from None
        written.append(path)
    if written:
        _synchronise(folder)
    return written


def load(path: Path) -> Spilled:
    """Read an atom from disk.

    Raises:
        AtomTruncated, AtomCorrupt, AtomTooOld, AtomTooNew, AtomForeign: it is none; names the file.
        MachineError: it can't be read.
    """
    label, marks, nbytes, total, data = _open(path, whole=True)
    body = data[HEAD_BYTES:]
    if len(body) < nbytes:
        raise AtomTruncated(f"{path}: a body of {nbytes:,} bytes ends after {len(body):,}")
    if len(body) > nbytes or xxhash.xxh3_64_intdigest(body) != total:
        raise AtomCorrupt(f"{path}: its body is damaged")
    return Spilled(label, marks, body)


def label_of(path: Path) -> Label:
    """Whose atom a file holds, from its head alone. Raises as `load`; the body is not looked at."""
    return _open(path, whole=False)[0]


def _open(path: Path, *, whole: bool) -> tuple[Label, Marks, int, int, bytes]:
    """Read a file, or its first bytes; give what its head says, and what was read."""
    try:
        with path.open("rb") as file:
            data = file.read(-1 if whole else HEAD_BYTES)
    except OSError as error:
        raise MachineError(f"can't read {path}: {error.strerror}", "") from None
    magic = data[:8]
    if magic != MAGIC:
        if MAGIC.startswith(magic):
            raise AtomTruncated(f"{path} has {len(data)} bytes, too few for an atom's head")
        raise AtomForeign(f"{path} is no spilled atom: it begins with {magic!r}")
    if len(data) < HEAD_BYTES:
        raise AtomTruncated(f"{path} has {len(data)} bytes, too few for an atom's head")
    (proof,) = _SUM.unpack_from(data, _HEAD.size)
    if xxhash.xxh3_64_intdigest(data[: _HEAD.size]) != proof:
        raise AtomCorrupt(f"{path}: its head is damaged")
    _, version, marks, nbytes, *numbers, total = _HEAD.unpack_from(data)
    if version < OLDEST:
        raise AtomTooOld(f"{path} has version {version}; this reads {OLDEST} to {VERSION}")
    if version > VERSION:
        raise AtomTooNew(f"{path} has version {version}; this reads {OLDEST} to {VERSION}")
    atom_id, seq, agent, episode, rollout, created_s = numbers
    label = Label(atom_id, agent, episode, rollout, seq, created_s)
    return label, Marks(marks & 3), nbytes, total, data


def files(folder: Path) -> Iterator[Path]:
    """The atoms of a folder, in the order of their ids as far as names tell."""
    yield from sorted(folder.glob(f"ASA-*{SUFFIX}"), key=lambda path: (len(path.name), path.name))


def refill(pool: Pool, folder: Path) -> int:
    """Put all atoms of a folder into a pool; those that it has already stay as they are.

    Returns:
        How many were put.

    Raises:
        As `load`, and as Pool.put but for AtomExists.
    """
    count = 0
    for path in files(folder):
        found = load(path)
        with contextlib.suppress(AtomExists):
            pool.put(found.label, found.body)
            pool.mark(found.label.id, found.marks)
            count += 1
    return count


def _head(label: Label, marks: Marks, body: bytes) -> bytes:
    head = _HEAD.pack(
        MAGIC, VERSION, int(marks), len(body), label.id, label.seq, label.agent, label.episode,
        label.rollout, label.created_s, xxhash.xxh3_64_intdigest(body),
    )  # fmt: skip
    return head + _SUM.pack(xxhash.xxh3_64_intdigest(head))


def _replace(path: Path, data: bytes) -> None:
    """The file has these bytes, or is as it was. What a crash leaves under the hidden name is taken
    over by the next try, and no list shows it; an error leaves nothing."""
    waiting = path.with_name(f".{path.name}.new")
    try:
        with waiting.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        waiting.replace(path)
    except OSError:
        waiting.unlink(missing_ok=True)
        raise


def _synchronise(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
