"""Going on with a run that ended before its time: what there is of it, and whether it may go on.

Owns the checks, which change nothing; what is to be changed then is reopen.py's. Agents that had
done their part stay as they are; every other one goes on from its newest atom, or begins anew where
it has none. What the recording has beyond that is cut off, for it is done again. Runs in the
supervisor; knows no numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsec.config import (
    Change,
    Config,
    Loaded,
    Override,
    agent_names,
    changes,
    dotted,
    load,
    refusals,
)
from dsec.engine import arrival, fork, identity, origins, reopen
from dsec.engine.identity import Known
from dsec.engine.origins import Found, Left, Wanted
from dsec.engine.plan import Beginning, Quota, pool_name, quotas
from dsec.engine.reopen import Changes, unfit
from dsec.errors import AtomError, ConfigError, JournalError, MachineError, PoolError
from dsec.ipc.frames import Origin
from dsec.report import AgentReport, RunReport
from dsec.rundir import RunDir
from dsec.sml.named import PREFIX, SHM

Began = fork.Lineage | arrival.Arrived
"""Where an agent's recording begins, if not at its beginning: both have seq and episode."""


@dataclass(slots=True)
class Past:
    """What earlier lives of a run have left.

    Attributes:
        starts: where each agent begins, by name, in order; None for those that are done.
        done: what those have done.
        before: steps that each of the others has behind it, and episodes.
        changed: keys of the configuration that are not what they were.
        notes: what is to be said of atoms that were passed over, and of agents that begin anew.
        facts: of the earlier lives, for kernel.json.
        changes: to the run directory, for the run to go on.
    """

    starts: dict[str, Beginning | None] = field(default_factory=dict)
    done: dict[str, AgentReport] = field(default_factory=dict)
    before: dict[str, tuple[int, int]] = field(default_factory=dict)
    changed: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    recorded: bool = True
    journal: Path | None = None
    ending: frozenset[str] = frozenset()
    changes: Changes | None = None

    def add_to(self, report: RunReport) -> None:
        """Let the report of this life be one of the whole run, in the configuration's order."""
        living = report.agents
        report.agents = {name: living.get(name) or self.done[name] for name in self.starts}
        for name, (steps, episodes) in self.before.items():
            agent = report.agents[name]
            agent.before = steps
            if not self.recorded:  # else the recorder has counted them in the journal
                agent.steps += steps
                agent.episodes += episodes


def configuration(
    directory: RunDir, config: Path | None, overrides: Sequence[Override], allowed: Sequence[str]
) -> tuple[Loaded, list[Change]]:
    """The configuration to go on with, and what is not as it was.

    Args:
        config: a file; None for the one that the run directory has.
        allowed: keys that may differ although what is done depends on them.

    Raises:
        ConfigError: it is wrong, or differs where it must not.
        RunDamaged: the run's own isn't what was written.
    """
    recent = directory.path / identity.CONFIG
    identity.check_config(directory.path, identity.read(directory.path))
    old = load(recent)
    loaded = load(config or recent, overrides)
    if loaded.config.run.seed is None:  # drawn when the run began
        run = loaded.config.run.model_copy(update={"seed": old.config.run.seed})
        loaded = replace(loaded, config=loaded.config.model_copy(update={"run": run}))
    changed = changes(old.config, loaded.config)
    if problems := refusals(changed, loaded.source, allowed):
        raise ConfigError(problems)
    return loaded, changed


