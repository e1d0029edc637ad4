"""Read what a run recorded: `Recording.open(run_dir)`, then arrays.

    with Recording.open("runs/cartpole") as recording:
        for agent in recording.agents:
            data = recording.transitions(agent.name)
            print(agent.name, data.obs.shape, data.reward.sum())

A recording is the journal of a run that was not converted (it goes on, its kernel was killed, or
pyarrow is missing), or else the Parquet files that the journal became. This file hides which; both
give equal arrays. Parquet needs the extra `record`. Nothing here needs a kernel or its processes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from dsec.errors import JournalError, LocalError
from dsec.recording.arrays import Agent, Episode, Source, Transitions, episodes, make_agent
from dsec.runners import columns, convert
from dsec.runners.columns import Rows
from dsec.runners.journal import FILE_NAME, JournalReader
from dsec.runners.schema import AgentPart
from dsec.runners.tables import TableReader
from dsec.sml.chain import LINK_BYTES, MARK_BYTES

__all__ = ["Agent", "Episode", "Recording", "Transitions"]


class Recording:
    """The recording of one run directory; made by `open`, closed by `close` or `with`.

    Attributes:
        run: the run's name.
        seed: its seed.
        agents: in the order of their names.
        form: `journal` or `parquet`.
        complete: every stream has its end, clean or abandoned.
        damage: with `salvage`, where the journal is damaged; empty if it isn't.
    """

    def __init__(
        self,
        run_dir: Path,
        form: str,
        run: tuple[str, int],
        sources: dict[str, Source],
        closers: list[Callable[[], None]],
        *,
        complete: bool,
        damage: str = "",
    ) -> None:
        self.run_dir = run_dir
        self.form = form
        self.run, self.seed = run
        self.agents = tuple(source.agent for source in sources.values())
        self.complete = complete
        self.damage = damage
        self._sources = sources
        self._closers = closers

    @staticmethod
    def open(run_dir: str | Path, *, salvage: bool = False) -> Recording:
        """Open the recording in a run directory.

        Args:
            salvage: read a damaged journal up to the damage, instead of raising.

        Raises:
            JournalError: there is none, it is damaged, or it is Parquet and pyarrow is missing.
        """
        run_dir = Path(run_dir)
        if (run_dir / FILE_NAME).exists():
            return _open_journal(run_dir, salvage)
        paths = sorted((run_dir / convert.FOLDER).glob("*.parquet"))
        if not paths:
            raise JournalError(f"no recording in {run_dir}{_runs_inside(run_dir)}")
        if not convert.available():
            raise JournalError(f"the recording in {run_dir} is Parquet: {convert.HINT}")
        return _open_tables(run_dir, paths)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The run's summary.json, None if the run has none (yet).

        Raises:
            JournalError: it is no JSON object.
        """
        try:
            found = json.loads((self.run_dir / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JournalError(f"can't read {self.run_dir / 'summary.json'}: {error}") from None
        if not isinstance(found, dict):
            raise JournalError(f"{self.run_dir / 'summary.json'} holds no object")
        return found

    def transitions(self, agent: str, env: int | None = None) -> Transitions:
        """All transitions of an agent, in memory at once.

        Args:
            env: of this environment only.

        Raises:
            LocalError: there is no such agent or environment.
            JournalError: the recording is damaged.
        """
        source = self.source(agent)
        return source.load(list(source.rows()), env)

    def iterate(self, agent: str, env: int | None = None) -> Iterator[Transitions]:
        """The same, a piece at a time, for what doesn't fit into memory.

        Raises:
            LocalError, JournalError: as for transitions.
        """
        source = self.source(agent)
        return (source.load([rows], env) for rows in source.rows())

    def episodes(self, agent: str | None = None) -> Iterator[Episode]:
        """The episodes of an agent, or of all agents, in the order of their ends.

        Raises:
            LocalError, JournalError: as for transitions.
        """
        names = list(self._sources) if agent is None else [agent]
        for name in names:
            yield from episodes(name, self.source(name).rows())

    def source(self, agent: str) -> Source:
        """Where an agent's rows come from, for who takes them as they are.

        Raises:
            LocalError: there is no such agent.
        """
        try:
            return self._sources[agent]
        except KeyError:
            known = ", ".join(list(self._sources)[:8])
            raise LocalError(f"no agent {agent!r} in {self.run_dir}; there are {known}") from None

    def close(self) -> None:
        """Close the files; again is no error."""
        for close in self._closers:
            close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _runs_inside(folder: Path) -> str:
    """Words for whoever named the folder of all runs, or something inside of one."""
    found = sorted(folder.glob("*/kernel.json"), key=lambda path: path.stat().st_mtime)
    if found:
        return f"; it holds run directories, the newest is {found[-1].parent}"
    for outer in (folder.parent, folder.parent.parent):
        if (outer / "kernel.json").exists():
            return f"; the run directory is {outer}"
    return "" if folder.exists() else ": there is no such folder"


def _open_journal(run_dir: Path, salvage: bool) -> Recording:
    journal = JournalReader(run_dir / FILE_NAME, salvage=salvage)
    try:
        sources = {}
        for each in sorted(journal.index.agents, key=lambda each: each.declaration.agent):
            declared = each.declaration
            agent = make_agent(
                declared.agent,
                declared.group,
                declared.num_envs,
                declared.spaces,
                each.transitions,
                each.ended,
                each.abandoned is not None,
                each.abandoned.action_last if each.abandoned else "",
                journal.link(each).hex(),
            )
            sources[agent.name] = Source(
                agent,
                _rows_of_journal(journal, declared.index),
                declared.spaces,
                each.seq_committed + 1,
                functools.partial(journal.marks, each),
                declared.chain,
            )
    except BaseException:
        journal.close()
        raise
    index = journal.index
    return Recording(
        run_dir,
        "journal",
        (index.run.name, index.run.seed) if index.run else ("", 0),
        sources,
        [journal.close],
        complete=all(each.finished for each in index.agents),
        damage=index.damage,
    )


def _rows_of_journal(journal: JournalReader, number: int) -> Callable[[], Iterator[Rows]]:
    return lambda: columns.rows(journal, number)


def _rows_of_table(table: TableReader, part: AgentPart) -> Callable[[], Iterator[Rows]]:
    return lambda: table.rows(part)


def _marks_of_table(path: Path, part: AgentPart) -> list[bytes]:
    try:
        values = bytes.fromhex(part.marks)
    except ValueError:
        raise JournalError(f"{path}: damaged: the marks of {part.agent!r} are none") from None
    return [values[at : at + LINK_BYTES] for at in range(0, len(values), LINK_BYTES)]


def _mark_of_table(path: Path, part: AgentPart) -> bytes:
    try:
        found = bytes.fromhex(part.begins)
    except ValueError:
        found = b"?"
    if len(found) not in (0, MARK_BYTES):
        raise JournalError(f"{path}: damaged: the beginning of {part.agent!r} is none")
    return found


def _open_tables(run_dir: Path, paths: Iterable[Path]) -> Recording:
    tables: list[TableReader] = []
    try:
        found: dict[str, Source] = {}
        complete = True
        for path in paths:
            tables.append(TableReader(path))
            metadata = tables[-1].metadata
            for part in metadata.agents:
                agent = make_agent(
                    part.agent,
                    metadata.group,
                    metadata.num_envs,
                    tables[-1].spaces,
                    part.rows // metadata.num_envs,
                    part.ended,
                    part.abandoned,
                    part.action_last,
                    part.chain,
                )
                complete = complete and (part.ended or part.abandoned)
                found[part.agent] = Source(
                    agent,
                    _rows_of_table(tables[-1], part),
                    tables[-1].spaces,
                    part.committed,
                    functools.partial(_marks_of_table, tables[-1].path, part),
                    _mark_of_table(tables[-1].path, part),
                )
    except BaseException:
        for table in tables:
            table.close()
        raise
    sources = dict(sorted(found.items()))
    return Recording(
        run_dir,
        "parquet",
        (tables[0].metadata.run, tables[0].metadata.seed),
        sources,
        [table.close for table in tables],
        complete=complete,
    )
