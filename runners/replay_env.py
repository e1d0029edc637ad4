"""Doing again, in restored environments, what a dead env runner did since its snapshot.

The actions are in the policy's ring, which the dead one had not given back, and what it published
is in its own. Every step is done by the very code that does it in a run (stage.py), into memory of
this process, and compared byte for byte: rewards, ends, observations, terminal observations. Infos
are not compared; they may hold times. Both rings are only read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dsec.errors import CorruptRingError, SnapshotError, ValueCodecError
from dsec.ipc import overflow, recall
from dsec.ipc.frames import Phase, Role
from dsec.ipc.layout import FLAG_INFRA, Layout
from dsec.ipc.leaves import Slots
from dsec.ipc.recall import Held
from dsec.ipc.ring import FLAG_OVERFLOW, FLAG_REQUEST, KIND_ACTION, KIND_OBS, Peer
from dsec.ipc.segment import role_name
from dsec.runners.episode import Trail, payload_of
from dsec.runners.requests import Requests, decode
from dsec.runners.stage import Stage
from dsec.runners.transitions import GRAIN_BITS, HEAD_BYTES, EnvGrid, Grid, peers_fault
from dsec.runners.wiring import Attachment

_REPLAY = int(Phase.REPLAY)


class Replay:
    """The environments of `stage`, restored to a snapshot, on their way to what was published.

    Args:
        own: the dead one's outbox.
        seq, position: the last record before the snapshot, and where it ends.
        action: where action `seq` begins in the policy's ring.

    Attributes:
        seq: the last observation that was replayed.
        replayed: how many transitions.
        action: where the action that comes next begins, or will.
        position: where the record after that begins, or will.
        trail: of the episode, if its actions are to be kept; the next one's when that begins.
        actions: the layout of one.
    """

    def __init__(
        self, stage: Stage, attachment: Attachment, own: Peer, seq: int, position: int, action: int
    ) -> None:
        n = attachment.num_envs
        self._stage = stage
        self._own, self._policy = own, attachment.peers[Role.POLICY]
        self._published = EnvGrid(own, attachment.observation_space, n)
        record = self._published.record
        self._record = record
        self._bytes = bytearray(record.fixed_bytes)
        self._made = record.views(self._bytes)
        self._requests: Requests | None = None
        if stage.session.start.caller:
            self._requests = Requests(stage, _leave)  # `_made` has what was made last
            self._begin_with(recall.record_before(own, position))
        self.actions = Layout(attachment.action_space, n, "action")
        views = self.actions.views(self._policy.buffer, HEAD_BYTES)
        self._grid = Grid(self._policy, views)
        self.seq, self.position, self.action = seq, position, action
        self._ahead: Iterator[Held] = iter(())  # the actions that were there at the latest look
        self.replayed = 0
        self.trail: Trail | None = None
        self._payload = b""

    def advance(self) -> None:
        """Replay everything that is published by now.

        Raises:
            SnapshotError: what came of it is not what was published; says what differs.
            CorruptRingError: a ring does not hold any more what is needed.
            PeerError: a ring does not hold what it must.
            Exception: whatever an environment raised.
        """
        _, tail, _ = recall.positions(self._own)
        began = self.position, self.action
        for held in recall.records(self._own, self.position, tail):
            action = self.action
            try:
                self._repeat(held)
            except Exception:
                self._still_there(held.position, action)
                raise
            self.seq, self.position = held.seq, held.end
            self.replayed += 1
        self._still_there(*began)

    def _still_there(self, position: int, action: int) -> None:
        """Who is not fenced yet may have kept a later snapshot and gone round its ring since, or
        let the policy do so: then what came out wrong was compared with something else.

        Raises:
            CorruptRingError: it has.
        """
        for ring, at in ((self._own, position), (self._policy, action)):
            _, tail, _ = recall.positions(ring)
            if recall.distance(at, tail) > ring.capacity // 2:  # the next claim may reach so far
                raise CorruptRingError(
                    f"{role_name(ring.role)} segment: position {at} has been written over"
                )

    def _repeat(self, held: Held) -> None:
        n = self.seq
        if held.seq != n + 1 or held.kind != KIND_OBS:
            raise SnapshotError(f"record {held.seq} follows the snapshot's, where {n + 1} was due")
        row = held.offset >> GRAIN_BITS
        if self._published.flags[row, 0] & FLAG_INFRA:
            raise SnapshotError(f"the environments were lost after observation {n}")
        made, stage = self._made, self._stage
        stage.session.get_on()
        stage.enter(_REPLAY, n)
        actions, asked = self._take_action(n)
        results = made.obs, made.reward, made.flags
        if self._requests is None:
            irregular = stage.step(n, self._read, actions, *results)
        elif asked is None:
            irregular = self._requests.step(n, self._read, actions, *results)
        else:
            irregular = self._requests.answer(n, asked, *results)
        record, begin = self._record, held.offset
        # What leaves have between them is nobody's: where it differs each leaf is looked at. With
        # the view in front this would compare items, a hundred times as slowly as memory.
        if self._bytes != self._own.buffer[begin : begin + record.fixed_bytes]:
            self._compare(n, row)
        told = held.nbytes > record.fixed_bytes
        # What lay beside the ring may be overwritten by now; the fixed part has been compared.
        if (irregular or told or record.layout.variable) and not held.flags & FLAG_OVERFLOW:
            self._compare_tail(n, held)
        if irregular:
            stage.forget()
        if self.trail is not None:
            self._follow(self.trail)

    def _follow(self, trail: Trail) -> None:
        """The episode's trail now leads here, or another one's begins."""
        made, began = self._made, self._stage.began
        if began is trail.began:
            trail.act(self._payload)
            trail.add(made.reward, made.flags, made.obs)
        elif began is None:
            self.trail = None
        else:
            self.trail = Trail(began)
            self.trail.see(made.obs)

    def _compare(self, n: int, row: int) -> None:
        made, published = self._made, self._published
        for what, mine, theirs in (
            ("reward", made.reward, published.reward[row]),
            ("end", made.flags, published.flags[row]),
            ("observation", made.obs, published.obs.pick(row)),
        ):
            if not same_bytes(mine, theirs):
                raise SnapshotError(f"the {what} of transition {n} came out differently")

    def _begin_with(self, held: Held) -> None:
        """Let `_made` be the record at which the snapshot was taken."""
        record, made = self._record, self._made
        end = held.offset + record.fixed_bytes
        self._bytes[:] = self._own.buffer[held.offset : end]
        if record.layout.variable:
            fixed = record.fixed_bytes
            tail = overflow.tail(self._own, held.flags, held.offset, held.nbytes, fixed)
            record.layout.unpack(made.obs, bytes(tail))

    def _take_action(self, n: int) -> tuple[Any, dict[str, Any] | None]:
        """The views of action n, or the request in its place; and on to the next one."""
        held = next(self._ahead, None)
        if held is None:
            _, tail, _ = recall.positions(self._policy)
            self._ahead = recall.records(self._policy, self.action, tail)
            held = next(self._ahead, None) or recall.record_at(self._policy, self.action, tail)
        fixed = self.actions.nbytes
        asked = self._requests is not None and bool(held.flags & FLAG_REQUEST)
        longer = asked or bool(self.actions.variable)
        fits = held.nbytes >= fixed if longer else held.nbytes == fixed
        if held.seq != n or held.kind != KIND_ACTION or not fits:
            raise peers_fault(Role.POLICY, f"seq {held.seq} where action {n} was due")
        self.action = held.end
        if asked:
            policy = self._policy
            rest = overflow.tail(policy, held.flags, held.offset, held.nbytes, fixed)
            return None, decode(rest)
        if self.trail is not None:
            self._payload = payload_of(self._policy, held, fixed)
        views = self._grid.pick(held.offset >> GRAIN_BITS)
        if self.actions.variable:
            policy = self._policy
            tail_bytes = overflow.tail(policy, held.flags, held.offset, held.nbytes, fixed)
            self.actions.unpack(views, tail_bytes)
        return views, None

    def _read(self, views: Any, i: int) -> Any:
        return self.actions.read(views, i)

    def _compare_tail(self, n: int, held: Held) -> None:
        record, stage = self._record, self._stage
        fixed = record.fixed_bytes
        there = overflow.tail(self._own, held.flags, held.offset, held.nbytes, fixed)
        mine = record.layout.pack(self._made.obs)
        if there[: len(mine)] != mine:
            raise SnapshotError(f"the observation of transition {n} came out differently")
        with contextlib.suppress(ValueCodecError):
            if there[len(mine) :] == record.encode_extras(stage.finals, stage.infos):
                return  # even the infos are the same, as usual
        finals, _ = record.decode_extras(there[len(mine) :])
        silent: list[dict[str, Any]] = [{} for _ in stage.infos]
        if record.encode_extras(finals, silent) != record.encode_extras(stage.finals, silent):
            raise SnapshotError(f"the terminal observation of transition {n} came out differently")


def _leave(_views: Any, _i: int) -> None:
    """What was made last is there already."""


def same_bytes(mine: Any, theirs: Any) -> bool:
    """Whether two trees of views hold the same bytes; variable leaves are compared elsewhere."""
    if isinstance(mine, dict):
        return all(same_bytes(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, tuple):
        return all(same_bytes(a, b) for a, b in zip(mine, theirs, strict=True))
    if isinstance(mine, Slots):
        return True
    return bool(mine.tobytes() == theirs.tobytes())
