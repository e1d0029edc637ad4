"""From the journal to Parquet: one file for each config group, or none at all.

Owns the order of a conversion: which agent goes into which file, and that a conversion which is
killed leaves the journal whole and nothing half made. A file is written without a name, gets its
name when it is complete, and the journal is removed when all files have theirs. While there is a
journal it is the recording, and Parquet files beside it don't count. Knows no schema: that is
parquet.py. Rows come agent by agent, then by `seq`, then by `env`; so the same trajectories give
the same file, however they were scheduled.

What was published but never became a transition (records of an agent that was abandoned) has no
place in a table: its raw blocks go into a small journal beside the tables, `remainder.dsj`.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.util
import itertools
import os
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from dsec.errors import JournalError
from dsec.runners import columns
from dsec.runners.journal import (
    FILE_NAME,
    KEPT_NAME,
    AgentIndex,
    Index,
    JournalReader,
    JournalWriter,
    Kind,
    Run,
)
from dsec.runners.parquet import TableWriter
from dsec.runners.schema import METADATA_VERSION, AgentPart, Metadata

FOLDER: Final = "recording"
REMAINDER_NAME: Final = "remainder.dsj"
HINT: Final = "pip install 'dsec-kernel[record]'"


class ConversionStopped(Exception):
    """The caller asked to stop. The journal is whole and nothing else was left."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What came of it: the recording's files, relative to the run directory, and what to say."""

    files: tuple[str, ...]
    message: str = ""


def available() -> bool:
    """Whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def convert(
    run_dir: str | Path, stop: Callable[[], bool] = lambda: False, *, keep: bool = False
) -> Conversion:
    """Convert the journal of a run into `recording/*.parquet`.

    Args:
        run_dir: the run directory. It must not be in use by a run.
        stop: asked now and then; True ends the conversion at once.
        keep: the run may go on: the journal gets another name, by which it is no recording.

    Raises:
        JournalError: there is no journal, pyarrow is missing, the journal is damaged, or a file
            can't be written. The journal is as it was.
        ConversionStopped: `stop` said so.
    """
    if not available():
        raise JournalError(f"Parquet needs pyarrow: {HINT}")
    run_dir = Path(run_dir)
    folder = run_dir / FOLDER
    files: list[Path] = []
    troubles: list[str] = []
    with JournalReader(run_dir / FILE_NAME) as journal:
        if not journal.index.agents:
            # Of a recorder that was started anew when all was converted: that stays.
            journal.path.unlink()
            found = sorted(path for path in folder.glob("*") if path.suffix in (".parquet", ".dsj"))
            return Conversion(tuple(str(path.relative_to(run_dir)) for path in found))
        try:
            folder.mkdir(exist_ok=True)
            for stale in folder.glob("*.tmp"):
                stale.unlink()
            for name, agents in _groups(journal.index).items():
                path = folder / f"{name}.parquet"
                with _NamedWhenDone(path) as target:
                    troubles += _write_group(journal, agents, target.source, stop)
                    target.done()
                files.append(path)
            if _keep_remainders(journal, folder / REMAINDER_NAME):
                files.append(folder / REMAINDER_NAME)
            _sync_folder(folder)
        except OSError as error:
            raise JournalError(f"can't write {folder}: {error.strerror or error}") from None
    if not troubles:
        if keep:
            journal.path.rename(run_dir / KEPT_NAME)
        else:
            journal.path.unlink()
        _sync_folder(run_dir)
        return Conversion(tuple(str(path.relative_to(run_dir)) for path in files))
    text = "; ".join(troubles)
    names = (FILE_NAME, *(str(path.relative_to(run_dir)) for path in files))
    return Conversion(names, f"the journal is kept, for it doesn't convert as a whole: {text}")


def _groups(index: Index) -> dict[str, list[AgentIndex]]:
    """Agents by file name, in the order of their names, which no schedule can change.

    Agents of a group share a file unless their spaces differ.
    """
    found: dict[str, list[AgentIndex]] = {}
    names: dict[tuple[str, bytes, int], str] = {}
    for agent in sorted(index.agents, key=lambda agent: agent.declaration.agent):
        declared = agent.declaration
        key = (declared.group, declared.spaces, declared.num_envs)
        if key not in names:
            base = file_name(declared.group)
            names[key] = next(
                name
                for i in itertools.count(1)
                if (name := base if i == 1 else f"{base}~{i}") not in found
            )
        found.setdefault(names[key], []).append(agent)
    return found


def file_name(group: str) -> str:
    """A name for a group's file, without a suffix: safe on any file system and never shared."""
    quoted = urllib.parse.quote(group, " ()+,;=@[]{}!&'", "utf-8", "surrogatepass")
    name = quoted.replace("~", "%7E")  # which numbers the files of one group
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > 200 or not name:
        digest = hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        name = f"{name[:180]}%{digest}"
    return name


