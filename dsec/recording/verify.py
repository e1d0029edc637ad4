"""Do two runs say the same? And is a recording what was recorded?

Owns the order of the questions and the errors that answer them. First each recording is held
against its own hash chain, then the two chains are compared; where they differ, the last mark at
which they agree says from where on values have to be compared. With `quick` the chains that the
recorder wrote down are believed, and of the data only what lies around a difference is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dsec.errors import (
    AgentsDiffer,
    LengthsDiffer,
    RecordingAbsent,
    RecordingUnfinished,
    RecordingUntrue,
    SpacesDiffer,
)
from dsec.recording import Recording
from dsec.recording.arrays import Agent, Source
from dsec.recording.compare import Comparison, Difference
from dsec.runners.chained import RowChain
from dsec.runners.columns import outcomes
from dsec.sml.chain import BEGIN, MARK_EVERY, unpack

NAMES_MAX = 8
LOST_MAX = 1 << 24
"""Steps without a row that are believed: each was a failover that failed."""


@dataclass(frozen=True, slots=True)
class AgentVerdict:
    """What came out for one agent.

    Attributes:
        transitions: as many as both have.
        step: the first one that differs, -1 if none does.
        differences: in what.
        chain: its hash chain at the end, of the first run, in hexadecimal digits.
    """

    agent: str
    transitions: int
    step: int = -1
    differences: tuple[Difference, ...] = ()
    chain: str = ""

    @property
    def identical(self) -> bool:
        """Nothing differs."""
        return self.step < 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out for two runs. `seeds` are theirs; `quick` says that chains were believed."""

    agents: tuple[AgentVerdict, ...]
    seeds: tuple[int, int]
    quick: bool = False

    @property
    def identical(self) -> bool:
        """Nothing differs in any agent."""
        return all(agent.identical for agent in self.agents)


