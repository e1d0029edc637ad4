"""What a program and a served kernel say to each other: methods, events, their fields. Types only.

docs/ENGINE.md explains them, and a test compares the two. A field that a later version adds has a
default, so that whoever doesn't know it may leave it out; unknown ones are refused, for a mistyped
one would do nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

PROTOCOL = 1
PROTOCOLS = (1,)


class Params(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of what methods take: an object, or an array in the order of the fields."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what methods return. A program ignores fields that it doesn't know."""


class ClientInfo(Params, frozen=True, kw_only=True):
    """Who asks; shown where it helps a person."""

    name: str = ""
    version: str = ""


class Initialize(Params, frozen=True, kw_only=True):
    """The first request of a connection.

    Attributes:
        protocol: the highest version that the program speaks.
        process_id: the program's; when it is gone, all is ended, whoever still holds its pipes.
        events: as in `events.subscribe`.
    """

    protocol: Annotated[int, Meta(ge=0)]
    client: ClientInfo = ClientInfo()
    process_id: int | None = None
    events: tuple[str, ...] = ()


class Initialized(Result, frozen=True, kw_only=True):
    """What the kernel is.

    Attributes:
        protocol: the version that both speak from now on.
        server: name and version of it.
        capabilities: what it can do beyond this version's methods; and its limits.
        handover: path of the socket that hands out the descriptors of rings.
        supervisor, guardian: its processes; the guardian is gone last.
        folder: of its temporary files, removed at its end.
    """

    protocol: int
    server: dict[str, str]
    capabilities: dict[str, Any]
    handover: str
    supervisor: int
    guardian: int
    folder: str


class Subscribe(Params, frozen=True, kw_only=True):
    """`events`: names of EVENTS that this connection wants from now on, and no others."""

    events: tuple[str, ...]


class Subscribed(Result, frozen=True, kw_only=True):
    """What it gets now."""

    events: tuple[str, ...]


class RunStart(Params, frozen=True, kw_only=True):
    """As `dsec-kernel run` has it, in a process of its own.

    Attributes:
        config: path of the configuration; may be left out with `resume`.
        set: changes to it, as in `--set`.
        out: the run directory.
        resume: one that goes on.
        keep: the run goes on when this connection ends.
    """

    config: str | None = None
    set: tuple[str, ...] = ()
    out: str | None = None
    resume: str | None = None
    keep: bool = False


class RunStarted(Result, frozen=True, kw_only=True):
    """It has its directory, and its processes start."""

    run: str
    run_dir: str
    agents: int
    seed: int


class RunStop(Params, frozen=True, kw_only=True):
    """`kill`: at once, instead of each agent at its next boundary."""

    run: str
    kill: bool = False


class RunName(Params, frozen=True, kw_only=True):
    """A run."""

    run: str


class RunStatus(Result, frozen=True, kw_only=True):
    """Where a run stands.

    Attributes:
        state: `running` or `ended`.
        progress: as in event.progress; empty until there is any.
        exit_code, totals: how it ended, as `dsec-kernel run --json` says; None before.
        error: what went wrong with the run as a whole.
    """

    run: str
    run_dir: str
    state: str
    progress: dict[str, Any]
    exit_code: int | None = None
    totals: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Pool(Params, frozen=True, kw_only=True):
    """A pool of Agent State Atoms; without a name one is made up."""

    size_mb: Annotated[int, Meta(ge=1)]
    name: str = ""
    persist: bool = False


class SandboxOpen(Params, frozen=True, kw_only=True):
    """Environments whose policy is the program.

    Attributes:
        agent: an entry of `agents` of a configuration: an object, or YAML, which has .inf and .nan.
        lanes: processes alike, each with `env.num_envs` environments.
        seed: what is random without a seed of its own derives from it.
        autoreset: `next_step`, `same_step` or `disabled`.
        reward: there is a reward role, and the program waits for its answers.
        out: a new directory for a recording.
        record: its format.
        pool: of atoms: `name`, `size_mb` and `persist`; none where it is left out.
        sandbox: the name; one is made up where it is left out.
    """

    agent: dict[str, Any] | str
    lanes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    autoreset: Literal["next_step", "same_step", "disabled"] = "disabled"
    reward: bool = False
    out: str = ""
    record: str = "none"
    pool: Pool | None = None
    sandbox: str = ""


class SandboxOpened(Result, frozen=True, kw_only=True):
    """All environments are there. `ticket` is what the hand-over socket wants for their rings."""

    sandbox: str
    agents: tuple[str, ...]
    ticket: str


class SandboxClose(Params, frozen=True, kw_only=True):
    """`grace_s`: what it may take to end by itself, after the END record in its action ring."""

    sandbox: str
    grace_s: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0


class SandboxClosed(Result, frozen=True, kw_only=True):
    """`files`: those of its recording."""

    sandbox: str
    files: tuple[str, ...]


class AgentsList(Params, frozen=True, kw_only=True):
    """Of one run or sandbox, or of all."""

    run: str = ""
    sandbox: str = ""


class AgentRow(Result, frozen=True, kw_only=True):
    """One agent: `state` is starting, ready, running, done or quarantined."""

    agent: str
    state: str
    steps: int
    episodes: int
    failovers: int
    run: str = ""
    sandbox: str = ""


class Agents(Result, frozen=True, kw_only=True):
    """Agents in the order in which they were made."""

    agents: tuple[AgentRow, ...]


class Nothing(Params, frozen=True, kw_only=True):
    """No parameters."""


class Done(Result, frozen=True, kw_only=True):
    """It is done, and there is nothing to say of it."""


METHODS: dict[str, tuple[type[Params], type[Result]]] = {
    "initialize": (Initialize, Initialized),
    "run.start": (RunStart, RunStarted),
    "run.status": (RunName, RunStatus),
    "run.stop": (RunStop, RunStatus),
    "sandbox.open": (SandboxOpen, SandboxOpened),
    "sandbox.close": (SandboxClose, SandboxClosed),
    "agents.list": (AgentsList, Agents),
    "events.subscribe": (Subscribe, Subscribed),
    "shutdown": (Nothing, Done),
    "exit": (Nothing, Done),
}

EVENTS = {
    "event.agent": "an agent's state is new",
    "event.away": "a sandbox's environments were lost, and are being replaced",
    "event.death": "a process ended for good, and its agent with it",
    "event.ended": "a run or sandbox has ended",
    "event.failover": "a role of an agent was lost, and goes on",
    "event.holds": "a role of a sandbox's agent keeps its state in a memory file from now on",
    "event.log": "something to be noted",
    "event.lost": "notifications were left out, as the program did not read",
    "event.progress": "a run at a glance, a few times a second",
    "event.quarantine": "an agent has ended by a fault",
}
