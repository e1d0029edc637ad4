"""The configuration as typed models: the names of every key, their ranges and what they mean.

Rule 1: a key is here only if it has an effect, or if its one permitted value states a fact.
Rule 2: no rule that needs two places of the document is here (see check.py), nothing that needs the
machine (engine/preflight.py) and nothing that needs user code, which only child processes import.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from dsec.config.base import Model
from dsec.config.kinds import (
    STEPS_MAX,
    WEEK_S,
    AgentName,
    Amount,
    Chance,
    Count,
    Entry,
    EnvId,
    FileName,
    HostPort,
    Interval,
    Kwargs,
    Restartings,
    Seconds,
    Seed,
    Share,
    Slots,
    Width,
    WrapperEntry,
    whole,
)
from dsec.config.limits import Isolation, Limits


def _one_of(*names: str) -> JsonDict:
    return {"oneOf": [{"required": [name]} for name in names]}


class Run(Model):
    """What the run is called, how its randomness begins and how much there is to do."""

    model_config = ConfigDict(json_schema_extra=_one_of("steps", "episodes"))

    name: FileName = Field(default="run", description="Names the run directory.")
    seed: Seed | None = Field(
        default=None,
        description="Every agent's randomness derives from this and from the agent's name. "
        "Left out: drawn anew for each run, and written down in its config.yaml.",
    )
    steps: Amount | None = Field(
        default=None,
        description="Environment transitions of all agents, in fixed quotas: steps divided "
        "by the number of agents, the remainder going to the first ones, each quota rounded up to "
        "whole steps of the agent's num_envs environments.",
        examples=[200_000],
    )
    episodes: Amount | None = Field(
        default=None,
        description="Instead of steps: finished episodes of all agents together, in fixed quotas.",
    )
    deterministic: bool = Field(
        default=False,
        description="Beyond seeds and quotas, which are always fixed, pin what libraries would "
        "choose by chance or by trial: torch uses deterministic algorithms only (an operation that "
        "has none raises) and one thread, CUBLAS_WORKSPACE_CONFIG and MKL_CBWR are set. What is in "
        "force is in summary.json, for each process. Costs speed.",
    )


class Wrapper(Model):
    """A wrapper around the environment, applied in the order of the list."""

    entry: WrapperEntry = Field(
        description="A class of gymnasium.wrappers, or module:name; called as name(env, **kwargs).",
        examples=["FlattenObservation"],
    )
    kwargs: Kwargs = Field(default_factory=dict, description="Keywords for the wrapper.")


class Env(Model):
    """The environment of an agent: either `id` or `entry`."""

    model_config = ConfigDict(json_schema_extra=_one_of("id", "entry"))

    id: EnvId | None = Field(
        default=None,
        description="A registered environment, `CartPole-v1` or `module:Name-v0`, made by "
        "gymnasium.make.",
        examples=["CartPole-v1"],
    )
    entry: Entry | None = Field(
        default=None,
        description="Instead of id: module:name of what returns a gymnasium.Env.",
        examples=["my_package.envs:make"],
    )
    kwargs: Kwargs = Field(default_factory=dict, description="Keywords for the environment.")
    wrappers: list[Wrapper] = Field(default_factory=list, description="Innermost first.")
    num_envs: Width = Field(
        default=1,
        description="Environments in the one env runner; the policy sees them as one batch.",
    )


class Policy(Model):
    """The policy of an agent."""

    entry: Entry = Field(
        description="module:Class with act(obs); with learn(transitions) too, it learns.",
        examples=["dsec.policies:RandomPolicy"],
    )
    kwargs: Kwargs = Field(default_factory=dict, description="Keywords for the policy.")


ORCHESTRATOR = "dsec.reward:RewardOrchestrator"


class Objective(Model):
    """One part of a reward."""

    weight: Share = Field(description="Its share; those of all objectives add up to 1.")
    type: Literal["dense", "sparse"] = Field(default="dense", description="Sparse: mostly 0.")
    entry: Entry | None = Field(
        default=None, description="module:function that computes its raw value."
    )


class Reward(Model):
    """What turns transitions into rewards."""

    entry: Entry = Field(
        default="dsec.reward:EnvReward",
        description="module:Class with compute(transitions); EnvReward keeps the environment's.",
    )
    kwargs: Kwargs = Field(default_factory=dict, description="Keywords for the reward.")
    objectives: dict[str, Objective] | None = Field(
        default=None,
        description="Instead of entry: what RewardOrchestrator weighs into one reward, by name; "
        "each has a weight (together 1), a type (dense, the default, or sparse) and, where neither "
        "the environment's info nor its reward tells the value, an entry (module:function).",
        examples=["{task: {weight: 0.7, type: dense}, safety: {weight: 0.3, type: sparse}}"],
    )

    @model_validator(mode="before")
    @classmethod
    def _objectives_are_weighed(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("objectives") is not None:
            return {**data, "entry": data.get("entry") or ORCHESTRATOR}
        return data

    def keywords(self) -> dict[str, Any]:
        """What the class is constructed with."""
        if self.objectives is None:
            return self.kwargs
        found = {name: each.model_dump(exclude_none=True) for name, each in self.objectives.items()}
        return {**self.kwargs, "objectives": found}


class Restarts(Model):
    """How often runners of an agent that died are replaced before the agent is quarantined."""

    max: Restartings = Field(
        default=10,
        description="Replacements in any period_s. 0: an agent whose runner dies is quarantined "
        "at once.",
    )
    period_s: Seconds = Field(default=60.0, description="The period that max is counted over.")


class Failover(Model):
    """What happens when a runner dies: a successor goes on where it was."""

    standby: Literal["auto", "state", "fork", "replay", "none"] = Field(
        default="auto",
        description="How the environment's state is kept for a successor. state: snapshots by a "
        "codec that has proven faithful, and a constructed spare; where there is no such codec, as "
        "fork. fork: sleeping copies of the process. replay: a constructed spare does the episode "
        "again from its beginning, for a single environment (num_envs: 1) whose episodes come out "
        "the same then; where they don't, as fork. none: not at all; after a death the episode "
        "ends as an infrastructure failure and a fresh one begins. "
        "auto: of what is possible for protection_budget the level of the quickest recovery, by "
        "what steps, snapshots, restores and forks cost and how long episodes are; measured when "
        "the runner starts, watched from then on, and given up where the budget would be exceeded "
        "twofold. summary.json says what was chosen, why, and what recovery time to expect.",
    )
    protection_budget: Share = Field(
        default=0.05,
        description="Share of the processor time of steps that keeping the state may take; "
        "snapshots are as rare as that wants, and as the rings allow.",
    )
    cached_steps: Restartings = Field(
        default=0,
        description="For an AgentSandbox: how many steps are answered at once with the last "
        "observation (info says `stale`) while a process that died is being replaced. In a "
        "configuration file only 0: there the policy waits, so that a run comes out the same "
        "whatever it survives.",
    )
    recycle_every: Amount | None = Field(
        default=None,
        description="Steps of the env runner (of all its num_envs environments at once) after "
        "which it is replaced, though healthy, by a fresh process that goes on exactly where it "
        "was: for simulators that leak or tire. Where no codec holds the environment that is done "
        "when the next episode begins. It counts as `recycled`, neither as a failover nor against "
        "restarts. Left out: never. With limits.memory_mb it is done as well when nine tenths of "
        "the memory are used that the process had left at its beginning.",
    )
    restarts: Restarts = Field(default_factory=Restarts)


class Deadlines(Model):
    """Seconds that user code may take in each phase before its runner is killed as hung."""

    construct_s: Seconds = Field(default=60.0, description="Importing and constructing.")
    reset_s: Seconds = Field(default=30.0, description="env.reset")
    step_s: Seconds = Field(default=10.0, description="env.step")
    act_s: Seconds = Field(default=10.0, description="policy.act")
    learn_s: Seconds = Field(default=60.0, description="policy.learn")
    reward_s: Seconds = Field(default=10.0, description="reward.compute")
    replay_s: Seconds = Field(
        default=10.0,
        description="Restoring what a dead runner had kept, and then each step that is done again.",
    )
    close_s: Seconds = Field(default=5.0, description="close() of any of the three.")


class Ipc(Model):
    """The rings between an agent's processes."""

    ring_slots: Slots = Field(
        default=1024,
        description="Records that each ring holds before its writer has to wait for the readers.",
    )


