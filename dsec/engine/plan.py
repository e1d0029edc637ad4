"""From a configuration to what the kernel runs: names, seeds, quotas, limits. Pure.

The one place that knows both vocabularies, the config's and the kernel's. It touches neither the
disk nor a process, so the same configuration always gives the same plan (guarantee G12 begins
here): quotas are fixed before anything runs, and a seed depends on nothing but the run's seed and
the agent's name.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dsec.config import Agent, Chaos, Config, Loaded, agent_names
from dsec.engine import identity
from dsec.engine.images import BASE_IMAGE, Images, is_strict
from dsec.errors import ConfigError, FrameError
from dsec.ipc import frames
from dsec.ipc.frames import (
    EnvSettings,
    FailoverSettings,
    Harm,
    Isolation,
    Origin,
    Phase,
    PlannedFault,
    Role,
    Start,
)
from dsec.ipc.logs import file_name
from dsec.seeds import agent_seed
from dsec.spec import AgentSpec, PoolSpec, RunnerSpec, RunSpec

IMPORT_TIMEOUT_S = 120.0
CHAOS_FOLDER = "chaos"


@dataclass(frozen=True, slots=True)
class Quota:
    """What one agent has to do; the other of the two is 0."""

    steps: int = 0
    episodes: int = 0


def quotas(config: Config) -> list[Quota]:
    """The quota of every agent, in the order of the configuration.

    The total is divided evenly and the remainder goes to the first ones. A quota of steps is
    counted over the agent's num_envs environments together and rounded up to whole batches.
    """
    widths = [
        agent.env.num_envs for agent in config.agents for _ in agent_names(agent.name, agent.count)
    ]
    if config.run.steps is None:
        assert config.run.episodes is not None, "the config was checked"
        return [Quota(episodes=share) for share in _shares(config.run.episodes, len(widths))]
    shares = _shares(config.run.steps, len(widths))
    return [
        Quota(steps=-(-share // width) * width) for share, width in zip(shares, widths, strict=True)
    ]


def _shares(total: int, count: int) -> list[int]:
    share, rest = divmod(total, count)
    assert share > 0, "the config was checked"
    return [share + (index < rest) for index in range(count)]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where an agent begins, if not at its beginning.

    Attributes:
        origin: the atom that it goes on from; None: at its beginning after all.
        first: the first transition that is recorded of it.
        chain: the mark that its hash chain goes on from there, of one that came from another host.
        parent, fork_index: of one that was forked: the atom's id, and which of its forks it is.
    """

    origin: Origin | None = None
    first: int = 0
    parent: int | None = None
    fork_index: int = 0
    chain: bytes = b""


def make_spec(
    loaded: Loaded,
    *,
    run_dir: str,
    seed: int,
    open_files: int,
    dry: bool = False,
    starts: Mapping[str, Beginning | None] | None = None,
    run_id: str = "",
) -> RunSpec:
    """The kernel's orders.

    Args:
        loaded: a sound configuration.
        run_dir: an existing, locked directory.
        seed: the run's seed.
        open_files: the limit on descriptors that runners get where the configuration gives none,
            because the supervisor has raised its own.
        dry: only construct, one agent of each entry, and record nothing.
        starts: where agents begin that don't begin at the beginning, by name; those with None are
            not to begin at all, for they are done.
        run_id: the run's own name among all runs; without one its atoms are copied to nobody.

    Raises:
        ConfigError: keywords that are too large to travel to a runner.
    """
    config = loaded.config
    images = Images()
    planned = _planned(config.chaos, run_dir)
    agents: list[AgentSpec] = []
    problems = []
    shares = quotas(config)
    ranks = itertools.count()
    for index, agent in enumerate(config.agents):
        names = agent_names(agent.name, agent.count)
        model = agent_spec(
            agent, names[0], Quota(), "", open_files, images, config.chaos,
            deterministic=config.run.deterministic, atoms=config.pool is not None,
        )  # fmt: skip
        for number, name in enumerate(names):
            rank = next(ranks)
            start = (starts or {}).get(name, Beginning())
            if start is not None and not (dry and number):
                own = agent_seed(seed, name)
                made = _alike(model, name, own, rank, shares[rank], start, dry=dry)
                agents.append(_harmed(made, planned.get(name)))
        try:
            hurt = [each for each in agents[-len(names) :] if each.name in planned]
            for each in (model, *hurt):
                for runner in each.runners:
                    frames.encode(runner.start)
        except FrameError as error:
            problems.append(loaded.diagnostic(("agents", index), f"too large: {error}"))
    if problems:
        raise ConfigError(problems)
    timeout_s = max([IMPORT_TIMEOUT_S, *(agent.deadlines.construct_s for agent in config.agents)])
    return RunSpec(
        name=config.run.name,
        run_dir=run_dir,
        seed=seed,
        images=images.specs(timeout_s),
        agents=tuple(agents),
        record_format=config.record.format or "parquet",
        disk_wait_s=config.record.disk_wait_s,
        dry=dry,
        recorder_image=BASE_IMAGE,
        deterministic=config.run.deterministic,
        ranks=len(shares),
        pool=_pool(config, run_dir, run_id),
    )


