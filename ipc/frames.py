"""The control vocabulary: every message between the kernel and another process, as a value.

This file knows no socket, no clock and no asyncio. A frame is one msgpack-encoded tagged struct
and travels as one SOCK_SEQPACKET datagram; descriptors ride beside it (see channel.py). Data of a
step never comes here: it goes through the rings. Unknown tags, missing fields and wrong types
raise `FrameError`, whoever sent them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.errors import FrameError
from dsec.ipc.server_frames import Abandon as Abandon
from dsec.ipc.server_frames import AtomCount as AtomCount
from dsec.ipc.server_frames import Captured as Captured
from dsec.ipc.server_frames import Corrupt as Corrupt
from dsec.ipc.server_frames import DiskFull as DiskFull
from dsec.ipc.server_frames import DiskOk as DiskOk
from dsec.ipc.server_frames import Enrol as Enrol
from dsec.ipc.server_frames import Finish as Finish
from dsec.ipc.server_frames import Finished as Finished
from dsec.ipc.server_frames import Moved as Moved
from dsec.ipc.server_frames import PoolDone as PoolDone
from dsec.ipc.server_frames import PoolStart as PoolStart
from dsec.ipc.server_frames import Progress as Progress
from dsec.ipc.server_frames import RecorderDone as RecorderDone
from dsec.ipc.server_frames import RecorderStart as RecorderStart
from dsec.ipc.server_frames import Sections as Sections
from dsec.ipc.server_frames import Settled as Settled
from dsec.ipc.server_frames import Taken as Taken
from dsec.ipc.server_frames import Wired as Wired
from dsec.ipc.terms import AgentProgress as AgentProgress
from dsec.ipc.terms import EnvSettings as EnvSettings
from dsec.ipc.terms import ErrorInfo as ErrorInfo
from dsec.ipc.terms import FailoverSettings as FailoverSettings
from dsec.ipc.terms import Frame as Frame
from dsec.ipc.terms import Harm as Harm
from dsec.ipc.terms import Isolation as Isolation
from dsec.ipc.terms import Origin as Origin
from dsec.ipc.terms import Phase as Phase
from dsec.ipc.terms import PlannedFault as PlannedFault
from dsec.ipc.terms import Protection as Protection
from dsec.ipc.terms import Role as Role
from dsec.ipc.terms import SegmentRef as SegmentRef

FRAME_BYTES_MAX = 128 * 1024
RUNNER_MARK = "DSEC_RUNNER"
"""Environment variable that holds a runner's pid, so that what it started can be told for its."""

# ---------------------------------------------------------------- kernel -> zygote and back


class Prepare(Frame, tag="prepare", frozen=True):
    """Import these modules, in order, before the first fork.

    `warm` names what the image's runners will import by themselves, as modules or as ids of
    registered environments: it is imported, too, where that is possible, and forgiven where not.
    """

    image: str
    modules: tuple[str, ...]
    warm: tuple[str, ...] = ()


class Prepared(Frame, tag="prepared", frozen=True):
    """The image is warm."""

    image: str


class ImportFailed(Frame, tag="import_failed", frozen=True):
    """A module of the image raised while it was imported."""

    image: str
    module: str
    error: ErrorInfo


class Fork(Frame, tag="fork", frozen=True):
    """Fork a runner. Descriptors: control socket, lifeline, stdout file, stderr file."""

    name: str
    epoch: int
    supervisor_pid: int


class Forked(Frame, tag="forked", frozen=True):
    """The runner exists and is the supervisor's child."""

    name: str
    epoch: int
    pid: int


class ForkFailed(Frame, tag="fork_failed", frozen=True):
    """The operating system refused to fork; `message` says why."""

    name: str
    epoch: int
    message: str


# ---------------------------------------------------------------- kernel -> runner


