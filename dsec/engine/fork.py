"""Forking: a run of its own for one agent of another run, which begins from an atom of it.

Owns what the new run is: the configuration of that one agent, a seed that follows from the atom and
the fork's number, and a copy of the atom beside it, so that the new run depends on the other one no
more. Everything random in the agent is seeded anew, in every role (failover/codecs/anew.py); all
else is as it was at the atom. The run that is forked from is only read, and may be going on. Runs
in the supervisor; knows no numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from dsec.config import Config, Loaded, agent_names, dump, load, loads
from dsec.engine import identity, origins
from dsec.engine.origins import Found, Wanted
from dsec.engine.plan import Beginning, Quota, quotas
from dsec.errors import (
    AgentUnknown,
    AtomError,
    AtomForeign,
    MachineError,
    NothingToFork,
    RunDamaged,
    RunDirAbsent,
)
from dsec.ipc.frames import Origin
from dsec.rundir import RunDir
from dsec.seeds import fork_seed
from dsec.sml import spill

ATOM: Final = "parent.atom"
NAMES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Fork:
    """What to fork.

    Attributes:
        run_dir: of the run that has the agent.
        agent: its full name.
        atom: the sequence number of the atom; None: its newest.
        index: which of this atom's forks: each has random streams of its own, always the same.
        steps: environment steps of the agent in all, those before the atom included; None: as many
            steps or episodes as it had to do.
    """

    run_dir: Path
    agent: str
    atom: int | None = None
    index: int = 0
    steps: int | None = None


class Lineage(msgspec.Struct, frozen=True):
    """Where a forked agent comes from, as kernel.json has it under `forked`."""

    run: str
    agent: str
    atom: int
    seq: int
    episode: int
    index: int

    def beginning(self, run_dir: Path) -> Beginning:
        """Where it begins in its own run."""
        origin = Origin(str(run_dir / ATOM), self.seq, fork=True)
        return Beginning(origin, first=self.seq, parent=self.atom, fork_index=self.index)


@dataclass(frozen=True, slots=True)
class Branch:
    """A fork that can begin: its configuration, its atom as a file, and where it comes from."""

    loaded: Loaded
    atom: bytes
    lineage: Lineage


def look(fork: Fork) -> Branch:
    """Find the atom, and make the configuration. Changes nothing.

    Raises:
        RunDirAbsent: no run has been there.
        AgentUnknown: it has no such agent.
        NothingToFork: the agent has no such atom, or nothing left to do there.
        ConfigError: the run's configuration can't be read any more, or doesn't allow `steps`.
        MachineError: the atom can't be read.
    """
    path = fork.run_dir / "config.yaml"
    if not path.is_file():
        raise RunDirAbsent(
            f"there is no run to fork from in {fork.run_dir}",
            "Name a run directory, which holds the config.yaml of its run",
        )
    old = load(path).config
    known = [name for each in old.agents for name in agent_names(each.name, each.count)]
    if fork.agent not in known:
        more = " …" if len(known) > NAMES_MAX else ""
        raise AgentUnknown(
            f"no agent {fork.agent} in {fork.run_dir}",
            f"There are {', '.join(known[:NAMES_MAX])}{more}",
        )
    rank = known.index(fork.agent)
    found, atom = _atom(fork, rank)
    manifest = found.manifest
    seed = fork_seed(old.run.seed or 0, fork.agent, manifest.id, fork.index)
    config = _alone(old, rank, fork, seed)
    _check_left(fork, config, manifest.seq, manifest.episode)
    lineage = Lineage(
        str(fork.run_dir.resolve()), fork.agent, manifest.id, manifest.seq, manifest.episode,
        fork.index,
    )  # fmt: skip
    return Branch(loads(dump(config), "config.yaml"), atom, lineage)


def begin(directory: RunDir, branch: Branch) -> dict[str, Beginning | None]:
    """Put the atom into the run directory; where the agent begins, by its name."""
    directory.write_bytes(ATOM, branch.atom)
    return {branch.lineage.agent: branch.lineage.beginning(directory.path)}


def facts(branch: Branch) -> dict[str, Any]:
    """For kernel.json."""
    return {"forked": msgspec.to_builtins(branch.lineage)}


def lineage(run_dir: Path, known: Mapping[str, Any]) -> Lineage | None:
    """Where the agent of a run comes from; None where it began at its beginning.

    Args:
        known: what kernel.json says.

    Raises:
        RunDamaged: it says so, but not in a way that can be read, or the atom is not there.
    """
    try:
        found = msgspec.convert(known["forked"], Lineage) if "forked" in known else None
    except msgspec.ValidationError as error:
        raise RunDamaged(
            f"{run_dir / identity.FILE} doesn't say what this run was forked from: {error}",
            "Fork anew: dsec-kernel fork",
        ) from None
    if found is None and not (run_dir / ATOM).exists():
        return None  # who began at the beginning needs none
    try:
        body = spill.load(run_dir / ATOM).body
        atom = origins.whole(body, run_dir / ATOM, Wanted(found.agent if found else "", 0))
        if found is None or (atom.manifest.id, atom.manifest.seq) != (found.atom, found.seq):
            raise AtomForeign(f"{run_dir / identity.FILE} names another")
    except (AtomError, MachineError) as error:
        raise RunDamaged(
            f"the run in {run_dir} can't begin from {ATOM}: {type(error).__name__}: {error}",
            "Fork anew: dsec-kernel fork",
        ) from None
    return found


def _atom(fork: Fork, rank: int) -> tuple[Found, bytes]:
    folder = fork.run_dir / origins.FOLDER
    try:
        there = origins.left(folder, identity.read(fork.run_dir).space)
        found = origins.at(there, Wanted(fork.agent, rank), fork.atom)
        return found, found.path.read_bytes()
    except AtomError as error:
        remedy = "Name one of those by --atom, or leave it out for the newest"
        if not any(folder.glob("*.atom")):
            remedy = "Only a run whose configuration has `pool:` keeps atoms"
        raise NothingToFork(str(error), remedy) from None
    except OSError as error:  # a run that goes on has replaced it by a newer one
        raise NothingToFork(
            f"the atom of {fork.agent} can't be read: {error}", "Try again"
        ) from None


def _alone(old: Config, rank: int, fork: Fork, seed: int) -> Config:
    """The configuration with this agent only, and with what is left for it to do."""
    share = quotas(old)[rank]
    if fork.steps is not None:
        share = Quota(steps=fork.steps)
    entries = [each for each in old.agents for _ in agent_names(each.name, each.count)]
    agent = entries[rank].model_copy(update={"name": fork.agent, "count": None})
    amounts = {"steps": share.steps or None, "episodes": share.episodes or None}
    run = old.run.model_copy(update={"seed": seed, **amounts})
    return old.model_copy(update={"run": run, "agents": [agent]})


def _check_left(fork: Fork, config: Config, seq: int, episodes: int) -> None:
    [share] = quotas(config)
    steps = seq * config.agents[0].env.num_envs
    if steps < share.steps if share.steps else episodes < share.episodes:
        return
    done, all_of_it = (steps, "steps") if share.steps else (episodes, "episodes")
    raise NothingToFork(
        f"{fork.agent} has nothing left to do at step {seq:,}: {done:,} {all_of_it} are all that it"
        " had to do",
        "Let it go on for longer by --steps N, or name an earlier atom by --atom SEQ",
    )
