"""The changes to the directory of a run that goes on, all of which can be taken back.

Owns their order, which leaves the directory fit to be resumed after a kill at any instruction, and
the way back: where not one step comes of a resume, everything is again byte for byte what it was,
but for logs. What is replaced or removed keeps its content under a second name (a hard link) until
then; the journal, which only ever grows, gets its old end. What is to be done is decided before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.engine import origins
from dsec.engine.origins import Left
from dsec.errors import DsecError, JournalError, MachineError, PoolAbsent
from dsec.rundir import RunDir
from dsec.runners import cutting
from dsec.runners.cutting import Cutting
from dsec.runners.journal import FILE_NAME, KEPT_NAME
from dsec.sml import spill
from dsec.sml.pool_shm import ShmPool, ShmReader

BEFORE: Final = ".before"
PAST: Final = ".past"
"""Behind the name of an atom's file that belongs to what a resumed run has done anew."""
UNFIT: Final = ".unfit"
"""Behind that of a file that was no whole atom of this run."""
_FOLDERS: Final = (origins.FOLDER, "recording")
_FILES: Final = ("config.yaml", "kernel.json", "summary.json")
_SAVED_PER_AGENT: Final = 2


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be done.

    Attributes:
        journal: how the journal is cut back; None where there is none.
        atoms: what there is of them.
        beginnings: where agents go on, by their ranks.
        pool: the run's; empty if it has none.
    """

    journal: Cutting | None
    atoms: Left
    beginnings: Mapping[int, int]
    pool: str


def carry_out(directory: RunDir, changes: Changes) -> None:
    """Change the run directory from one that ended to one that goes on. `RunDir.discard` takes it
    back, for as long as `RunDir.settle` wasn't called.

    Raises:
        MachineError: something can't be written. Everything is as it was.
    """
    path = directory.path
    before = _Before(path, changes.journal)
    directory.on_discard(before.put_back, before.forget)
    try:
        before.keep()
        before.stays(_carry_out(path, changes))
    except (JournalError, MachineError, OSError) as error:
        directory.take_back()
        raise unfit(path, f"{type(error).__name__}: {error}") from None


def unfit(path: Path, why: str) -> MachineError:
    """Why a run can't be resumed."""
    return MachineError(
        f"the run in {path} can't be resumed: {why}",
        "What it recorded can be read up to there with Recording.open(..., salvage=True)",
    )


def _carry_out(path: Path, changes: Changes) -> list[Path]:
    """Do it; return the atoms that came to disk."""
    atoms, saved = changes.atoms, list[Path]()
    for each in atoms.unfit:
        _rename(each, UNFIT)
    later = list(origins.later(atoms, changes.beginnings))
    for _, place in later:
        if place is not None and place not in atoms.unfit:
            _rename(place, PAST)
    if atoms.pool:
        saved = _to_disk(atoms, {label.id for label, _ in later})
    if changes.journal is not None:
        journal = path / FILE_NAME
        if changes.journal.path != journal:
            changes.journal.path.rename(journal)
        cutting.carry_out(changes.journal, journal)
    if changes.pool:
        with contextlib.suppress(PoolAbsent, DsecError), ShmPool.adopt(changes.pool) as pool:
            for label in [entry.label for entry in pool.entries()]:
                if label.seq > changes.beginnings.get(label.agent, label.seq):
                    pool.free(label.id)
    with contextlib.suppress(FileNotFoundError):  # which says how an earlier life ended
        (path / "summary.json").unlink()
    return saved


def _rename(path: Path, ending: str) -> None:
    path.rename(path.with_name(path.name + ending))


def _to_disk(atoms: Left, later: Container[int]) -> list[Path]:
    """Bring to disk what only the pool has of the latest atoms that may be gone on from."""
    saved = []
    with ShmReader(atoms.pool) as reader:
        for labels in atoms.places.values():
            fit = [each for each in labels if each[0].id not in later]
            wanted = [label.id for label, path in fit[:_SAVED_PER_AGENT] if path is None]
            saved += spill.spill(reader, wanted, atoms.folder)
    return saved


class _Before:
    """What a run directory was.

    Args:
        path: the directory.
        journal: which is about to be cut, and where it lies.
    """

    def __init__(self, path: Path, journal: Cutting | None) -> None:
        self._path, self._journal = path, journal
        self._tail = b""
        self._kept: list[str] = []
        self._stays: set[str] = set()

    def keep(self) -> None:
        """Give a second name to all that may be replaced or removed.

        Raises:
            OSError: it can't be done.
        """
        self.forget()
        folder = self._path / BEFORE
        folder.mkdir()
        names = [name for name in _FILES if (self._path / name).exists()]
        for each in _FOLDERS:
            if (self._path / each).is_dir():
                (folder / each).mkdir()
                names += [f"{each}/{path.name}" for path in (self._path / each).iterdir()]
        for name in names:
            _second_name(self._path / name, folder / name)
        self._kept = names
        if self._journal is not None:
            with self._journal.path.open("rb") as file:
                file.seek(self._journal.end)
                self._tail = file.read()

    def stays(self, saved: Iterable[Path]) -> None:
        """Atoms that only a pool had are safe now, and stay, whatever becomes of the pool."""
        self._stays = {f"{origins.FOLDER}/{path.name}" for path in saved}

    def put_back(self) -> None:
        """Let everything be as it was.

        Raises:
            OSError: something can't be written.
        """
        folder = self._path / BEFORE
        if not folder.exists():
            return
        for each in _FOLDERS:
            for path in (self._path / each).glob("*"):
                if f"{each}/{path.name}" not in {*self._kept, *self._stays}:
                    path.unlink()
            if not (folder / each).exists():
                with contextlib.suppress(FileNotFoundError):
                    (self._path / each).rmdir()
        for name in self._kept:
            if name not in self._stays:
                (folder / name).replace(self._path / name)
        if self._journal is not None:
            self._put_back_journal(self._journal)
        self.forget()

    def _put_back_journal(self, cut: Cutting) -> None:
        found = next(p for n in (FILE_NAME, KEPT_NAME) if (p := self._path / n).exists())
        with found.open("r+b") as file:
            file.truncate(cut.end)
            file.seek(cut.end)
            file.write(self._tail)
            file.flush()
            os.fsync(file.fileno())
        found.replace(cut.path)

    def forget(self) -> None:
        """There is no way back any more; nor is one needed that a killed resume has left."""
        shutil.rmtree(self._path / BEFORE, ignore_errors=True)


def _second_name(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # a file system without hard links
        shutil.copy2(path, other)