def look(directory: RunDir, loaded: Loaded, changed: list[Change]) -> Past:
    """Find out where every agent begins, and what has to be changed for that. Changes nothing.

    Raises:
        MachineError: something of the run is not what it was, a living process has its pool, or
            there is nothing left to do.
    """
    from dsec.runners.journal import AgentIndex

    path, config = directory.path, loaded.config
    past = Past(changed=changed, recorded=config.record.format != "none")
    written = identity.read(path)
    past.facts = _earlier(written)
    root = fork.lineage(path, written.facts)
    came = arrival.read(path)
    known: dict[str, AgentIndex] = {}
    if past.recorded:
        past.journal, known = _journal(path)
    wanted, shares = [], {}
    for rank, (name, width, share) in enumerate(_agents(config)):
        shares[name] = share, width
        index = known.get(name)
        past.starts[name] = root.beginning(path) if root is not None else Beginning()
        if came is not None and name not in came.agents:
            past.starts[name], past.done[name] = None, _elsewhere(config, name)
            continue
        if came is not None:
            past.starts[name] = came.agents[name].beginning(path)
        if index is not None and _is_done(index, share):
            past.starts[name] = None
            past.done[name] = _report(config, index)
        else:
            most = -(-share.steps // width) if share.steps else None
            if past.recorded:
                there = index.seq_committed + 1 if index is not None else 0
                most = there if most is None else min(most, there)
            wanted.append(Wanted(name, rank, most, width))
    pool = pool_name(config.run.name, str(path)) if config.pool is not None else ""
    atoms, found = _atoms(path, written.space, pool, wanted)
    past.notes = atoms.notes
    for name, atom in found.items():
        since = root if root is not None else came.agents[name] if came is not None else None
        _begin_from(past, name, atom, *shares[name], since)
    anew = [each.name for each in wanted if each.name not in found and each.most]
    if anew and root is not None:
        past.notes.append(
            f"no atom of its own, so from that it was forked from again: {root.agent}"
        )
    elif anew:
        named = ", ".join(anew[:5]) + (f" and {len(anew) - 5} more" if len(anew) > 5 else "")
        past.notes.append(f"no atom to go on from, so from the beginning again: {named}")
    if not wanted:
        raise MachineError(
            f"the run in {path} has nothing left to do: all of its agents are done",
            "To go on for longer, give it more run.steps, as in --set run.steps=N",
        )
    past.changes = _changes(path, past, atoms, pool)
    return past


def _atoms(
    path: Path, space: tuple[int, int] | None, pool: str, wanted: list[Wanted]
) -> tuple[Left, dict[str, Found]]:
    try:
        atoms = origins.left(path / origins.FOLDER, space, pool)
        return atoms, origins.newest(atoms, wanted)
    except AtomError as error:
        raise MachineError(
            f"the run in {path} can't be resumed: {type(error).__name__}: {error}",
            "Resume it with the dsec-kernel that wrote that, or, to go on from an older atom or"
            " begin anew, move the file away",
        ) from None
    except PoolError as error:
        raise MachineError(
            f"the run in {path} can't be resumed: {type(error).__name__}: {error}",
            f"If nothing in it is needed, remove it: rm {SHM / (PREFIX + pool)}",
        ) from None


def _changes(path: Path, past: Past, atoms: Left, pool: str) -> Changes:
    from dsec.runners import cutting

    first = {
        name: start.origin.seq if start.origin is not None else 0
        for name, start in past.starts.items()
        if start is not None
    }
    ranks = {name: rank for rank, name in enumerate(past.starts)}
    later = {ranks[name]: seq for name, seq in first.items()}
    journal = None
    if past.journal is not None:
        try:
            journal = cutting.decide(past.journal, first, past.ending)
        except JournalError as error:
            raise unfit(path, f"JournalError: {error}") from None
    return Changes(journal, atoms, later, pool)


def _elsewhere(config: Config, name: str) -> AgentReport:
    """Of an agent that did not come to this host with the others."""
    groups = {n: each.name for each in config.agents for n in agent_names(each.name, each.count)}
    return AgentReport(name, groups[name], "done")


def _begin_from(
    past: Past, name: str, atom: Found, share: Quota, width: int, root: Began | None
) -> None:
    seq, episodes = atom.manifest.seq, atom.manifest.episode
    ending = seq * width >= share.steps if share.steps else episodes >= share.episodes
    if ending:
        past.ending |= {name}
    origin = Origin(str(atom.path), seq)
    since = (root.seq, root.episode) if root is not None else (0, 0)
    parent = atom.manifest.parent, atom.manifest.fork_index
    before = past.starts[name]
    chain = before.chain if before is not None else b""
    past.starts[name] = Beginning(origin, since[0] if past.recorded else seq, *parent, chain)
    past.before[name] = (seq - since[0]) * width, episodes - since[1]


def begin(directory: RunDir, past: Past) -> None:
    """Change the run directory from one that ended to one that goes on.

    Raises:
        MachineError: something can't be written; everything is as it was then.
    """
    assert past.changes is not None, "look decided them"
    reopen.carry_out(directory, past.changes)


def moved(directory: RunDir, past: Past, report: RunReport) -> bool:
    """Whether this life has done one step of any agent, as far as is known."""
    from dsec.runners.journal import FILE_NAME, KEPT_NAME, JournalReader

    if not past.recorded:
        return any(agent.steps for agent in report.agents.values())
    paths = [p for n in (FILE_NAME, KEPT_NAME) if (p := directory.path / n).exists()]
    if past.journal is None:
        return bool(paths) and any(agent.steps for agent in report.agents.values())
    try:
        with JournalReader(paths[0]) as reader:
            there = {each.declaration.agent: each.transitions for each in reader.index.agents}
            first = {each.declaration.agent: each.declaration.first for each in reader.index.agents}
    except (IndexError, JournalError):
        return True
    begun = {name: start for name, start in past.starts.items() if start is not None}
    return any(
        first[name] + there.get(name, 0) > (start.origin.seq if start.origin is not None else 0)
        for name, start in begun.items()
        if name in first
    )


def _journal(path: Path) -> tuple[Path | None, dict[str, Any]]:
    """The journal to go on with, and what it holds by the agents' names."""
    from dsec.runners.journal import FILE_NAME, KEPT_NAME, JournalReader

    journal = next((path / n for n in (FILE_NAME, KEPT_NAME) if (path / n).exists()), None)
    if journal is None:
        if any((path / "recording").glob("*.parquet")):
            raise MachineError(
                f"the run in {path} came to its end, and its recording is closed",
                "Let an agent of it go on in a run of its own: see dsec-kernel fork --help",
            )
        if (path / "summary.json").exists():
            raise unfit(path, "its journal is gone")
        return None, {}  # it never wrote any
    try:
        with JournalReader(journal) as reader:
            return journal, {each.declaration.agent: each for each in reader.index.agents}
    except JournalError as error:
        raise unfit(path, f"JournalError: {error}") from None


def _agents(config: Config) -> list[tuple[str, int, Quota]]:
    """Name, environments and quota of every agent, in order."""
    names = [
        (name, agent.env.num_envs)
        for agent in config.agents
        for name in agent_names(agent.name, agent.count)
    ]
    return [(*each, share) for each, share in zip(names, quotas(config), strict=True)]


def _is_done(index: Any, share: Quota) -> bool:
    """Whether an agent's stream ended because it had done its part, and not because it drained."""
    if not index.ended or index.totals is None:
        return False
    if share.steps:
        return bool((index.seq_committed + 1) * index.declaration.num_envs >= share.steps)
    return bool(index.totals.episodes >= share.episodes)


def _report(config: Config, index: Any) -> AgentReport:
    name, totals = index.declaration.agent, index.totals
    groups = {n: each.name for each in config.agents for n in agent_names(each.name, each.count)}
    return AgentReport(
        name, groups[name], "done", totals.steps, totals.episodes, totals.return_sum,
        totals.returns_last, totals.steps, chain=totals.chain,
    )  # fmt: skip


def _earlier(written: Known) -> dict[str, Any]:
    """What kernel.json says of earlier lives, and of all."""
    known = dict(written.facts)
    stays = {key: known.pop(key) for key in ("id", "forked") if key in known}
    earlier = known.pop("earlier", [])
    return stays | {"earlier": [*(earlier if isinstance(earlier, list) else []), known]}


def facts(past: Past) -> dict[str, Any]:
    """For kernel.json: the lives before this one, and where this one began."""
    return {
        **past.facts,
        "resumed": {
            "from": {
                name: start.origin.seq if start.origin is not None else 0
                for name, start in past.starts.items()
                if start is not None
            },
            "changed": {dotted(each.path): [each.old, each.new] for each in past.changed},
        },
    }
