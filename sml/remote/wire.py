"""The control plane between hosts, as values and as bytes: vocabulary, framing, proof of origin.

Sans-IO: it knows no socket and no clock. A frame is its length, a msgpack-encoded tagged struct and
a keyed digest over direction, number and bytes, so that nothing can be put in, left out or repeated
by somebody who has not the token. Nothing is encrypted: what must not be read on the way goes
through a tunnel. Unknown tags, missing fields, wrong types and frames above the limit raise
FrameError, whoever sent them; an error of this project travels by name and is raised again.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Any, Final

import msgspec

from dsec import errors
from dsec.errors import DsecError, FrameError, LocalError, MachineError, RemotePoolError

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 1 << 20
"""A configuration has to fit. Bodies never come here."""
DIGEST_BYTES: Final = 16
LENGTH: Final = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class Message(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    """Base of all."""


class Hello(Message, frozen=True, tag="hello"):
    """First of a client, in clear: nothing but the version and a number of its own."""

    version: int
    nonce: bytes


class Challenge(Message, frozen=True, tag="challenge"):
    """The server's answer: its version, and a number of its own."""

    version: int
    nonce: bytes


class Proof(Message, frozen=True, tag="proof"):
    """Whoever sends it has the token."""

    digest: bytes


class Request(Message, frozen=True, tag="request"):
    """Base of what is asked in a session."""


class Join(Request, frozen=True, tag="join"):
    """Connect for data: by this transport, with these parameters."""

    transport: str
    parameters: bytes


class Joined(Message, frozen=True, tag="joined"):
    """This side's parameters, and the lease under which everything here is held."""

    parameters: bytes
    lease_s: float


class Renew(Request, frozen=True, tag="renew"):
    """Go on holding all that this session holds; the answer has the number."""

    number: int


class Renewed(Message, frozen=True, tag="renewed"):
    """They are held."""

    number: int


class Attach(Request, frozen=True, tag="attach"):
    """Let me read a pool."""

    pool: str


class Attached(Message, frozen=True, tag="attached"):
    """The region to be read: all of the pool's segment."""

    address: int
    length: int
    key: int


class Detach(Request, frozen=True, tag="detach"):
    """I read it no more, and none of my READs is under way."""

    pool: str


class Seat(Request, frozen=True, tag="seat"):
    """Let me be the writer of a pool here: a new one with these measures, or one that is there.

    `epoch` fences: a pool that has seen a later one refuses.
    """

    pool: str
    size: int
    atoms_max: int
    persist: bool
    space: tuple[int, int]
    epoch: int = 0
    make: bool = True


class Seated(Message, frozen=True, tag="seated"):
    """You are: the writer's epoch of the pool itself."""

    epoch: int


class Slot(Request, frozen=True, tag="slot"):
    """Lease me room for a header and a body of so many bytes."""

    pool: str
    nbytes: int


class Leased(Message, frozen=True, tag="leased"):
    """Write there, then store `word` at `word_offset` of the words' region."""

    slot: int
    generation: int
    address: int
    length: int
    key: int
    words_address: int
    words_length: int
    words_key: int
    word_offset: int


class Take(Request, frozen=True, tag="take"):
    """The slot holds an atom: put it into the pool. The slot stays leased, for another one of at
    most its size, under the generation that the answer has."""

    pool: str
    slot: int


class GiveBack(Request, frozen=True, tag="give_back"):
    """I want a slot no more, and none of my WRITEs there is under way."""

    pool: str
    slot: int


class Done(Message, frozen=True, tag="done"):
    """It is done. `value` is the block of ids, where that was asked for; `generation` the next of
    a slot that stays leased."""

    value: int = 0
    generation: int = 0


class Free(Request, frozen=True, tag="free"):
    """Take an atom away."""

    pool: str
    atom_id: int


class Mark(Request, frozen=True, tag="mark"):
    """Set an atom's marks."""

    pool: str
    atom_id: int
    marks: int


class LeaseIds(Request, frozen=True, tag="lease_ids"):
    """A block of ids that nobody else gets."""

    pool: str


class Rise(Request, frozen=True, tag="rise"):
    """I write this pool no more."""

    pool: str


class Ask(Request, frozen=True, tag="ask"):
    """Something beyond pools: what, in terms of who serves."""

    what: dict[str, Any]


