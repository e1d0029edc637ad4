"""What the kernel is asked to run: plain values, made by the composition root from the config.

Rule 1: no field here has a meaning that only another room knows. What a runner constructs is in
its `Start` frame, which the kernel passes on unread. Rule 2: every limit is here, with its unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsec.ipc.frames import Phase, Role, Start

SERVERS_DRAIN_S = 1.0  # what servers have after the supervisor's death


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """A runtime image: a zygote that has imported `modules`, and of `warm` what it can (see the
    frame Prepare), and forks runners on request.

    `environment` names the variables that it keeps beside those that Python and its libraries need
    (launch.scrubbed); None: it keeps all.
    `own`: nobody's configuration named these modules, so it isn't to blame where they can't be
    imported: this machine, or what is installed on it, is.
    """

    name: str
    modules: tuple[str, ...]
    import_timeout_s: float = 120.0
    own: bool = False
    warm: tuple[str, ...] = ()
    environment: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """One child process of an agent.

    Attributes:
        image: the name of the ImageSpec whose zygote forks it.
        start: the frame it gets first.
        deadline_s: seconds that user code may spend in each phase.
        external: nobody is forked: the caller of the kernel plays this role itself.
    """

    role: Role
    image: str
    start: Start
    deadline_s: dict[Phase, float] = field(default_factory=dict)
    external: bool = False


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent: its runners by role, and the group (config entry) that it came from.

    Of its runners that are lost at most `restarts_max` are replaced in any `restarts_period_s`;
    with 0 none is, and the agent is quarantined. `first` is the first transition that is recorded
    of it: 0, but for one that goes on where what came before is not in this recording. `rank` is
    its place in the configuration, whoever else is in this run. `chain` is the mark that its hash
    chain goes on from, where it came from another host. Of one that was forked `parent` is
    the id of the atom that it began from, and `fork_index` which of that one's forks it is.
    """

    name: str
    group: str
    runners: tuple[RunnerSpec, ...]
    num_envs: int = 1
    restarts_max: int = 0
    restarts_period_s: float = 60.0
    first: int = 0
    chain: bytes = b""
    rank: int = 0
    parent: int | None = None
    fork_index: int = 0


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pool of Agent State Atoms of a run.

    Attributes:
        name: the segment's.
        persist: it may outlive the run.
        snapshot_intervals: by group, the steps between two atoms of which the latest few are kept.
        space: the name space of its UUIDs, two 64-bit numbers; None: a random one.
        peers: hosts that get copies, the heir first; with `backend`, `token_file`, `lease_s` and
            `run`, which is the run's own name among all hosts.
        recorded: whether there is a hash chain, which copies wait for.
    """

    name: str
    size_mb: int
    persist: bool
    snapshot_intervals: dict[str, int]
    space: tuple[int, int] | None = None
    peers: tuple[str, ...] = ()
    backend: str = "auto"
    token_file: str = ""
    lease_s: float = 0.0
    run: str = ""
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that one kernel runs, and where.

    Attributes:
        run_dir: an existing, locked directory; `logs/` below it takes the runners' output.
        dry: bring every agent to Ready, close it, record nothing (`dsec-kernel validate`).
        log_bytes_max: size at which a runner's stdout or stderr file is rotated once.
        drain_timeout_s: what an agent has between Drain and its end before it is killed.
        deterministic: as the configuration's run.deterministic says.
        ranks: agents in the configuration; those that are done already are not in `agents`.
        recorder: whether a recorder joins the rings; without one nothing is counted or kept.
        pool: where the agents' atoms go; None where there are none.
    """

    name: str
    run_dir: str
    seed: int
    images: tuple[ImageSpec, ...]
    agents: tuple[AgentSpec, ...]
    record_format: str = "parquet"
    disk_wait_s: float = 30.0
    dry: bool = False
    log_bytes_max: int = 8 * 1024 * 1024
    drain_timeout_s: float = 10.0
    recorder: bool = True
    recorder_image: str = "base"
    deterministic: bool = False
    ranks: int = 0
    pool: PoolSpec | None = None
