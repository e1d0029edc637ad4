"""What the kernel says about deaths, agents and the run: plain values, for people and for JSON.

A `Death` answers guarantee G6: every end has a cause, a phase and what was last seen.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace

from dsec.errors import lacks_memory
from dsec.ipc.frames import (
    AgentProgress,
    AtomCount,
    ErrorInfo,
    Finished,
    Phase,
    Protection,
    Ready,
    Role,
)
from dsec.origin import MISMATCH

EXIT_FAILED = 70  # the runner reported its exception in a Failed frame
FAILOVERS_WHOLE = 200
RECYCLED = "recycled"  # the kind of an end that was no death
EXIT_PERMANENT = 125  # user code asks not to be restarted


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; empty for 0."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Death:
    """Why a process ended, as far as it can be known.

    Attributes:
        cause: one sentence: `killed by SIGSEGV in step`, `hung in reset for 30.0 s (deadline
            30 s), killed`, `raised ValueError in step: ...`, `left with exit code 3 in step`.
        kind: `signal`, `exit`, `exception`, `hang`, `import`, `spawn`, `protocol` or `corrupt`
            (its ring holds what it may not); or `recycled`, which is no fault: it stepped aside for
            a fresh process. Runners that were fenced because another runner of
            their agent died have no Death of their own.
        signal: number of the signal that ended it, 0 if none.
        exit_code: exit code, -1 if a signal ended it.
        phase: what user code it was in.
        seq_last: last sequence number that it had published or was working on, -1 if unknown.
        action_last: the agent's last action, in words; empty if unknown.
        rss_peak_bytes: peak resident set size.
        memory_limit_bytes: its limit, 0 if it had none.
        fault_address: the address that the crash handler saw, empty if none.
        stderr_tail: the last lines it wrote to stderr.
        at: when it happened, in seconds of CLOCK_MONOTONIC; 0.0 if only its end was seen.
        sent: its handler saw that another process sent the signal (SIGKILL, which has no handler,
            always comes from one).
    """

    agent: str
    role: Role
    epoch: int
    pid: int
    cause: str
    kind: str
    signal: int = 0
    exit_code: int = -1
    phase: Phase = Phase.IDLE
    seq_last: int = -1
    action_last: str = ""
    rss_peak_bytes: int = 0
    memory_limit_bytes: int = 0
    fault_address: str = ""
    stderr_tail: str = ""
    error: ErrorInfo | None = None
    at: float = 0.0
    sent: bool = False

    @property
    def short_of_memory(self) -> bool:
        """Whether it asked for memory that this machine didn't give. One that has a limit of its
        own has reached that one: a matter of the configuration."""
        said = f"{self.error.type}: {self.error.message}" if self.error is not None else ""
        return not self.memory_limit_bytes and lacks_memory(said + self.stderr_tail[-400:])

    @property
    def machines_fault(self) -> bool:
        """Whether no configuration could be to blame: what is installed, or memory, is."""
        mixed = self.error is not None and self.error.type == MISMATCH
        return self.kind == "spawn" or mixed or self.short_of_memory

    @property
    def signal_name(self) -> str:
        """`SIGSEGV` for 11; empty if no signal ended it."""
        return signal_name(self.signal)


@dataclass(frozen=True, slots=True)
class Failover:
    """One role that was lost and went on.

    Attributes:
        agent, role: whose.
        epoch: of the incarnation that serves now.
        death: why the one before was lost.
        tried: why other successors were lost meanwhile, the first one first.
        level: how its state was kept: `state`, `fork` or `none`.
        exact: of an environment, what was replayed is, bit for bit, what had been published.
            Otherwise the episode was ended there as an infrastructure failure, and `why` says what
            differed. Of a policy or reward, its state was restored, and what it
            answered again is what it had answered (that is compared while it serves, so a report
            may be corrected); otherwise `why` says what differed, and no episode ended.
        poisoned: the same record had been fatal again and again. An environment did not try it
            once more; a policy or reward did, for there is no answer but its own.
        seq: the last record that had been published, -1 if there was none.
        action_last: the last action that it had, in words.
        replayed: records that were done again.
        detect_ms: from the fault to the moment when it was noticed; None if it left no record.
        fence_ms: from then on until the lost one was reaped.
        restore_ms, replay_ms: of that, in the successor.
        total_ms: from the fault, or else from when it was noticed, until the successor could go on.
            The deadline by which a hang is noticed does not count.
    """

    agent: str
    role: Role
    epoch: int
    death: Death
    tried: tuple[str, ...]
    level: str
    exact: bool
    why: str
    poisoned: bool
    seq: int
    action_last: str
    replayed: int
    detect_ms: float | None
    fence_ms: float
    restore_ms: float
    replay_ms: float
    total_ms: float

    @property
    def recycled(self) -> bool:
        """It was planned, and nothing came of it but a fresh process."""
        return self.death.kind == RECYCLED and self.exact and not self.tried


@dataclass(slots=True)
class AgentReport:
    """Where one agent stands. `state` is `starting`, `ready` (it waits for others to start),
    `running`, `done` or `quarantined`; `before` counts those of its steps that earlier lives of
    the run made; `failovers` counts what it survived, `recycled` how often a healthy runner of
    it was replaced by a fresh one, `protection` says by role how its state is kept, `pinned`
    what keeps its process deterministic, `open` what its isolation asks for and this system
    can't enforce; `chain` is the value of its hash chain at the end, in hexadecimal digits."""

    name: str
    group: str
    state: str = "starting"
    steps: int = 0
    episodes: int = 0
    return_sum: float = 0.0
    returns_last: float = 0.0
    before: int = 0
    lost: int = 0
    failovers: int = 0
    recycled: int = 0
    protection: dict[Role, Protection] = field(default_factory=dict)
    pinned: dict[Role, dict[str, str]] = field(default_factory=dict)
    open: dict[Role, tuple[str, ...]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    death: Death | None = None
    chain: str = ""

    def count(self, said: AgentProgress | Finished) -> None:
        """Take over the recorder's totals."""
        self.steps, self.episodes = said.steps, said.episodes
        self.return_sum = said.return_sum
        if isinstance(said, AgentProgress):
            self.returns_last = said.returns_last

    def holds(self, role: Role, said: Ready) -> None:
        """Take in what holds in the process of a role, and what doesn't."""
        self.pinned[role], self.open[role] = said.pinned, said.open

    def enter(self, state: str) -> bool:
        """Take in a state of the agent's lifecycle; whether that is news for anybody."""
        news = state in ("running", "done", "quarantined") and state != self.state
        self.state = state if news else self.state
        return news

    def close(self, last: Finished | None, deaths: list[Death]) -> list[Death]:
        """Take in how it ended; return its deaths with what only the recorder knew of them.

        That is the last observation: an env's own, and what others were dealing with at most. A
        policy or a reward that was behind knows better how far it was itself.
        """
        if last is not None:
            self.count(last)
            self.lost, action = last.lost, last.action_last
            self.chain = last.chain
            for i, each in enumerate(deaths):
                own = each.seq_last if each.role is not Role.ENV else -1
                seq = own if own >= 0 else max(each.seq_last, last.seq_last)
                deaths[i] = replace(each, seq_last=seq, action_last=action)
        self.death = deaths[0] if deaths else None
        return deaths


@dataclass(slots=True)
class AtomsReport:
    """Agent State Atoms of a run.

    Attributes:
        captured, captured_bytes: put into the pool, in all. After a death of the server that does
            it, those of its last moment may not be counted.
        kept, kept_bytes: in the pool at the end.
        spilled: agents whose newest atom is on disk.
        seq: by agent, the boundary of its newest atom.
        missing: by agent, the roles whose state is in no atom: it can't be resumed from one.
        problem: why an atom was refused, the first time; empty if none was.
        lost: why there are none any more although the run went on; empty if there are.
    """

    captured: int = 0
    captured_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    spilled: int = 0
    seq: dict[str, int] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""
    lost: str = ""

    def count(self, said: AtomCount) -> None:
        """Take in what was put into the pool."""
        self.captured += said.atoms
        self.captured_bytes += said.nbytes
        self.seq[said.agent] = said.seq

    def refuse(self, why: str) -> bool:
        """Take in that an atom was refused; whether that is the first time."""
        news = not self.problem
        self.problem = self.problem or why
        return news


@dataclass(slots=True)
class RunReport:
    """The run as it stands: agents by name, every death so far that was the end of an agent or of
    a server, every failover, the recording's files.

    `seconds` runs from the first Go to the last Finished. `failure` says in one sentence why the
    run as a whole ended early (a full disk, a zygote that can't import), empty otherwise;
    `failure_kind` is then `config`, `machine` or `internal`. `drained` tells that a signal or a
    caller asked for the end.
    """

    agents: dict[str, AgentReport]
    deaths: list[Death] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    failure: str = ""
    failure_kind: str = ""
    failure_error: ErrorInfo | None = None
    failure_group: str = ""
    drained: bool = False
    atoms: AtomsReport | None = None

    def count(self, failover: Failover) -> Failover:
        """Take in a failover; return it with what the agent had said of its protection, if that
        was not enough. A run may survive any number of them, so of those beyond the first
        FAILOVERS_WHOLE only the figures are kept, without what the dead wrote."""
        agent = self.agents[failover.agent]
        if failover.recycled:
            agent.recycled += 1
            return failover
        protection = agent.protection.get(failover.role)
        unkept = failover.level == "none" and not failover.poisoned
        if unkept and protection is not None and protection.notes:
            notes = "; ".join(protection.notes)
            failover = replace(failover, why=f"{failover.why}: {notes}".removeprefix(": "))
        if len(self.failovers) >= FAILOVERS_WHOLE:
            brief = replace(failover.death, stderr_tail="", error=None)
            failover = replace(failover, death=brief)
        self.failovers.append(failover)
        agent.failovers += 1
        return failover

    def protect(self, name: str, role: Role, told: Protection) -> str:
        """Take in how a role protects its state; or that its last takeover was not exact after
        all, which corrects that failover. Returns why it was not, as a sentence; else nothing."""
        agent = self.agents[name]
        if not told.differs:
            agent.protection[role] = told
            return ""
        for i in range(len(self.failovers) - 1, -1, -1):
            each = self.failovers[i]
            if each.agent == name and each.role is role:
                self.failovers[i] = replace(each, exact=False, why=told.differs)
                break
        return told.differs
