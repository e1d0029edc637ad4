"""What the kernel says about deaths, agents and the run: plain values, for people and for JSON.

A `Death` answers guarantee G6: every end has a cause, a phase and what was last seen.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from dsec.errors import lacks_memory
from dsec.ipc.frames import AgentProgress, ErrorInfo, Finished, Phase, Role

EXIT_FAILED = 70  # the runner reported its exception in a Failed frame
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
        kind: `signal`, `exit`, `exception`, `hang`, `import`, `spawn` or `protocol`. Runners that
            were fenced because another runner of their agent died have no Death of their own.
        signal: number of the signal that ended it, 0 if none.
        exit_code: exit code, -1 if a signal ended it.
        phase: what user code it was in.
        seq_last: last sequence number that it had published or was working on, -1 if unknown.
        action_last: the agent's last action, in words; empty if unknown.
        rss_peak_bytes: peak resident set size.
        memory_limit_bytes: its limit, 0 if it had none.
        fault_address: the address that the crash handler saw, empty if none.
        stderr_tail: the last lines it wrote to stderr.
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

    @property
    def short_of_memory(self) -> bool:
        """Whether it asked for memory that this machine didn't give. One that has a limit of its
        own has reached that one: a matter of the configuration."""
        said = f"{self.error.type}: {self.error.message}" if self.error is not None else ""
        return not self.memory_limit_bytes and lacks_memory(said + self.stderr_tail[-400:])

    @property
    def signal_name(self) -> str:
        """`SIGSEGV` for 11; empty if no signal ended it."""
        return signal_name(self.signal)


@dataclass(slots=True)
class AgentReport:
    """Where one agent stands. `state` is `starting`, `running`, `done` or `quarantined`."""

    name: str
    group: str
    state: str = "starting"
    steps: int = 0
    episodes: int = 0
    return_sum: float = 0.0
    returns_last: float = 0.0
    lost: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    death: Death | None = None

    def count(self, said: AgentProgress | Finished) -> None:
        """Take over the recorder's totals."""
        self.steps, self.episodes = said.steps, said.episodes
        self.return_sum = said.return_sum
        if isinstance(said, AgentProgress):
            self.returns_last = said.returns_last


@dataclass(slots=True)
class RunReport:
    """The run as it stands: agents by name, every death so far, the recording's files.

    `seconds` runs from the first Go to the last Finished. `failure` says in one sentence why the
    run as a whole ended early (a full disk, a zygote that can't import), empty otherwise;
    `failure_kind` is then `config`, `machine` or `internal`. `drained` tells that a signal or a
    caller asked for the end.
    """

    agents: dict[str, AgentReport]
    deaths: list[Death] = field(default_factory=list)
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    failure: str = ""
    failure_kind: str = ""
    failure_error: ErrorInfo | None = None
    failure_group: str = ""
    drained: bool = False