def open_finished(run_dir: str | Path, agent: str | None = None) -> Recording:
    """Open the recording of a run that has ended.

    Raises:
        RecordingAbsent: there is none.
        RecordingUnfinished: the stream of an agent, or of this one, has no end.
        JournalError: it is damaged, of another version, or needs pyarrow.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise RecordingAbsent(f"{run_dir} is no run directory: there is no such folder")
    if not (run_dir / "journal.dsj").exists() and not any(run_dir.glob("recording/*.parquet")):
        raise RecordingAbsent(f"{run_dir} holds no recording{_why_none(run_dir)}")
    recording = Recording.open(run_dir)
    for each in recording.agents:
        if agent in (None, each.name) and not (each.ended or each.abandoned):
            recording.close()
            raise RecordingUnfinished(
                f"{run_dir}: the recording of {each.name} stops after {each.transitions:,} steps"
                " without an end: its run goes on, or its kernel was killed"
            )
    return recording


def _why_none(run_dir: Path) -> str:
    try:
        document = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
        if document["record"]["format"] == "none":
            return ": the run was told to keep none (record.format: none)"
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        pass
    found = sorted(run_dir.glob("*/kernel.json"), key=lambda path: path.stat().st_mtime)
    return f"; it holds run directories, the newest is {found[-1].parent}" if found else ""


def verify(
    run_a: str | Path, run_b: str | Path, agent: str | None = None, *, quick: bool = False
) -> Verdict:
    """Compare the recordings of two runs.

    Args:
        agent: only this one.
        quick: believe the hash chains that the recorder wrote, instead of reading all data.

    Raises:
        RecordingAbsent, RecordingUnfinished: see `open_finished`.
        RecordingUntrue: what one of them holds is not what was recorded.
        AgentsDiffer, SpacesDiffer: they can't be compared.
        LengthsDiffer: they say the same, as far as both go.
        JournalError: see `open_finished`.
    """
    with open_finished(run_a, agent) as a, open_finished(run_b, agent) as b:
        names = _common(a, b, agent)
        found: list[AgentVerdict] = []
        longer: list[str] = []
        for name in names:
            one, other = a.source(name), b.source(name)
            _comparable(name, one.agent, other.agent)
            mine, theirs = (
                _Side(recording.run_dir, recording.source(name), quick=quick)
                for recording in (a, b)
            )
            verdict = _compare(mine, theirs)
            found.append(verdict)
            if verdict.identical and mine.count != theirs.count:
                longer.append(f"{name} has {mine.count:,} steps in A and {theirs.count:,} in B")
        result = Verdict(tuple(found), (a.seed, b.seed), quick)
    if longer and result.identical:
        more = f", and {len(longer) - 1:,} more agents" if len(longer) > 1 else ""
        raise LengthsDiffer(f"{longer[0]}{more}; as far as both go they are the same")
    return result


def _common(a: Recording, b: Recording, agent: str | None) -> list[str]:
    """The agents to compare."""
    left, right = ([each.name for each in recording.agents] for recording in (a, b))
    if agent is not None:
        for recording, names in ((a, left), (b, right)):
            if agent not in names:
                raise AgentsDiffer(
                    f"no agent {agent} in {recording.run_dir}; there are {_listed(names)}"
                )
        return [agent]
    only = [
        f"only {name} has {_listed(rest)}"
        for name, rest in (
            ("A", sorted(set(left) - set(right))),
            ("B", sorted(set(right) - set(left))),
        )
        if rest
    ]
    if only:
        raise AgentsDiffer(f"they are of different agents: {'; '.join(only)}; --agent compares one")
    return left


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _comparable(name: str, a: Agent, b: Agent) -> None:
    pairs: list[tuple[str, Any, Any]] = [
        ("observation space", a.observation_space, b.observation_space),
        ("action space", a.action_space, b.action_space),
        ("number of environments", a.num_envs, b.num_envs),
    ]
    for what, left, right in pairs:
        if left != right:
            raise SpacesDiffer(f"{name} has another {what}: {left} in A, {right} in B")


class _Side:
    """One agent in one of the recordings: its chain, proven by its data or believed."""

    def __init__(self, run_dir: Path, source: Source, *, quick: bool) -> None:
        self.run_dir = run_dir
        self.source = source
        self.count = source.committed
        self.quick = quick
        if not quick:
            self.chain, self.marks = self._prove()
            return
        self.chain, self.marks = source.agent.chain, source.marks()
        if not self.chain:
            raise RecordingUntrue(
                f"{run_dir}: there is no hash chain of {source.agent.name} to believe; compare"
                " without --quick"
            )

    def _prove(self) -> tuple[str, list[bytes]]:
        """Compute the chain from the data, and hold it against what the recorder wrote down."""
        source, agent = self.source, self.source.agent
        begins = unpack(source.begins)[0] if source.begins else BEGIN
        chain = RowChain(source.spaces, agent.num_envs, begins)
        for rows, led in outcomes(source.rows()):
            chain.take(rows, led)
        if self.count < 0:
            self.count = chain.at.seq
        if self.count - agent.transitions > LOST_MAX:
            raise RecordingUntrue(
                f"{self.run_dir}: {agent.name} can't have {self.count:,} steps, with rows for"
                f" {agent.transitions:,} of them"
            )
        last = chain.end(self.count)
        marks = [mark.value for mark in chain.marks]
        if agent.chain and (last.value.hex(), last.seq) != (agent.chain, self.count):
            agreed = _agreed(marks, source.marks())
            raise RecordingUntrue(
                f"{self.run_dir}: what it holds of {agent.name} is not what was recorded: it"
                f" doesn't fit the hash chain, somewhere behind step {agreed:,}"
            )
        return last.value.hex(), marks


def _agreed(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """Up to which transition two lists of marks agree."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same * MARK_EVERY


def _compare(a: _Side, b: _Side) -> AgentVerdict:
    agent = a.source.agent
    count = min(a.count, b.count)
    if (a.chain, a.count) == (b.chain, b.count):
        return AgentVerdict(agent.name, count, chain=a.chain)
    start = _agreed(a.marks, b.marks)
    found = Comparison(agent).first(a.source.rows(), b.source.rows(), start, count)
    if found is not None:
        return AgentVerdict(agent.name, count, *found, chain=a.chain)
    if a.count == b.count:
        raise RecordingUntrue(
            f"the hash chains of {agent.name} differ behind step {start:,}, and what is recorded"
            " there doesn't: one of the recordings is not what was recorded; compare without"
            " --quick"
        )
    return AgentVerdict(agent.name, count, chain=a.chain)
