"""What a policy or reward runner does when it takes over from a dead one.

The object is constructed as its predecessor's was, and given that one's last state, if one was
kept; it then answers again what had been answered since, which is compared with what is in the ring
and not published (policy.py, reward.py). Where no state was kept it begins anew, and says so:
no episode has to end for it. Until its predecessor is fenced this file writes to no ring.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover import keep
from dsec.failover.codecs import Codec, ambient, find_object_codec, object_codec_named
from dsec.failover.codecs.actors import StateCodec
from dsec.failover.keep import Snapshot
from dsec.ipc import recall, segment
from dsec.ipc.frames import Go, Kept, Protection, Role, TakenOver, Takeover
from dsec.ipc.recall import Held
from dsec.ipc.ring import KIND_END, Outbox, Reader
from dsec.runners.construct import find_maker, make_actor
from dsec.runners.keeping import StateKeeping
from dsec.runners.loop import Session
from dsec.runners.origin import first_seq, restore_actor
from dsec.runners.wiring import Wiring
from dsec.sml.atom import Faith

STATELESS = "stateless"
"""The codec of an object that only passes on what others say."""

STATES = 2
"""Parts of a snapshot of an actor: its own state, and what is the process's."""


@dataclass(frozen=True, slots=True)
class Heritage:
    """Where an actor begins.

    Attributes:
        seq: the last record that was published, by its predecessors or before the atom that it
            goes on from; -1 before the first.
        ended: they have ended the stream.
        snapshot: the object's state is the one in it; None if it is as constructed.
        keeping: takes the next snapshots, if that is decided already.
    """

    seq: int = -1
    ended: bool = False
    snapshot: Snapshot | None = None
    keeping: StateKeeping | None = None

    @property
    def first(self) -> int:
        """The record that is answered first, be it again."""
        return self.seq + 1 if self.snapshot is None else self.snapshot.seq


def begin(session: Session, kind: str, method: str) -> tuple[Wiring, Any, Heritage, Go | None]:
    """Wait for Wire or Takeover and construct the object; with the state of the atom that the agent
    goes on from, where there is one.

    Returns:
        The wiring, the object, what it inherits, and the Go that a Takeover stands for; None for
        the first of its line, which is told later.
    """
    find_maker(session, kind)
    frame, fds = session.expect_wiring()
    if not isinstance(frame, Takeover):
        wiring = session.connect(frame, fds)
        actor = make_actor(session, wiring, kind, method)
        return wiring, actor, _at_origin(session, actor, kind, Heritage()), None
    kept = segment.duplicate(fds[frame.kept]) if 0 <= frame.kept < len(fds) else -1
    attachment = session.attach(frame, fds)

    def make() -> Any:
        return make_actor(session, attachment, kind, method)

    own = attachment.look()
    actor = make()
    began = time.perf_counter()
    actor, heritage, why = _inherit(make, actor, session, recall.last_record(own), kept)
    stateless = getattr(actor, "passthrough", False) or heritage.seq < first_seq(session)
    exact = heritage.snapshot is not None or stateless
    session.channel.send(
        TakenOver(
            exact=exact,
            level="state" if heritage.snapshot else "none",
            seq=heritage.seq,
            replayed=0 if heritage.snapshot is None else heritage.seq + 1 - heritage.first,
            restore_ms=round((time.perf_counter() - began) * 1e3, 3),
            replay_ms=0.0,
            why="" if exact else f"{why}: the {kind} begins anew",
        )
    )
    wiring, newer = session.resume(attachment, policy_learns=frame.policy_learns)
    if newer >= 0:
        if kept >= 0:
            os.close(kept)
        kept = newer
    # Until it was fenced the dead one may have published, and kept, more.
    last = recall.last_record(own)
    actor, heritage, why = _inherit(make, actor, session, last, kept, heritage)
    if exact and not stateless and heritage.snapshot is None and not heritage.ended:
        tell_inexact(session, f"{why}: the {kind} begins anew")
    own.close()
    if kept >= 0:
        os.close(kept)
    if heritage.snapshot is None and not heritage.ended:
        heritage = _at_origin(session, actor, kind, heritage)
    return wiring, actor, _possible(session, wiring, heritage), Go(frame.policy_learns)


def _at_origin(session: Session, actor: Any, kind: str, heritage: Heritage) -> Heritage:
    """Where the agent goes on from an atom, begin with the state in that, not with none."""
    if session.start.origin is None:
        return heritage
    keeping = restore_actor(session, actor, kind)
    return replace(heritage, seq=max(heritage.seq, first_seq(session) - 1), keeping=keeping)


def _possible(session: Session, wiring: Wiring, heritage: Heritage) -> Heritage:
    """Without the records since the snapshot nothing is repeated: an old state is better than
    none, and said not to be the last one."""
    snapshot = heritage.snapshot
    if snapshot is None:
        return heritage
    if next_seq(wiring.reader(Role.ENV), 0) <= snapshot.seq:
        return heritage
    tell_inexact(session, "what came after its last snapshot was not there to be repeated")
    return replace(heritage, snapshot=None)