class Agent(Model):
    """One agent, or `count` agents alike."""

    name: AgentName = Field(
        description="The agent's name, of up to 200 characters in any script. With count they are "
        "name-000, name-001 and so on. Its seed derives from it.",
        examples=["cartpole"],
    )
    count: Count | None = Field(
        default=None,
        description="How many. Left out: one agent, with the plain name.",
    )
    env: Env = Field(examples=["{id: CartPole-v1}"], description="What the agent acts on.")
    policy: Policy = Field(
        examples=['{entry: "dsec.policies:RandomPolicy"}'], description="What chooses its actions."
    )
    reward: Reward = Field(default_factory=Reward, description="What rewards it.")
    snapshot_interval: Interval = Field(
        default=50,
        ge=1,
        le=2**31,
        description="Steps between two Agent State Atoms of which the pool keeps the latest; and "
        "from one boundary marker to the next, where no sync_interval is given.",
    )
    sync_interval: Interval | None = Field(
        default=None,
        description="Steps from one boundary to the next, if the state is to be in the pool more "
        "often; snapshot_interval is a multiple of it. Atoms in between give way to one another.",
    )
    reward_window_size: Annotated[int, Field(ge=0, le=65_536), BeforeValidator(whole)] = Field(
        default=200,
        description="How many of the latest rewards an atom holds, at most what their ring does.",
    )
    failover: Failover = Field(default_factory=Failover)
    deadlines: Deadlines = Field(default_factory=Deadlines)
    limits: Limits = Field(default_factory=Limits)
    isolation: Isolation = Field(default_factory=Isolation)
    ipc: Ipc = Field(default_factory=Ipc)


