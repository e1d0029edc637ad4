"""The level `replay`: a successor does the episode again from its beginning, and compares.

What is kept is how the episode began (the state before its reset, as far as that can be held, or
the seed of the first one), and nothing while it lasts: the actions are in the policy's ring, and
what came of them is in the runner's own. Where an episode is longer than the rings are deep, the
older actions are copied out of the ring before they are given back, and of what came of them a
checksum is kept. So a step costs nothing, an episode one capture, and a recovery the steps of the
episode so far.

Only for a single environment: those of a vector begin their episodes at different steps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import xxhash

from dsec.errors import SnapshotError
from dsec.failover.codecs import BeginningCodec
from dsec.failover.keep import Keeper, Snapshot
from dsec.ipc import overflow, recall
from dsec.ipc.frames import Kept, Phase, Role
from dsec.ipc.layout import Layout
from dsec.ipc.recall import Held
from dsec.ipc.ring import Outbox, Peer
from dsec.runners.loop import Session
from dsec.runners.stage import Beginning, Stage
from dsec.runners.transitions import GRAIN_BITS, EnvGrid
from dsec.runners.wiring import Attachment, Wiring

CODEC: Final = BeginningCodec.name
LOG_BYTES_MAX: Final = 64 << 20
_REPLAY: Final = int(Phase.REPLAY)
_LENGTH: Final = struct.Struct("<I")


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The first part of a snapshot. `first` is the episode's first record, `steps` how many of its
    actions follow in the parts behind the state, `checksum` is over what came of them."""

    first: int
    seed: str
    steps: int
    checksum: int


_heads: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)


class Trail:
    """An episode from its beginning on: the actions that are no longer in the ring, and the
    checksum of what came of them. `broken` says why it can't be gone on with."""

    def __init__(self, began: Beginning) -> None:
        self.began = began
        self.broken = ""
        self.log = bytearray()
        self.steps = 0
        self.digest = xxhash.xxh3_64()

    def act(self, payload: bytes) -> None:
        """Take in an action."""
        self.log += _LENGTH.pack(len(payload)) + payload
        self.steps += 1

    def add(self, reward: Any, flags: Any, obs: Any) -> None:
        """Take in what came of a step: all that has a fixed size."""
        self.digest.update(reward.tobytes())
        self.digest.update(flags.tobytes())
        self.see(obs)

    def see(self, obs: Any) -> None:
        """Take in an observation."""
        if isinstance(obs, dict | tuple):
            for part in obs.values() if isinstance(obs, dict) else obs:
                self.see(part)
        elif hasattr(obs, "tobytes"):
            self.digest.update(obs.tobytes())

    def parts(self) -> list[bytes]:
        """All of it, as the parts of a snapshot."""
        began = self.began
        head = _Head(began.record, began.seed, self.steps, self.digest.intdigest())
        return [msgspec.msgpack.encode(head), began.state, bytes(self.log)]


class _Rings(NamedTuple):
    """Both sides of what has been published."""

    own: Outbox | Peer
    grid: EnvGrid
    policy: Peer
    actions: Layout


