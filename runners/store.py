"""Where atoms go: into the pool, whose one writer this is, and the newest of each agent to disk.

Owns the pool's life (made, or taken over from one that died), what is freed when, and the files in
RUN_DIR/atoms. An atom is put before an older one is freed, and a file is whole before an older one
is removed, so that a crash at any instruction leaves the old atom or the new one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsec.errors import (
    AtomError,
    AtomExists,
    AtomTooLarge,
    DsecError,
    MachineError,
    PoolAbsent,
    PoolFull,
)
from dsec.ipc.frames import PoolStart
from dsec.sml import codec, ids, spill
from dsec.sml.atom import Atom
from dsec.sml.pool import Label
from dsec.sml.pool_shm import METADATA_BYTES, ShmPool
from dsec.sml.reclaim import Retention, plan

FOLDER: Final = "atoms"
RECLAIM_EVERY: Final = 256
RECLAIM_EVERY_S: Final = 1.0
SPILL_EVERY_S: Final = 5.0
SPILLS_AT_ONCE: Final = 4
FILES_KEPT: Final = 2
_WORD: Final = (1 << 32) - 1
_KEY: Final = "pool.size_mb"
_UNDER_PRESSURE: Final = Retention(keep_last=1)


class Refused(DsecError):
    """The pool does not take an atom.

    Attributes:
        key: of the configuration, to be changed; empty where the run can go on without this atom.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Store:
    """The pool and the folder of one run.

    Attributes:
        stored: is told of each atom that was put.
        spilled: agents of which there is an atom on disk.

    Raises:
        PoolError, MachineError: the pool can't be had; `key` names the part of the configuration.
    """

    def __init__(self, start: PoolStart) -> None:
        self._start = start
        self._folder = Path(start.run_dir) / FOLDER
        self._retention = Retention()
        self._pool = _open(start)
        self._closed = False
        self.stored: Callable[[Label, bytes], None] = lambda label, body: None
        self._newest: dict[int, Label] = {}
        self._files: dict[int, list[tuple[int, Path]]] = {}  # by rank, the newest last
        self._spill_at_s: dict[int, float] = {}
        self._puts, self._reclaim_at_s = 0, 0.0
        for entry in self._pool.entries():
            self._newer(entry.label)
        for path in spill.files(self._folder) if self._folder.is_dir() else ():
            with contextlib.suppress(AtomError, MachineError):
                label = spill.load(path).label
                self._newer(label)
                self._files.setdefault(label.agent, []).append((label.id, path))

    @property
    def run_dir(self) -> Path:
        """Of the run."""
        return Path(self._start.run_dir)

    @property
    def space(self) -> tuple[int, int]:
        """The name space of the pool's UUIDs."""
        return self._pool.space

    @property
    def spilled(self) -> int:
        return len(self._files)

    def last(self, rank: int) -> int:
        """The boundary of an agent's newest atom; -1 if it has none."""
        label = self._newest.get(rank)
        return -1 if label is None else label.seq

    def name(self, rank: int, seq: int) -> tuple[int, uuid.UUID]:
        """Id and UUID of the atom of an agent at a boundary."""
        atom_id = ids.deterministic(seq, self._start.agents, rank)
        return atom_id, ids.to_uuid(self._pool.space, atom_id)

    def put(self, atom: Atom, snapshot_interval: int) -> int:
        """Store an atom; return its bytes. One at no multiple of the snapshot interval gives way to
        the next of its agent.

        Raises:
            Refused: the pool has no room for it.
        """
        manifest = atom.manifest
        label = Label(
            manifest.id,
            manifest.agent_rank,
            manifest.episode & _WORD,
            manifest.rollout & _WORD,
            manifest.seq,
            int(time.time()),
        )
        body = codec.encode(atom)
        before = self._newest.get(label.agent)
        self._put(label, body, first=before is None)
        self._newest[label.agent] = label
        if before is not None and before.seq % snapshot_interval and before.id != label.id:
            self._free(before.id)
        self._puts += 1
        self.stored(label, body)
        return len(body)

    def tend(self) -> str:
        """Free what nobody needs, and bring to disk what is newer than what lies there.

        Returns:
            What `spill` does.
        """
        now = time.monotonic()
        if self._puts >= RECLAIM_EVERY or (self._puts and now >= self._reclaim_at_s):
            self._reclaim()
        due = [
            rank
            for rank, label in self._newest.items()
            if self._spilled(rank) != label.id and now >= self._spill_at_s.get(rank, 0.0)
        ]
        said = [self.spill(rank) for rank in due[:SPILLS_AT_ONCE]]
        return next(filter(None, said), "")

    def spill(self, rank: int) -> str:
        """Bring an agent's newest atom to disk, and take away what is older than the one before:
        should that be damaged, there is still another.

        Returns:
            Why it can't be written, empty if it was. It is tried again later: what lies on disk
            stays, and so does the atom in the pool.
        """
        label = self._newest.get(rank)
        if label is None or self._spilled(rank) == label.id:
            return ""
        try:
            [path] = spill.spill(self._pool, (label.id,), self._folder)
        except MachineError as error:
            self._spill_at_s[rank] = time.monotonic() + SPILL_EVERY_S
            return str(error)
        files = self._files.setdefault(rank, [])
        files.append((label.id, path))
        self._spill_at_s[rank] = time.monotonic() + SPILL_EVERY_S
        while len(files) > FILES_KEPT:
            files.pop(0)[1].unlink(missing_ok=True)
        return ""

    def _spilled(self, rank: int) -> int:
        files = self._files.get(rank)
        return files[-1][0] if files else -1

    def held(self) -> tuple[int, int]:
        """Atoms that stay in the pool, and the bytes that they take there."""
        self._reclaim()
        usage = self._pool.usage()
        return usage.atoms, usage.room_bytes

    def close(self) -> None:
        """Let go of the pool, and of its memory unless that may outlive the run. Idempotent."""
        if not self._closed:
            self._closed = True
            if not self._start.persist:
                self._pool.unlink()
            self._pool.close()

    def _newer(self, label: Label) -> None:
        known = self._newest.get(label.agent)
        if known is None or label.id > known.id:
            self._newest[label.agent] = label

    def _put(self, label: Label, body: bytes, *, first: bool) -> None:
        try:
            with contextlib.suppress(AtomExists):  # put by one that died before it could say so
                self._pool.put(label, body)
        except AtomTooLarge as error:
            said = f"an atom does not fit: {error}; {self._needed(body)}"
            raise Refused(said, _KEY if first else "") from None
        except PoolFull:
            self._put_pressed(label, body)

    def _put_pressed(self, label: Label, body: bytes) -> None:
        """Put it where the pool is full: the older atoms of all agents go, but never the newest of
        one. Where that isn't enough either, the run goes on without this one."""
        for retention in (self._retention, _UNDER_PRESSURE):
            self._reclaim(retention)
            with contextlib.suppress(PoolFull):
                self._pool.put(label, body)
                return
        raise Refused(
            f"no room for an atom of {len(body):,} bytes, although of every agent only the newest"
            f" is kept: {_KEY} is {self._start.size_mb}; {self._needed(body)}"
        )

    def _needed(self, body: bytes) -> str:
        """How large the pool should be: two atoms of each agent, and a quarter beside."""
        agents = self._start.agents
        least = agents * 2 * (len(body) + METADATA_BYTES) * 5 // 4
        return f"{agents:,} agents with such atoms need {(least >> 20) + 1}"

    def _reclaim(self, retention: Retention | None = None) -> None:
        self._puts, self._reclaim_at_s = 0, time.monotonic() + RECLAIM_EVERY_S
        kept, now_s = retention or self._retention, time.time()
        decided = plan(self._pool.entries(), self._pool.usage(), kept, now_s, standbys=False)
        for verdict in decided.frees:
            self._free(verdict.entry.label.id)

    def _free(self, atom_id: int) -> None:
        with contextlib.suppress(DsecError):  # freed already, say by the reclaimer
            self._pool.free(atom_id)


def _open(start: PoolStart) -> ShmPool:
    try:
        return ShmPool.adopt(start.name)
    except PoolAbsent:
        pass
    except DsecError as error:
        error.key = "pool"  # type: ignore[attr-defined]
        raise
    try:
        size, persist, space = start.size_mb << 20, start.persist, start.space
        return ShmPool.create(start.name, size, persist=persist, bound=True, space=space)
    except DsecError as error:
        error.key = _KEY  # type: ignore[attr-defined]
        raise