class Record(Model):
    """The recording of every transition."""

    format: Literal["parquet", "none"] | None = Field(
        default=None,
        description="parquet: a journal while the run lasts, Parquet files at its end (needs "
        "pyarrow). none: count, and keep nothing. Left out: Parquet where pyarrow is installed, "
        "else the journal stays.",
    )
    disk_wait_s: float = Field(
        default=30.0,
        ge=0,
        le=WEEK_S,
        allow_inf_nan=False,
        description="How long a full disk is waited for before the run is ended whole.",
    )


class Pool(Model):
    """The pool of Agent State Atoms, in shared memory. Without this key there are none."""

    backend: Literal["auto", "shm", "tcp"] = Field(
        default="auto",
        description="How other hosts are reached. shm: not at all. tcp: over TCP. auto: the best "
        "there is for `peers`; the run says at its start which that is, and why.",
    )
    size_mb: Annotated[int, Field(ge=1, le=2**24), BeforeValidator(whole)] = Field(
        default=256,
        description="Memory that it takes, all of it from the beginning. It must hold two atoms of "
        "each agent, and one more.",
    )
    persist: bool = Field(
        default=False,
        description="Let it outlive the run. Newest atoms are in RUN_DIR/atoms in any case.",
    )
    peers: list[HostPort] = Field(
        default_factory=list,
        description="Hosts (`dsec-kernel host`), as host:port. The first is the heir: it takes the "
        "agents over when this host falls silent.",
    )
    replicas: Annotated[int, Field(ge=0, le=16), BeforeValidator(whole)] = Field(
        default=0,
        description="To how many of `peers`, the first ones, each committed atom is copied.",
    )
    token_file: str | None = Field(
        default=None, description="A file with the secret of all hosts, which only they may read."
    )
    lease_s: Seconds = Field(
        default=20.0,
        description="The heir takes over when it has heard nothing for so long; this host stops "
        "its agents when it has had no contact with the heir for half of it.",
    )


class Fault(Model):
    """A fault that happens once, at the first call of its phase for that record or a later one."""

    agent: AgentName = Field(description="Whose; with count its full name, as in cartpole-003.")
    role: Literal["env", "policy", "reward"] = Field(description="Whose runner.")
    phase: Literal["reset", "step", "act", "learn", "reward"] = Field(
        description="The call: step or reset of an env, act or learn of a policy, reward of a "
        "reward (its compute())."
    )
    step: Annotated[int, Field(ge=0, le=STEPS_MAX), BeforeValidator(whole)] = Field(
        description="Number of the record, from 0: action, observation, reward n of the agent."
    )
    kind: Literal["segv", "abort", "kill", "hang", "stop", "exit", "exception"] = Field(
        description="segv, abort, kill, stop: by that signal. hang: busy for ever. exit: leaves "
        "its process with exit code 3. exception: raises."
    )
    instant: Literal["before", "after"] = Field(
        default="before",
        description="Of the call: before it, or after it, when nobody has heard of its result. A "
        "reset has only before.",
    )


class Chaos(Model):
    """Faults to be injected, to see what they do to a run. Leave it out of any real one."""

    segv_per_steps: Chance = Field(
        default=0.0,
        description="Chance of a segmentation fault in a runner, for each step of it.",
    )
    hang_per_steps: Chance = Field(
        default=0.0, description="Chance that a runner hangs for ever, for each step of it."
    )
    roles: list[Literal["env", "policy", "reward"]] = Field(
        default=["env"],
        min_length=1,
        description="Whose runners: a step of a policy is one call of act(), of a reward one of "
        "compute(), be it the environment's own reward. What a successor does again is spared.",
    )
    faults: list[Fault] = Field(
        default_factory=list,
        description="Faults that are planned one by one, whatever the roles above; "
        "`dsec-kernel chaos` writes such plans. Which of them happened is in RUN_DIR/chaos.",
    )


class Config(Model):
    """The configuration of a run of dsec-kernel.

    Top-level keys that begin with `x-` are left alone: a place for YAML anchors to be merged later.
    """

    model_config = ConfigDict(json_schema_extra={"patternProperties": {"^x-": True}})

    @model_validator(mode="before")
    @classmethod
    def _anchors_apart(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if not str(k).startswith("x-")}

    run: Run = Field(examples=["{name: cartpole, seed: 7, steps: 200_000}"])
    agents: list[Agent] = Field(
        min_length=1,
        description="The agents.",
        examples=["[{name: …, env: {…}, policy: {…}}]"],
    )
    record: Record = Field(default_factory=Record)
    pool: Pool | None = Field(default=None, examples=["{size_mb: 256}"])
    chaos: Chaos = Field(default_factory=Chaos)
