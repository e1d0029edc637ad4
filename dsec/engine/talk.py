"""What a program and the kernel that it started for itself say to each other.

Owns the messages, and nothing of how they are sent. The first one is the program's `Order`; all
others but `Leave` are the kernel's. Control only: steps go through shared memory, whose
descriptors come with `Attach`. Both sides are of one installation (dsec/origin.py sees to that
for runners, `Order.version` here), so nothing in here is ever two versions old.
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


class Leave(Message, tag="leave", frozen=True):
    """Kill what is still there, and end."""


class Up(Message, tag="up", frozen=True):
    """The kernel lives. `guardian` is the process that is gone last; `folder` is removed by it."""

    guardian: int
    supervisor: int
    folder: str


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


class Refused(Message, tag="refused", frozen=True):
    """The kernel can't run the order, or had to end: a `kind` of error of dsec/errors.py."""

    kind: str
    message: str
    remedy: str = ""


class Ended(Message, tag="ended", frozen=True):
    """Everything has ended. `files` are those of the recording."""

    files: tuple[str, ...] = ()


AnyMessage = Order | Leave | Up | Attach | Lost | Away | Holds | Survived | Refused | Ended

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


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