def _pool(config: Config, run_dir: str, run_id: str) -> PoolSpec | None:
    if config.pool is None:
        return None
    return PoolSpec(
        name=pool_name(config.run.name, run_dir),
        size_mb=config.pool.size_mb,
        persist=config.pool.persist,
        snapshot_intervals={agent.name: agent.snapshot_interval for agent in config.agents},
        space=identity.space_of(run_id) if run_id else None,
        peers=tuple(config.pool.peers[: config.pool.replicas]) if run_id else (),
        backend=config.pool.backend,
        token_file=config.pool.token_file or "",
        lease_s=config.pool.lease_s,
        run=run_id,
        recorded=config.record.format != "none",
    )


def pool_name(run_name: str, run_dir: str) -> str:
    """The pool of a run: of its name, and of where it records, which no other run does."""
    place = hashlib.blake2b(str(Path(run_dir).absolute()).encode(), digest_size=6).hexdigest()
    return f"{run_name}-{place}"


def agent_spec(
    agent: Agent,
    name: str,
    quota: Quota,
    seed: str,
    open_files: int,
    images: Images,
    chaos: Chaos,
    *,
    deterministic: bool = False,
    atoms: bool = False,
) -> AgentSpec:
    """What the kernel is told of one agent."""
    deadline_s = _deadlines(agent)
    limits = {"open_files": agent.limits.open_files or open_files}
    if agent.limits.memory_mb is not None:
        limits["memory_mb"] = agent.limits.memory_mb
    parts: list[tuple[Role, str, dict[str, Any]]] = [
        (Role.ENV, images.for_env(agent), {"env": _env_settings(agent)}),
        (
            Role.POLICY,
            images.for_entry(agent, "policy"),
            {"entry": agent.policy.entry, "kwargs": agent.policy.kwargs},
        ),
        (
            Role.REWARD,
            images.for_entry(agent, "reward"),
            {"entry": agent.reward.entry, "kwargs": agent.reward.keywords()},
        ),
    ]
    runners = []
    for role, image, own in parts:
        start = Start(
            agent=name,
            role=role,
            epoch=0,
            seed=seed,
            num_envs=agent.env.num_envs,
            steps=quota.steps,
            episodes=quota.episodes,
            snapshot_interval=agent.sync_interval or agent.snapshot_interval,
            ring_slots=agent.ipc.ring_slots,
            limits=limits,
            cpus=tuple(sorted(set(agent.limits.cpus or ()))),
            failover=_failover(agent),
            isolation=_isolation(agent, role),
            chaos=Harm(_chances(chaos, role)),
            deterministic=deterministic,
            atoms=atoms,
            reward_window=agent.reward_window_size,
            **own,
        )
        runners.append(RunnerSpec(role, image, start, deadline_s))
    return AgentSpec(
        name=name,
        group=agent.name,
        runners=tuple(runners),
        num_envs=agent.env.num_envs,
        restarts_max=agent.failover.restarts.max,
        restarts_period_s=agent.failover.restarts.period_s,
    )