class Told(Message, frozen=True, tag="told"):
    """The answer to Ask."""

    what: dict[str, Any]


class Refused(Message, frozen=True, tag="refused"):
    """It is not done: the name of the error, what it says, and what to do."""

    kind: str
    message: str
    remedy: str = ""
    version: int = VERSION


class Closing(Message, frozen=True, tag="closing"):
    """Unasked, by the server: this pool goes away. Detach it."""

    pool: str


AnyMessage = (
    Hello
    | Challenge
    | Proof
    | Join
    | Joined
    | Renew
    | Renewed
    | Attach
    | Attached
    | Detach
    | Seat
    | Seated
    | Slot
    | Leased
    | Take
    | Done
    | Free
    | Mark
    | LeaseIds
    | Rise
    | GiveBack
    | Ask
    | Told
    | Refused
    | Closing
)


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message and which request it is, or answers; 0: unasked."""

    call: int
    message: AnyMessage


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """As bytes, without length and digest. Raises FrameError: too large."""
    data = _encoder.encode(envelope)
    if len(data) > FRAME_BYTES_MAX:
        kind = type(envelope.message).__name__
        raise FrameError(f"a {kind} of {len(data):,} bytes; at most {FRAME_BYTES_MAX:,} may travel")
    return data


def decode(data: bytes) -> Envelope:
    """From bytes. Raises FrameError: they are none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(f"no message of the control plane: {error}") from None


class Framer:
    """One direction of a session as bytes.

    Args:
        key: of the digests; None while nobody has proven anything: then frames have none.
        direction: that of the sender, so that nothing can be sent back as if it were an answer.
    """

    def __init__(self, direction: bytes) -> None:
        self._direction = direction
        self._key: bytes | None = None
        self._number = 0

    def secure(self, key: bytes) -> None:
        """From the next frame on with digests."""
        self._key = key
        self._number = 0

    def pack(self, envelope: Envelope) -> bytes:
        """A frame."""
        data = encode(envelope)
        return LENGTH.pack(len(data)) + data + self._digest(data)

    def length(self, head: bytes) -> int:
        """How many bytes follow the length. Raises FrameError: more than a frame may have."""
        (found,) = LENGTH.unpack(head)
        if not 0 < found <= FRAME_BYTES_MAX:
            raise FrameError(f"a frame of {found:,} bytes; at most {FRAME_BYTES_MAX:,} may come")
        return int(found) + (DIGEST_BYTES if self._key is not None else 0)

    def unpack(self, rest: bytes) -> Envelope:
        """What follows the length, as a message. Raises FrameError."""
        if self._key is None:
            return decode(rest)
        data, digest = rest[:-DIGEST_BYTES], rest[-DIGEST_BYTES:]
        if not hmac.compare_digest(self._digest(data), digest):
            raise FrameError("a frame of the control plane was changed on its way, or repeated")
        return decode(data)

    def _digest(self, data: bytes) -> bytes:
        if self._key is None:
            return b""
        number, self._number = self._number, self._number + 1
        told = self._direction + _NUMBER.pack(number) + data
        return hmac.digest(self._key, told, "sha256")[:DIGEST_BYTES]


_BY_NAME: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, DsecError)
}
_SENT: Final = (
    LocalError
    | MachineError
    | RemotePoolError
    | errors.PoolError
    | errors.PoolBusy
    | errors.AtomError
)
"""What is raised by nobody's mistake here, and so concerns the peer."""


def refusal(error: DsecError) -> Refused:
    """An error as it travels."""
    message = error.problem if isinstance(error, MachineError) else str(error)
    remedy = error.remedy if isinstance(error, MachineError) else ""
    return Refused(type(error).__name__, message, remedy)


def raised(refused: Refused) -> DsecError:
    """The error that a peer's refusal is. One that isn't known here is a RemotePoolError."""
    kind: Any = _BY_NAME.get(refused.kind, RemotePoolError)
    if not issubclass(kind, _SENT):
        kind = RemotePoolError
    told = (
        (refused.message, refused.remedy) if issubclass(kind, MachineError) else (refused.message,)
    )
    found: DsecError = kind(*told)
    return found


def session_secret(token: bytes, purpose: bytes, client: bytes, server: bytes) -> bytes:
    """32 bytes that only who has the token can tell, for one purpose of one session."""
    return hmac.digest(token, b"dsec pool " + purpose + client + server, hashlib.sha256)
