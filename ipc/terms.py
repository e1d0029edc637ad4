"""The words that control frames are made of: roles, phases, and the values that frames carry.

Apart from frames.py, which hands all of them on, because a value here is no message by itself. It
knows as little of sockets and clocks as that.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

FLAG_INFRA = 4
"""Of an env's flags (layout.py): no step of the environment at all: it was lost, and what it would
have returned is unknown."""
FLAG_ASIDE = 8
"""No step of the environment either: its caller asked for something else, or it was reset instead.
The reward is 0.0, the observation the one that there was, unless the environment is fresh."""


class Frame(msgspec.Struct, tag_field="t", forbid_unknown_fields=True, frozen=True):
    """Base of all frames."""


class Role(enum.IntEnum):
    """Who writes an outbox. The numbers are the cursor slots in every segment; never renumber."""

    ENV = 0
    POLICY = 1
    REWARD = 2
    RECORDER = 3
    SML = 4


class Phase(enum.IntEnum):
    """What user code a runner is in, as its progress word says; IDLE has no deadline."""

    IDLE = 0
    IMPORT = 1
    CONSTRUCT = 2
    RESET = 3
    STEP = 4
    ACT = 5
    LEARN = 6
    REWARD = 7
    RENDER = 8
    CLOSE = 9
    REPLAY = 10  # a successor restores what was kept, and does again what was done since


class ErrorInfo(msgspec.Struct, frozen=True):
    """An exception of user code, as text: nothing that a runner wrote is ever unpickled.

    `where` is the config key at fault relative to the agent (`env.id`, `policy.entry`, `env`), or
    empty where the configuration is not to blame; `lookup` says that the named thing does not
    exist at all (no such module, class or environment), which no retry can mend. `others` were
    found beside it.
    """

    type: str
    message: str
    traceback: str = ""
    where: str = ""
    lookup: bool = False
    others: tuple[ErrorInfo, ...] = ()


class SegmentRef(msgspec.Struct, frozen=True):
    """One segment handed over: `fd` is the index of its descriptor beside the frame."""

    role: int
    size: int
    epoch: int
    fd: int


class EnvSettings(msgspec.Struct, frozen=True):
    """What the env role constructs: a registered id, or `entry` as `module:callable`."""

    id: str = ""
    entry: str = ""
    kwargs: dict[str, Any] = {}
    wrappers: tuple[dict[str, Any], ...] = ()


class Origin(msgspec.Struct, frozen=True):
    """Where a runner begins, if not at its beginning: from an atom, before action `seq`.

    `path` is the atom's file. `fork`: the agent is another one than the atom's, so that whatever is
    random in the restored state is seeded anew, from the runner's own seed.
    """

    path: str
    seq: int
    fork: bool = False


class FailoverSettings(msgspec.Struct, frozen=True):
    """How a runner's state is kept for its successor.

    `standby` is a level: `auto`, `state`, `fork`, `replay` or `none`. `budget` is the share of the
    time of a step that protection may cost. `recycle_every`: after how many records an env runner
    steps aside for a fresh process; 0: never.
    """

    standby: str = "none"
    budget: float = 0.05
    recycle_every: int = 0


class PlannedFault(msgspec.Struct, frozen=True, array_like=True):
    """A fault that a runner does to itself, once: right before its first call of that phase for
    record `step` or a later one; with `after`, when that call has returned and nothing is told."""

    kind: str
    phase: int
    step: int
    after: bool = False


class Harm(msgspec.Struct, frozen=True):
    """What a runner does to itself, because `chaos` in a configuration asks for it.

    `chances` is that of a fault at each step, by its kind. Each of the `planned` ones leaves a
    file in `folder` first, by which a successor knows that it has happened.
    """

    chances: dict[str, float] = {}
    planned: tuple[PlannedFault, ...] = ()
    folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.chances or self.planned)


class Isolation(msgspec.Struct, frozen=True):
    """What a runner gives up before it loads user code.

    `profile` is `none`, `default` or `strict`. `network`: it may use the internet. `uid`: whose
    process it becomes, -1: it stays what it is. `read`, `write`: what it may open beyond what
    Python needs; `folder`: where its own temporary files go if they can't be in memory;
    `hidden`: the run's directory. `processes`, `scratch_mb`: at most so many, together with
    threads; at most so much in temporary files; 0: no limit. `reads_all`: as another user it
    may read what only root may, in the folders that it may read at all. `require`: not to start
    with less than all of it.
    """

    profile: str = "default"
    network: bool = True
    uid: int = -1
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    folder: str = ""
    hidden: str = ""
    processes: int = 0
    scratch_mb: int = 0
    reads_all: bool = False
    require: bool = False


class Protection(msgspec.Struct, frozen=True):
    """What a runner chose, and measured, to protect its state.

    `level` is `state`, `fork`, `replay` or `none`; `codec` names how the state is read, empty where
    none is; `interval` counts records between two snapshots; times are per call. `notes` are
    sentences for people: what is not covered (threads, files, children), or why no more was chosen.
    `differs` changes none of this: it says that the last takeover was not exact after all, and why.
    """

    level: str
    codec: str = ""
    interval: int = 0
    step_us: float = 0.0
    snapshot_us: float = 0.0
    recovery_ms: float = 0.0
    notes: tuple[str, ...] = ()
    differs: str = ""


class AgentProgress(msgspec.Struct, frozen=True):
    """Totals of one agent since the run began; `steps` counts environment transitions,
    `returns_last` is the mean return of its latest (at most 100) episodes, 0.0 before the first.
    """

    agent: str
    steps: int
    episodes: int
    return_sum: float
    returns_last: float