def _alike(
    model: AgentSpec,
    name: str,
    seed: str,
    rank: int,
    quota: Quota,
    start: Beginning,
    *,
    dry: bool,
) -> AgentSpec:
    """An agent of an entry. They share what is the same: there may be thousands."""
    changes = {
        "agent": name,
        "seed": seed,
        "steps": quota.steps,
        "episodes": quota.episodes,
        "origin": start.origin,
        "dry": dry,
    }
    runners = (
        replace(each, start=msgspec.structs.replace(each.start, **changes))
        for each in model.runners
    )
    return replace(
        model, name=name, runners=tuple(runners), rank=rank, first=start.first,
        chain=start.chain, parent=start.parent, fork_index=start.fork_index,
    )  # fmt: skip


def _isolation(agent: Agent, role: Role) -> Isolation:
    """What a runner gives up; uid 0 or more: it is to be a user of its own, see isolating.py."""
    given, network = agent.isolation, agent.limits.network
    if not is_strict(agent, role.name.lower()):
        profile = "none" if given.profile == "none" else "default"
        return Isolation(profile, network=network is not False)
    return Isolation(
        "strict",
        network=bool(network),
        uid=0 if given.uid == "own" else -1,
        read=tuple(given.read),
        write=tuple(given.write),
        processes=given.processes,
        scratch_mb=given.scratch_mb,
        require=given.require,
    )


def _failover(agent: Agent) -> FailoverSettings:
    given = agent.failover
    # Nothing is kept for a successor that may never come.
    standby = given.standby if given.restarts.max else "none"
    every = given.recycle_every or 0
    return FailoverSettings(standby, given.protection_budget, every)


def _planned(chaos: Chaos, run_dir: str) -> dict[str, dict[Role, Harm]]:
    """The planned faults of each agent that has any."""
    found: dict[str, dict[Role, list[PlannedFault]]] = {}
    for fault in chaos.faults:
        phase = Phase[fault.phase.upper()]
        made = PlannedFault(fault.kind, phase, fault.step, fault.instant == "after")
        mine = found.setdefault(fault.agent, {})
        mine.setdefault(Role[fault.role.upper()], []).append(made)
    folder = Path(run_dir).absolute() / CHAOS_FOLDER
    return {
        agent: {
            role: Harm({}, tuple(faults), str(folder / fault_folder(agent, role.name)))
            for role, faults in roles.items()
        }
        for agent, roles in found.items()
    }


def fault_folder(agent: str, role: str) -> str:
    """Where, below CHAOS_FOLDER in a run directory, a runner's planned faults leave their files."""
    return f"{file_name(agent)}.{role.lower()}"


def _harmed(agent: AgentSpec, planned: Mapping[Role, Harm] | None) -> AgentSpec:
    """The agent, with what is planned for it."""
    if planned is None:
        return agent
    runners = []
    for each in agent.runners:
        harm = planned.get(each.role, Harm())
        harm = msgspec.structs.replace(harm, chances=each.start.chaos.chances)
        start = msgspec.structs.replace(each.start, chaos=harm)
        runners.append(replace(each, start=start))
    return replace(agent, runners=tuple(runners))


def _chances(chaos: Chaos, role: Role) -> dict[str, float]:
    if role.name.lower() not in chaos.roles:
        return {}
    chances = {"segv": chaos.segv_per_steps, "hang": chaos.hang_per_steps}
    return {kind: chance for kind, chance in chances.items() if chance}


def _deadlines(agent: Agent) -> dict[Phase, float]:
    given = agent.deadlines
    return {
        Phase.IMPORT: given.construct_s,
        Phase.CONSTRUCT: given.construct_s,
        Phase.RESET: given.reset_s,
        Phase.STEP: given.step_s,
        Phase.RENDER: given.step_s,
        Phase.ACT: given.act_s,
        Phase.LEARN: given.learn_s,
        Phase.REWARD: given.reward_s,
        Phase.CLOSE: given.close_s,
        Phase.REPLAY: given.replay_s,
    }


def _env_settings(agent: Agent) -> EnvSettings:
    wrappers = tuple(
        {"entry": wrapper.entry, "kwargs": wrapper.kwargs} for wrapper in agent.env.wrappers
    )
    return EnvSettings(
        id=agent.env.id or "",
        entry=agent.env.entry or "",
        kwargs=agent.env.kwargs,
        wrappers=wrappers,
    )