class Start(Frame, tag="start", frozen=True):
    """First frame to a runner: what it is. The env constructs at once; the others wait for Wire.

    `seed` is the agent's own 128-bit seed as 32 hex digits, derived from the run's seed and the
    agent's name; each role derives its streams from it. `steps` and `episodes` are this agent's
    quota (0 = no bound on that count). `limits` holds `open_files` and `memory_mb`, `cpus`
    the cores that it may run on (empty: all). `chaos` is what it does to itself.
    `snapshot_interval` is the steps from one boundary marker
    to the next; `atoms` says that the role keeps its state at each of them for the agent's atom,
    with the latest `reward_window` rewards in it.
    `origin` is the atom that the agent goes on from. `caller`:
    whoever wired itself as the policy asks for more than actions (runners/requests.py), resets
    included; what follows an end is the autoreset mode that it holds, `same_step`, `next_step` or
    `disabled`. Empty: episodes follow one another.
    `deterministic` is the run's: pin what can be pinned. `dry`: after Ready comes the end; an env
    runner finds out before that how its state would be kept.
    """

    agent: str
    role: int
    epoch: int
    seed: str
    num_envs: int = 1
    env: EnvSettings = EnvSettings()
    entry: str = ""
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    steps: int = 0
    episodes: int = 0
    snapshot_interval: int = 50
    ring_slots: int = 1024
    limits: dict[str, int] = msgspec.field(default_factory=dict)
    cpus: tuple[int, ...] = ()
    failover: FailoverSettings = FailoverSettings()
    isolation: Isolation = Isolation()
    chaos: Harm = Harm()
    origin: Origin | None = None
    caller: str = ""
    deterministic: bool = False
    atoms: bool = False
    reward_window: int = 0
    dry: bool = False


class Wire(Frame, tag="wire", frozen=True):
    """Segments of one agent, with the env's spaces. A runner gets its own outbox writable and
    the others read-only.

    Before Wire an env runner has sent `Constructed`. On Wire a policy or reward runner constructs
    the user's object; all answer `Ready` (the recorder, for which `agent` matters: `Wired`).
    `config_group` is the agent's name in the config, without its number (agents that share it
    share a recording file). `first` is the first transition that is recorded of the agent, `chain`
    the mark (sml/chain.py) that its hash chain goes on from there, if that is not 0.
    """

    agent: str
    spaces: bytes
    segments: tuple[SegmentRef, ...]
    num_envs: int = 1
    config_group: str = ""
    first: int = 0
    chain: bytes = b""


class Go(Frame, tag="go", frozen=True):
    """All roles of the agent are ready: run.

    `policy_learns`: the policy reads the reward ring, so the reward runner must answer each step
    at once and not in batches, and counts the policy among the readers that hold it back.
    """

    policy_learns: bool = False


class Takeover(Frame, tag="takeover", frozen=True):
    """Comes to a constructed spare, or to a new incarnation, instead of Wire: go on where a dead
    runner stopped.

    `wire` is what that one was wired with, under a new epoch, the descriptors beside it likewise.
    `kept` is the index of the descriptor of what it had Kept, -1 if there is nothing. The runner
    restores, replays, compares, and answers TakenOver; it publishes nothing before Resume.
    `truncate` says not to try again what the dead one was doing: end the episode here (G4).
    `cause` is what goes into the info dict of a step that is not exact.
    """

    wire: Wire
    kept: int = -1
    truncate: bool = False
    cause: str = ""
    policy_learns: bool = False


class Resume(Frame, tag="resume", frozen=True):
    """The predecessor is fenced: publish, and serve. Comes after TakenOver only.

    `kept` is the index of the descriptor of what the predecessor sent with a Kept that was read
    after Takeover had gone out; -1 if there was none.
    """

    kept: int = -1


class Drain(Frame, tag="drain", frozen=True):
    """End at the next boundary: the env marks the end of its stream, everyone follows it.

    `fenced`: those whom this runner reads are gone; it answers what they published and ends.
    """

    reason: str
    fenced: bool = False


# ---------------------------------------------------------------- runner -> kernel


class Hello(Frame, tag="hello", frozen=True):
    """The runner lives, is bound to the lifeline and waits for Start."""

    pid: int


class Constructed(Frame, tag="constructed", frozen=True):
    """The environment exists. `spaces` is opaque to the kernel (layout.py encodes and decodes
    it); `ring_bytes` maps each role to the data bytes that its outbox needs."""

    spaces: bytes
    ring_bytes: dict[int, int]


