"""The matrix of faults: what goes wrong, where in whose life, and what must come of it. Data only.

A cell is a fault in a phase of a role. Its outcome follows from the fault's kind and the phase by
the table `RULES`; a cell that differs has a line of its own in `EXCEPTIONS`. Nothing is ever left
behind, and the other agents of the run always do their quota: that is asked of every cell alike.

Outcomes:
    UNHARMED: no death and no failover; the recording is that of an undisturbed run.
    EXACT: a successor goes on, and the recording is that of an undisturbed run.
    ENDED: a successor goes on with a fresh episode; the record at the fault is left out (G4).
    CLOSED: it had done all that it had to: its death is reported, and nothing else comes of it.
    QUARANTINED: the agent ends; what it had done is recorded whole.
    REFUSED: nobody runs: what the configuration names can't be had (exit code 2).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

QUOTA, AT = 300, 200

Outcome = enum.Enum("Outcome", "UNHARMED EXACT ENDED CLOSED QUARANTINED REFUSED")
UNHARMED, EXACT, ENDED, CLOSED, QUARANTINED, REFUSED = Outcome

# Which call fires: an episode has 25 steps, and a reward is asked for each record.
PHASES: dict[str, dict[str, int]] = {
    "env": {
        "construct": 1,
        "first": 1,  # the first reset, before the agent runs
        "reset": 6,
        "step": AT,
        "close": AT,
        "standby": 20,  # while the spare is constructed; who serves waits for it at this step
        "replay": AT + 30,  # the successor of one that was killed there
        "recycled": AT,
        "anew": AT + 12,  # in the middle of an episode, which is done again from its beginning
        "anewreplay": AT + 12,
        "forked": AT + 12,
        "forkedreplay": AT + 12,
    },
    "policy": {"construct": 1, "act": AT, "learn": AT, "close": 1},
    "reward": {"construct": 1, "reward": AT, "close": 1},
}
# Phases of other levels: what their runners are in, and how their state is kept.
LEVELS: dict[str, tuple[str, dict[str, Any]]] = {
    "recycled": ("step", {"standby": "state", "recycle_every": 60}),
    "anew": ("step", {"standby": "replay"}),
    "anewreplay": ("replay", {"standby": "replay"}),
    "forked": ("step", {"standby": "fork"}),
    "forkedreplay": ("replay", {"standby": "fork"}),
}
SERVING = ("first", "reset", "step", "act", "learn", "reward", "recycled", "anew", "forked")
REPLAYING = ("replay", "anewreplay", "forkedreplay")
FEW = ("segv", "kill")  # which represent all others there in CI


@dataclass(frozen=True)
class Fault:
    """One kind of harm.

    Attributes:
        kind: of faults with equal outcomes in all phases.
        cause: how the cause of death begins; `{}` is the phase.
        agent: what the agent's configuration has because of it.
        deadline_s: of the phase that it happens in; 0.0: as the configuration has it.
        ci: it represents its kind in CI.
    """

    kind: str
    cause: str = ""
    agent: dict[str, Any] = field(default_factory=dict)
    deadline_s: float = 0.0
    ci: bool = False


HUNG = "hung in {} for"
FAULTS: dict[str, Fault] = {
    "segv": Fault("crash", "killed by SIGSEGV in {}", ci=True),
    "bus": Fault("crash", "killed by SIGBUS in {}"),
    "abort": Fault("crash", "killed by SIGABRT in {}"),
    "fpe": Fault("crash", "killed by SIGFPE in {}"),
    "ill": Fault("crash", "killed by SIGILL in {}"),
    "thread": Fault("crash", "killed by SIGSEGV in {}"),
    "kill": Fault("kill", "killed by SIGKILL in {}", ci=True),
    "exit0": Fault("exit", "left with exit code 0 in {}"),
    "exit": Fault("exit", "left with exit code 3 in {}", ci=True),
    "sysexit": Fault("exception", "raised SystemExit in {}"),
    "raise": Fault("exception", "raised KeyError in {}", ci=True),
    "unpicklable": Fault("exception", "raised tests.crash.faulty.UnpicklableError in {}"),
    "memory": Fault("exception", "raised MemoryError in {}", {"limits": {"memory_mb": 1024}}),
    "files": Fault("exception", "raised OSError in {}", {"limits": {"open_files": 128}}),
    "spinpy": Fault("hang", HUNG, deadline_s=1.0),
    "spinc": Fault("hang", HUNG, deadline_s=1.0),
    "sleep": Fault("hang", HUNG, deadline_s=1.0, ci=True),
    "stop": Fault("hang", HUNG, deadline_s=1.0),
    "handler": Fault("hang", HUNG, deadline_s=1.0),
    "stopcont": Fault("harmless"),
    "forks": Fault("harmless"),
    "grandchildren": Fault("harmless"),
    "torrent": Fault("harmless"),
    "closeout": Fault("harmless"),
    "moveaway": Fault("harmless", ci=True),
    "scribble": Fault("corrupt", "segment: ", deadline_s=1.0, ci=True),  # whoever sees it
    "closeall": Fault("mute", "left with exit code 70", ci=True),
}
KINDS = {fault.kind for fault in FAULTS.values()}

LETHAL = ("crash", "kill", "exit", "exception", "hang")
RULES: dict[tuple[str, str], Outcome] = {
    **{(kind, phase): EXACT for kind in LETHAL for phase in SERVING},
    **{(kind, "construct"): QUARANTINED for kind in LETHAL},
    **{(kind, "close"): CLOSED for kind in LETHAL},
    **{(kind, "standby"): UNHARMED for kind in LETHAL},
    # The next successor replays it all again.
    **{(kind, phase): EXACT for kind in LETHAL for phase in REPLAYING},
    ("exception", "construct"): REFUSED,
    **{("harmless", phase): UNHARMED for phase in (*SERVING, "construct", "close")},
    # The restored one did what its predecessor had not done.
    **{("exception", phase): ENDED for phase in REPLAYING},
    ("harmless", "standby"): UNHARMED,
    **{("harmless", phase): EXACT for phase in REPLAYING},
    ("corrupt", "step"): QUARANTINED,
    ("corrupt", "act"): QUARANTINED,
    ("corrupt", "reward"): QUARANTINED,
    ("mute", "step"): EXACT,  # it works on in its rings, and goes down when it is asked for more
    ("mute", "act"): EXACT,
    ("mute", "reward"): EXACT,
}
EXCEPTIONS: dict[str, Outcome] = {
    **{f"sysexit-env-{phase}": EXACT for phase in REPLAYING},  # ends its process, as a crash does
    "files-env-replay": EXACT,  # it has no descriptor left to go on with; the next one has
}
# What is known to be wrong: the cell is an expected failure. Nobody else's outcome is touched.
WRONG: dict[str, str] = {
    "files-env-replay": "a successor that died before it ended the episode is told to have ended it"
}


@dataclass(frozen=True)
class Cell:
    """One cell, and what is expected of it."""

    fault: str
    role: str
    phase: str
    outcome: Outcome

    @property
    def name(self) -> str:
        """Of the cell, of its agent, and of the file that says it happened."""
        return f"{self.fault}-{self.role}-{self.phase}"

    @property
    def ci(self) -> bool:
        return FAULTS[self.fault].ci and (self.phase not in LEVELS or self.fault in FEW)

    @property
    def spot(self) -> str:
        """The phase of user code in which it happens."""
        return LEVELS.get(self.phase, (self.phase, {}))[0]

    @property
    def cause(self) -> str:
        shown = {"first": "reset"}.get(self.spot, self.spot)
        return FAULTS[self.fault].cause.format(shown)

    @property
    def wrong(self) -> str:
        """What is known to be wrong there; empty if nothing is."""
        return WRONG.get(self.name, "")


def cells() -> Iterator[Cell]:
    """All cells, by role and phase."""
    for role, phases in PHASES.items():
        for phase in phases:
            for name, fault in FAULTS.items():
                outcome = RULES.get((fault.kind, phase))
                if outcome is not None:
                    cell = Cell(name, role, phase, outcome)
                    yield Cell(name, role, phase, EXCEPTIONS.get(cell.name, outcome))


CELLS = {cell.name: cell for cell in cells()}


def agent(cell: Cell, evidence: str, plain: bool = False) -> dict[str, Any]:
    """The agent of a cell as a configuration has it; in a plain one nothing happens."""
    fault = FAULTS[cell.fault]
    at = PHASES[cell.role][cell.phase]
    quiet = {"fault": "none", "phase": "none", "at": at, "evidence": evidence, "name": cell.name}
    keywords = quiet | {"fault": "none" if plain else cell.fault, "phase": cell.spot}
    learns = cell.phase == "learn"
    entries = {"env": "World", "policy": "Learner" if learns else "Chooser", "reward": "Judge"}
    roles = {
        role: {
            "entry": f"tests.crash.matrix_world:{name}",
            "kwargs": keywords if role == cell.role else quiet,
        }
        for role, name in entries.items()
    }
    deadlines = {}
    if fault.deadline_s and not plain:
        phase = {"first": "reset", "standby": "construct"}.get(cell.spot)
        slack = 9.0 if cell.phase == "standby" else 0.0  # others construct at the same time
        deadlines = {f"{phase or cell.spot}_s": fault.deadline_s + slack}
        if cell.spot == "replay":
            deadlines = {"replay_s": 2.0}
    if cell.phase == "standby":  # who serves waits in a step until the spare has failed
        deadlines["step_s"] = 100.0
    made = {"name": cell.name, **roles, **fault.agent, "deadlines": deadlines}
    if cell.phase == "replay":  # a snapshot every 50 steps, whatever it costs
        made["failover"] = {"standby": "state", "protection_budget": 1e-6}
    if cell.phase in LEVELS:
        made["failover"] = LEVELS[cell.phase][1]
    return made