def _inherit(
    make: Callable[[], Any],
    actor: Any,
    session: Session,
    last: Held | None,
    kept: int,
    before: Heritage | None = None,
) -> tuple[Any, Heritage, str]:
    """Give the object its predecessor's state, where there is one; but for what it has `before`.

    Returns:
        The object, what it has inherited, and why that is no state. Where restoring failed the
        object is a new one: nobody knows how far the other had come.
    """
    ended = last is not None and last.kind == KIND_END
    # The record that ends a stream bears the number of the answer that it is not.
    seq = first_seq(session) - 1 if last is None else last.seq - ended
    if ended or kept < 0:
        return actor, Heritage(seq, ended), "none of its state was kept"
    try:
        snapshot = keep.newest(kept)
    except SnapshotError as error:
        return actor, Heritage(seq), str(error)
    if snapshot is None or len(snapshot.parts) != STATES:
        return actor, Heritage(seq), "no whole state of it was kept"
    if before is not None and before.snapshot and before.snapshot.seq == snapshot.seq:
        return actor, replace(before, seq=seq), ""
    try:
        codec = object_codec_named(snapshot.codec, actor, globals_too=False)
        state, around = snapshot.parts
        codec.restore(state)
        session.ambient.restore(ambient.decoded(around))
    except SnapshotError as error:
        return make(), Heritage(seq), f"its state was not restored: {error}"
    keeping = _keeping(session, codec, ())
    return actor, Heritage(seq, snapshot=snapshot, keeping=keeping), ""


def protect(session: Session, actor: Any) -> tuple[StateKeeping | None, StateKeeping | None]:
    """How the object's state is kept for a successor, and how for an atom; None where it isn't.
    The kernel is told.

    The levels of the configuration are about environments: where there is one, an actor's state is
    kept by a codec. One that only passes on what others say has none.
    """
    start = session.start
    needed = start.failover.standby != "none"
    if getattr(actor, "passthrough", False):
        return None, StateKeeping(session, tuple, STATELESS, faith=Faith.BY_CONTRACT)
    if not (needed or start.atoms or start.caller):
        return None, None
    codec, notes = find_object_codec(actor)
    if codec is None:
        if needed:
            session.channel.send(Kept(0, Protection("none", notes=notes)))
        return None, None
    if needed:
        session.channel.send(Kept(0, Protection("state", codec.name, notes=notes)))
    codec = object_codec_named(codec.name, actor, globals_too=False)  # those are kept apart
    keeping = _keeping(session, codec, notes)
    return keeping if needed else None, keeping


def _keeping(session: Session, codec: Codec, notes: tuple[str, ...]) -> StateKeeping:
    capture = codec.capture
    # What an object tells of itself is believed; what its attributes say was only seen to be held.
    faith = Faith.BY_CONTRACT if codec.name == StateCodec.name else Faith.UNKNOWN
    return StateKeeping(session, lambda: (capture(),), codec.name, notes, faith=faith)


def tell_inexact(session: Session, why: str) -> None:
    """Say that what follows is not what it would have been, although TakenOver said so."""
    session.channel.send(Kept(0, Protection("none", differs=why)))


def pass_by(reader: Reader, seq: int) -> None:
    """Step over the records before `seq` that are published, and give them back."""
    reader.pass_by(seq)
    reader.release()


def next_seq(reader: Reader, least: int) -> int:
    """The number of the record that comes next, which may not be published yet."""
    peer, cursor = reader.peer, int(reader.c.read)
    while True:
        _, tail, _ = recall.positions(peer)
        if cursor != tail:
            return recall.record_at(peer, cursor, tail).seq
        last = recall.last_record(peer)
        # One that was published between these looks is the next, and not the last.
        if recall.positions(peer)[1] == tail:
            return least if last is None else max(least, last.seq + 1)


class Answered:
    """What the predecessors had published since the snapshot, to be compared with."""

    def __init__(self, outbox: Outbox, heritage: Heritage) -> None:
        self._outbox = outbox
        self._tail = outbox.tail
        self._at = outbox.tail if heritage.snapshot is None else heritage.snapshot.own
        self.until = heritage.seq
        self._told = False

    def differed(self, session: Session, what: str) -> None:
        """Say that an answer came out differently: the first one, for the others follow from it."""
        if not self._told:
            self._told = True
            tell_inexact(session, f"{what} came out differently when it was repeated")

    def take(self, seq: int) -> Held:
        """The published record `seq`, which must be the next.

        Raises:
            CorruptRingError: it isn't there.
        """
        held = recall.record_at(self._outbox, self._at, self._tail)
        self._at = held.end
        if held.seq != seq:
            raise recall.missing(self._outbox, seq)
        return held