def _write_group(
    journal: JournalReader, agents: list[AgentIndex], path: str, stop: Callable[[], bool]
) -> list[str]:
    """Write one file; return what was wrong with agents whose records end before their time."""
    declared = agents[0].declaration
    names = [agent.declaration.agent for agent in agents]
    table = TableWriter(path, declared.spaces, declared.num_envs, names)
    parts: list[AgentPart] = []
    troubles: list[str] = []
    metadata = None
    try:
        for number, agent in enumerate(agents):
            first = table.rows
            try:
                for rows in columns.rows(journal, agent.declaration.index):
                    if stop():
                        raise ConversionStopped
                    table.add(number, rows)
            except JournalError as error:
                troubles.append(str(error))
            parts.append(_part(journal, agent, first, table.rows - first))
        run = journal.index.run
        metadata = Metadata(
            version=METADATA_VERSION,
            run=run.name if run else "",
            seed=run.seed if run else 0,
            group=declared.group,
            num_envs=declared.num_envs,
            spaces=base64.b64encode(declared.spaces).decode(),
            obs=table.obs,
            action=table.action,
            agents=tuple(parts),
        )
    finally:
        table.close(metadata)
    return troubles


def _part(journal: JournalReader, agent: AgentIndex, first_row: int, rows: int) -> AgentPart:
    declared, lost = agent.declaration, agent.abandoned
    link = journal.link(agent)
    return AgentPart(
        agent=declared.agent,
        first_row=first_row,
        rows=rows,
        ended=agent.ended,
        abandoned=lost is not None,
        cause=lost.cause if lost else "",
        action_last=lost.action_last if lost else "",
        committed=agent.seq_committed + 1,
        chain=link.hex(),
        marks=b"".join(journal.marks(agent)).hex() if link else "",
        begins=declared.chain.hex(),
    )


def _keep_remainders(journal: JournalReader, path: Path) -> bool:
    """Copy the blocks that no table holds into a journal of their own; say if there are any."""
    path.unlink(missing_ok=True)
    # Of an agent that ended before its first transition, observation 0 is in such a block, too.
    extra = {
        agent.declaration.index: [
            *(() if agent.transitions else agent.batches),
            *agent.remainders,
        ]
        for agent in journal.index.agents
    }
    agents = [agent for agent in journal.index.agents if extra[agent.declaration.index]]
    if not agents:
        return False
    temporary = path.with_name(path.name + ".tmp")
    writer = JournalWriter(temporary, journal.index.run or Run("", 0))
    try:
        for number, agent in enumerate(agents):
            declared = msgspec.structs.replace(agent.declaration, index=number)
            writer.append(Kind.DECLARATION, msgspec.msgpack.encode(declared), agent=number)
            for offset in extra[agent.declaration.index]:
                block = journal.read(offset)
                kind = Kind.REMAINDER if block.kind is Kind.REMAINDER else Kind.BATCH
                writer.append(kind, *block.parts, agent=number, trailer=block.trailer)
        writer.append(Kind.CLOSED)
        writer.sync()
        temporary.replace(path)
    finally:
        writer.close()
        temporary.unlink(missing_ok=True)
    return True


class _NamedWhenDone:
    """A file that has no name before `done()`, so that nothing is left of it if we are killed.

    Where the file system knows no unnamed files, it has a name that ends in `.tmp`; convert()
    removes what a killed one left.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary: Path | None = None
        try:
            self._fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            self._temporary = path.with_name(path.name + ".tmp")
            flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC
            self._fd = os.open(self._temporary, flags, 0o644)

    @property
    def source(self) -> str:
        """A path by which the file can be opened for writing."""
        return f"/proc/self/fd/{self._fd}"

    def done(self) -> None:
        """Put the file on the disk and give it its name, in place of an older one."""
        os.fsync(self._fd)
        if self._temporary is not None:
            self._temporary.replace(self._path)
            self._temporary = None
            return
        self._path.unlink(missing_ok=True)
        # With a directory descriptor Python calls linkat(AT_SYMLINK_FOLLOW); without, link().
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.link(self.source, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)

    def __enter__(self) -> _NamedWhenDone:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