class Ready(Frame, tag="ready", frozen=True):
    """Constructed, wired, spaces known: Go may come. `learns` is only ever true of a policy.
    `pinned` is what holds in this process, by name, where the run is deterministic; `open` is what
    its isolation asks for and this system can't enforce, a sentence each."""

    learns: bool = False
    pinned: dict[str, str] = msgspec.field(default_factory=dict)
    protection: Protection = Protection("none")
    open: tuple[str, ...] = ()


class Kept(Frame, tag="kept", frozen=True):
    """Beside it: the descriptor of the sealed segment in which the runner keeps its state for a
    successor, and for the agent's atoms; only for these where it is not `inheritable`. Replaces
    an earlier one. The kernel holds it and never looks inside.

    `protection` is what the runner has measured since Ready. A Kept without a descriptor (and a
    size of 0) tells only that; before TakenOver, that the replay gets on. It replaces nothing.
    """

    size: int
    protection: Protection | None = None
    inheritable: bool = True


class Crashing(Frame, tag="crashing", frozen=True):
    """Sent by the signal handler of a runner that has crashed: its exit follows.

    `sender`: the process that sent the signal, -1 if that has no number here, 0 if nobody did.
    `seq`: the record that it was at, -1 if unknown; its progress word, where it has one, says so,
    too. `call`: of SIGSYS, the number of the system call that its isolation denies; else -1."""

    signal: int
    sender: int = 0
    seq: int = -1
    call: int = -1


class Clone(Frame, tag="clone", frozen=True):
    """The runner forked itself at record `seq`; the clone sleeps. Beside it: the kernel's end of
    the clone's own control channel, on which it waits for Takeover. Replaces an earlier one, which
    the runner has ended by itself."""

    pid: int
    seq: int


class TakenOver(Frame, tag="taken_over", frozen=True):
    """State restored, actions replayed; ready to publish on Resume.

    `exact`: what was replayed is bit for bit what had been published. Otherwise `why` says what
    differed, and the episode will end here (G4). `seq` is the last observation (action, reward)
    that had been published, `action_last` in words the last action that it had; times in
    milliseconds.
    """

    exact: bool
    level: str
    seq: int
    replayed: int
    restore_ms: float
    replay_ms: float
    why: str = ""
    action_last: str = ""


class Retired(Frame, tag="retired", frozen=True):
    """The runner is well and steps aside for a fresh process: `why`. Its state is kept as it was
    after `seq`, its last record; it publishes no more, closes what is the user's and exits."""

    seq: int
    why: str


class Failed(Frame, tag="failed", frozen=True):
    """User code raised. The runner exits with code 70 after this."""

    phase: int
    seq: int
    error: ErrorInfo


class Done(Frame, tag="done", frozen=True):
    """The stream ended, the user's object is closed; exit code 0 follows.

    `metrics` is what a policy or reward object chose to report about itself.
    """

    role: int
    seq: int
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


AnyFrame = (
    Prepare
    | Prepared
    | ImportFailed
    | Fork
    | Forked
    | ForkFailed
    | Start
    | Wire
    | Go
    | Takeover
    | Resume
    | Drain
    | Hello
    | Constructed
    | Ready
    | Kept
    | Crashing
    | Clone
    | TakenOver
    | Retired
    | Failed
    | Done
    | RecorderStart
    | Wired
    | Progress
    | DiskFull
    | DiskOk
    | Abandon
    | Corrupt
    | Finished
    | Finish
    | RecorderDone
    | PoolStart
    | Moved
    | Enrol
    | Sections
    | Settled
    | Taken
    | Captured
    | PoolDone
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def encode(frame: AnyFrame) -> bytes:
    """Encode one frame.

    Raises:
        FrameError: the frame is larger than FRAME_BYTES_MAX.
    """
    data = _encoder.encode(frame)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameError(
            f"{type(frame).__name__} frame of {len(data)} bytes; at most {FRAME_BYTES_MAX} fit"
        )
    return data


def decode(data: bytes | memoryview) -> AnyFrame:
    """Decode one datagram.

    Raises:
        FrameError: the bytes are no frame of this vocabulary.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise FrameError(f"not a control frame ({len(data)} bytes): {error}") from None
