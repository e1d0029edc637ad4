"""The part of the control vocabulary that servers speak: the recorder, and that of the atoms.

Apart from frames.py, which hands all of them on, only because one file would be too long.
"""

from __future__ import annotations

import msgspec

from dsec.ipc.terms import AgentProgress, Frame


class RecorderStart(Frame, tag="recorder_start", frozen=True):
    """First frame to the recorder: where to write and how. `format` is `parquet` or `none`."""

    run_dir: str
    format: str
    disk_wait_s: float
    run_name: str = ""
    seed: int = 0


class Wired(Frame, tag="wired", frozen=True):
    """The recorder reads this agent's rings from now on."""

    agent: str


class Progress(Frame, tag="progress", frozen=True):
    """Changed totals, a few times a second; dropped rather than waited for."""

    agents: tuple[AgentProgress, ...]


class DiskFull(Frame, tag="disk_full", frozen=True):
    """The recorder can't write and retries; `lasting` says that it gave up after disk_wait_s,
    `lost` that what it has written isn't there any more: somebody removed or moved it."""

    message: str
    lasting: bool
    lost: bool = False


class DiskOk(Frame, tag="disk_ok", frozen=True):
    """Writing works again after DiskFull."""


class Abandon(Frame, tag="abandon", frozen=True):
    """The agent's runners are fenced: take what is committed, then say Finished."""

    agent: str


class Corrupt(Frame, tag="corrupt", frozen=True):
    """A ring of this agent holds what its writer may not write; `message` says which and what.

    The recorder reads that agent no further, so its writers will come to a halt: fence them, then
    send Abandon. What was complete before the bad record is journaled.
    """

    agent: str
    message: str


class Finished(Frame, tag="finished", frozen=True):
    """The agent's stream is journaled to its end (or to where its fenced writers left it).

    `clean`: all three ends were seen. `seq_last` is the last observation published, `action_last`
    the last action published, in words; `lost` counts published transitions missing in the
    journal, from sequence numbers. `chain` is the value of the hash chain after the last one that
    is committed, in hexadecimal digits; empty if it is unknown.
    """

    agent: str
    clean: bool
    steps: int
    episodes: int
    return_sum: float
    seq_last: int
    seq_committed: int
    action_last: str
    lost: int
    chain: str = ""


class Finish(Frame, tag="finish", frozen=True):
    """All agents are finished: close the journal, convert it, say RecorderDone and exit.

    `keep`: some agents may go on in a later life of this run, so the journal is kept beside what is
    made of it.
    """

    keep: bool = False


class RecorderDone(Frame, tag="recorder_done", frozen=True):
    """The recording is whole. `files` are paths relative to the run directory."""

    files: tuple[str, ...]
    message: str = ""


class PoolStart(Frame, tag="pool_start", frozen=True):
    """First frame to the server of the atoms: the pool that it makes, or goes on with.

    `name` is the pool's, `agents` how many the run has, `persist` whether the pool may outlive it.
    Newest atoms go to `run_dir`/atoms, so that they do in any case. `space` is the name space of
    the run's atoms, two 64-bit numbers; none: a random one. `peers` get copies: see PoolSpec.
    """

    run_dir: str
    name: str
    size_mb: int
    persist: bool
    agents: int
    space: tuple[int, int] | None = None
    peers: tuple[str, ...] = ()
    backend: str = "auto"
    token_file: str = ""
    lease_s: float = 0.0
    run: str = ""
    recorded: bool = True


class Enrol(Frame, tag="enrol", frozen=True):
    """An agent that has atoms from now on; the answer is Wired.

    `rank` is its place among the agents, `roles` those that give sections, `snapshot_interval` the
    steps between two atoms of which the latest few are kept (those between give way to the next),
    `window` the length of its reward history. Of an agent that was forked `parent` is the id of the
    atom that it began from, and `fork_index` which of that one's forks it is.
    """

    agent: str
    rank: int
    num_envs: int
    roles: tuple[int, ...]
    snapshot_interval: int
    window: int
    parent: int | None = None
    fork_index: int = 0


class Sections(Frame, tag="sections", frozen=True):
    """Beside it: the memory file in which a role keeps its latest states (Kept), to read."""

    agent: str
    role: int
    size: int


class Settled(Frame, tag="settled", frozen=True):
    """Nobody writes an agent's sections any more: take the last, then answer Taken."""

    agent: str


class Taken(Frame, tag="taken", frozen=True):
    """The last atom of an agent, if there is one, is in the pool and on disk. `missing` are roles
    whose state is not in it."""

    agent: str
    missing: tuple[str, ...] = ()


class AtomCount(msgspec.Struct, frozen=True):
    """Atoms of an agent since the last word: how many, their bytes, and the latest one's boundary;
    -1 where the pool has none."""

    agent: str
    atoms: int
    nbytes: int
    seq: int


class Captured(Frame, tag="captured", frozen=True):
    """What was put into the pool, a few times a second. `problem` says why nothing more can be;
    `key` is the configuration's that has to be changed for that, or empty."""

    agents: tuple[AtomCount, ...]
    problem: str = ""
    key: str = ""


class Moved(Frame, tag="moved", frozen=True):
    """Agents that may not be run here any more, and why; none: all of them. `handing`: they end at
    their next boundary, and go on from there on another host; else they end at once."""

    agents: tuple[str, ...]
    why: str
    handing: bool = False


class PoolDone(Frame, tag="pool_done", frozen=True):
    """The newest atom of each agent is on disk. What the pool held at its end; `message` is said
    to people, if it says anything."""

    atoms: int
    nbytes: int
    spilled: int
    message: str = ""