class EpisodeKeeping:
    """Keeps how the episode of a stage began, and its actions as far as they leave the ring.

    `serve` is due before the first `keep`.
    """

    level = "replay"
    codec = CODEC
    paced = False

    def __init__(self, session: Session, stage: Stage, notes: tuple[str, ...] = ()) -> None:
        self._session = session
        self._stage = stage
        self._keeper = Keeper(session.start.agent)
        self._trail: Trail | None = None
        self._rings: _Rings | None = None
        self._own = self._action = 0
        self.notes = notes

    def serve(self, wiring: Wiring) -> None:
        """Go on with this outbox, and what is read with it."""
        self._rings = _Rings(
            wiring.outbox,
            EnvGrid(wiring.outbox, wiring.observation_space, wiring.num_envs),
            wiring.peers[Role.POLICY],
            Layout(wiring.action_space, wiring.num_envs, "action"),
        )

    def inherit(self, trail: Trail, own: int, action: int) -> None:
        """Go on with a predecessor's episode: what comes after the trail begins at these
        positions. A ring need not hold what came before them any more."""
        self._trail, self._own, self._action = trail, own, action

    @property
    def pressing(self) -> bool:
        """An episode has begun whose beginning is not kept yet."""
        began = self._stage.began
        return began is not None and (self._trail is None or self._trail.began is not began)

    @property
    def spent_s(self) -> float:
        """Processor time that was taken for this outside of `keep`."""
        began = self._stage.began
        return began.cost_s if self.pressing and began is not None else 0.0

    def keep(
        self,
        seq: int,
        own: int,
        read: Sequence[int],
        count: int,
        interval: int,
        *,
        boundary: bool = False,
    ) -> None:
        """Keep the beginning of the episode, or the actions since the last time.

        Raises:
            SnapshotError: how this episode began is not known, or it is too long.
        """
        began, fresh = self._stage.began, self.pressing
        if began is None:
            raise SnapshotError(self._stage.unbegun)
        if fresh:
            self._trail = Trail(began)
        trail = self._trail
        assert trail is not None, "of this episode, by now"
        if trail.broken:
            raise SnapshotError(trail.broken)
        try:
            if fresh:
                self._begin(trail, seq)
            else:
                self._go_on(trail, own, read[0])
        except SnapshotError as error:
            trail.broken = str(error)
            raise
        self._own, self._action = own, read[0]
        snapshot = Snapshot(seq, own, read[0], 0, count, interval, self.codec, trail.parts())
        if self._keeper.put(snapshot):
            self._session.channel.send(Kept(self._keeper.size), (self._keeper.fd,))

    def _begin(self, trail: Trail, seq: int) -> None:
        if trail.began.record != seq:
            raise SnapshotError(f"record {seq} is not the first one of its episode")
        rings = self._rings
        assert rings is not None, "served"
        last = recall.last_record(rings.own)
        assert last is not None and last.seq == seq, "it has been published"
        trail.see(rings.grid.obs.pick(last.offset >> GRAIN_BITS))

    def _go_on(self, trail: Trail, own: int, action: int) -> None:
        rings = self._rings
        assert rings is not None, "served"
        for held in recall.records(rings.policy, self._action, action):
            trail.act(payload_of(rings.policy, held, rings.actions.nbytes))
        if len(trail.log) > LOG_BYTES_MAX:
            raise SnapshotError(
                f"an episode of more than {trail.steps:,} steps is too long to be done again"
            )
        for held in recall.records(rings.own, self._own, own):
            row = held.offset >> GRAIN_BITS
            grid = rings.grid
            trail.add(grid.reward[row], grid.flags[row], grid.obs.pick(row))

    def close(self) -> None:
        """Let go of the memory file; the kernel has a descriptor of its own."""
        self._keeper.close()


def payload_of(policy: Peer, held: Held, fixed: int) -> bytes:
    """An action as the policy published it, from wherever it lies."""
    head = bytes(policy.buffer[held.offset : held.offset + fixed])
    rest = overflow.tail(policy, held.flags, held.offset, held.nbytes, fixed)
    return head + bytes(rest)


def begin_again(stage: Stage, attachment: Attachment, snapshot: Snapshot) -> Trail:
    """Bring a stage to where a snapshot of an EpisodeKeeping was taken.

    Raises:
        SnapshotError: what comes of it is not what was published.
        Exception: whatever the environment raises.
    """
    if len(snapshot.parts) != 3:
        raise SnapshotError("what was kept is no beginning of an episode")
    try:
        head = _heads.decode(snapshot.parts[0])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SnapshotError(f"what was kept is no beginning of an episode: {error}") from None
    n, record = attachment.num_envs, stage.record
    made = record.views(bytearray(record.fixed_bytes))
    began = Beginning(head.first, bytes(snapshot.parts[1]), head.seed)
    stage.begin_again(began, made.obs)
    trail = Trail(began)
    trail.see(made.obs)
    actions = Layout(attachment.action_space, n, "action")
    room = bytearray(max(1, actions.nbytes))
    views = actions.views(room)
    for seq, payload in enumerate(_actions(memoryview(snapshot.parts[2])), head.first):
        room[: actions.nbytes] = payload[: actions.nbytes]
        if actions.variable:
            actions.unpack(views, payload[actions.nbytes :])
        stage.session.get_on()
        stage.enter(_REPLAY, seq)
        stage.step(seq, actions.read, views, made.obs, made.reward, made.flags)
        stage.forget()
        trail.act(bytes(payload))
        trail.add(made.reward, made.flags, made.obs)
    if trail.steps != head.steps or trail.digest.intdigest() != head.checksum:
        raise SnapshotError(
            f"the {trail.steps:,} steps from observation {head.first} on came out differently"
            if trail.steps
            else f"the reset before observation {head.first} came out differently"
        )
    return trail


def _actions(log: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(log):
        (length,) = _LENGTH.unpack_from(log, at)
        at += _LENGTH.size
        yield log[at : at + length]
        at += length
