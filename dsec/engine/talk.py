"""What a kernel tells of what it runs for a program, and what it is asked to run.

Owns the messages, and nothing of how they are sent: as JSON to programs, whose form methods.py and
docs/ENGINE.md tell, and as they are between a served kernel and the runs that it started. Control
only: steps go through shared memory, whose descriptors come with `Attach`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsec.errors import FrameError
from dsec.ipc.frames import FRAME_BYTES_MAX
from dsec.ipc.terms import SegmentRef


class Message(msgspec.Struct, tag_field="t", forbid_unknown_fields=True, frozen=True):
    """Base of all messages."""


class Order(Message, tag="order", frozen=True):
    """What the kernel is to run.

    Attributes:
        version: of dsec.
        agent: an entry of `agents` of a configuration, complete and checked.
        lanes: agents alike.
        seed: the run's.
        autoreset: see Start.caller.
        reward: there is a reward role, whose answers the caller waits for.
        out: the run directory of a run that is recorded; empty otherwise.
        record: format of the recording.
        pool: of atoms: `name`, `size_mb`, `persist`; None: there are none.
    """

    version: str
    agent: dict[str, Any]
    lanes: int
    seed: int
    autoreset: str
    reward: bool
    out: str = ""
    record: str = "none"
    pool: dict[str, Any] | None = None


class Attach(Message, tag="attach", frozen=True):
    """A lane is wired: beside this are its segments, the caller's own to write."""

    agent: str
    spaces: bytes
    segments: tuple[SegmentRef, ...]


class Lost(Message, tag="lost", frozen=True):
    """A lane has ended by a fault: `cause` is one sentence, `report` the death in words.

    `error` is the type of the exception of user code, if it was one; `lookup`: a name that leads
    nowhere.
    """

    agent: str
    cause: str
    report: str
    error: str = ""
    message: str = ""
    lookup: bool = False


class Away(Message, tag="away", frozen=True):
    """The environments of a lane are gone, and are being replaced; `Survived` or `Lost` follows."""

    agent: str


class Holds(Message, tag="holds", frozen=True):
    """Beside it: the memory file in which a role keeps its state from now on."""

    agent: str
    role: int
    size: int


class Survived(Message, tag="survived", frozen=True):
    """A role of a lane was lost and goes on; the fields are those of `report.Failover`."""

    agent: str
    role: str
    cause: str
    seq: int
    level: str
    exact: bool
    why: str
    replayed: int
    total_ms: float


class Standing(Message, tag="agent", frozen=True):
    """An agent's state is new."""

    agent: str
    state: str


class Noted(Message, tag="log", frozen=True):
    """Something for the log; `level` is debug, info, warning or error."""

    level: str
    event: str
    fields: dict[str, Any]


class Refused(Message, tag="refused", frozen=True):
    """The kernel can't run the order, or had to end: a `kind` of error of dsec/errors.py."""

    kind: str
    message: str
    remedy: str = ""


class Ended(Message, tag="ended", frozen=True):
    """Everything has ended. `files` are those of the recording; the others say why it ended by
    itself, as Refused does, or are empty."""

    files: tuple[str, ...] = ()
    kind: str = ""
    message: str = ""
    remedy: str = ""


class Hire(Message, tag="hire", frozen=True):
    """A run for a process of its own; the fields are those of `engine.RunOptions`."""

    config: str | None
    set: tuple[str, ...]
    out: str | None
    resume: str | None


class Begun(Message, tag="begun", frozen=True):
    """The run has its directory, and its processes start."""

    run_dir: str
    agents: int
    seed: int


class Shot(Message, tag="progress", frozen=True):
    """The run at a glance: what `engine.Snapshot` has, but its agents."""

    elapsed_s: float
    states: dict[str, int]
    steps: int
    episodes: int
    deaths: int
    failovers: int
    done_share: float
    steps_per_s: float | None
    episodes_per_s: float | None
    mean_return: float | None
    eta_s: float | None


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Where one agent stands."""

    agent: str
    state: str
    steps: int
    episodes: int
    failovers: int


class Rows(Message, tag="rows", frozen=True):
    """Agents of which something is new."""

    rows: tuple[Row, ...]


class Outcome(Message, tag="outcome", frozen=True):
    """How the run ended: what `dsec-kernel run --json` prints."""

    exit_code: int
    totals: dict[str, Any]
    error: dict[str, Any] | None


AnyMessage = (
    Order
    | Attach
    | Lost
    | Away
    | Holds
    | Survived
    | Standing
    | Noted
    | Refused
    | Ended
    | Hire
    | Begun
    | Shot
    | Rows
    | Outcome
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_json: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """One datagram.

    Raises:
        FrameError: it is too large.
    """
    data = _encoder.encode(message)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameError(
            f"{type(message).__name__} of {len(data):,} bytes; at most {FRAME_BYTES_MAX:,} fit"
        )
    return data


def decode(data: bytes) -> AnyMessage:
    """A message out of a datagram.

    Raises:
        FrameError: it is none.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FrameError(f"no message of a kernel ({len(data)} bytes): {error}") from None


def encode_json(message: AnyMessage) -> bytes:
    """A message as JSON; bytes in it are base64."""
    return msgspec.json.encode(message)


def decode_json(data: bytes) -> AnyMessage:
    """A message out of JSON.

    Raises:
        FrameError: it is none.
    """
    try:
        return _json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"no message of a kernel ({len(data)} bytes): {error}") from None
