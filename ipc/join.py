"""The recorder's join of one agent's three rings, and the raw record stream that it hands on.

`Join` finds which transitions are complete, and gives their records as three contiguous stretches
of raw bytes, ready to be written as they are; `iter_records` takes such bytes apart again, from the
ring or from a journal. The work is done in C (join.c); this file knows no numpy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dsec.errors import CorruptRingError, LocalError
from dsec.ipc._ring import ffi, lib
from dsec.ipc.faults import fail
from dsec.ipc.overflow import DESCRIPTOR, fetch
from dsec.ipc.ring import FLAG_OVERFLOW, RECORD_HEADER_BYTES, Peer, Reader, stride
from dsec.ipc.segment import role_name

_HEAD = struct.Struct("<QQIIHHI")
_MARK = lib.DSEC_RECORD_MARK
_FINISHED_MAX = 4096


class Record(NamedTuple):
    """One record of a raw stream; `payload` is a view of it."""

    seq: int
    kind: int
    flags: int
    epoch: int
    payload: memoryview


def iter_records(view: bytes | memoryview) -> Iterator[Record]:
    """Take raw record bytes apart.

    Args:
        view: whole records, as `Batch` has them.

    Raises:
        CorruptRingError: the bytes are no sequence of whole records.
    """
    view = memoryview(view)
    at = 0
    while at < len(view):
        if len(view) - at < RECORD_HEADER_BYTES:
            raise CorruptRingError(f"{len(view) - at} bytes behind the last whole record")
        _, seq, nbytes, epoch, kind, flags, mark = _HEAD.unpack_from(view, at)
        end = at + stride(nbytes)
        if mark != _MARK or end > len(view):
            raise CorruptRingError(f"no whole record at byte {at} of {len(view)}")
        start = at + RECORD_HEADER_BYTES
        yield Record(seq, kind, flags, epoch, view[start : start + nbytes])
        at = end


def whole(raw: memoryview, peer: Peer, *, strict: bool = True) -> memoryview:
    """Raw records of a ring with their overflows put in, so that they need the ring no more.

    Args:
        strict: False lets the first record whose overflow isn't there end the stretch.

    Raises:
        CorruptRingError: an overflow isn't where its record says.
    """
    parts: list[bytes | memoryview] = []
    at = 0
    try:
        for record in iter_records(raw):
            begin, at = at, at + stride(len(record.payload))
            if not record.flags & FLAG_OVERFLOW:
                parts.append(raw[begin:at])
                continue
            rest = fetch(peer, record.payload)
            kept = record.payload[: len(record.payload) - DESCRIPTOR.size]
            position, seq, _, epoch, kind, flags, mark = _HEAD.unpack_from(raw, begin)
            nbytes = len(kept) + len(rest)
            flags &= ~FLAG_OVERFLOW
            parts += [_HEAD.pack(position, seq, nbytes, epoch, kind, flags, mark), kept, rest]
            parts.append(bytes(stride(nbytes) - RECORD_HEADER_BYTES - nbytes))
    except CorruptRingError:
        if strict:
            raise
    return memoryview(b"".join(parts))


@dataclass(frozen=True, slots=True)
class Batch:
    """Complete transitions, in order. The views are of shared memory, until `Join.release`, but
    where a record has its end beside the ring: then they are copies, with all records whole.

    Attributes:
        first_seq: sequence number of the first transition.
        count: transitions; 0 only for a stream that ended at observation 0.
        env: raw records of observations first_seq + 1 ... first_seq + count; the very first batch
            of an agent begins with observation 0.
        policy, reward: raw records first_seq ... first_seq + count - 1.
        steps: environment transitions, count * num_envs, less those that say that the environment
            was lost (FLAG_INFRA), or nothing was asked of it (FLAG_ASIDE): it made no such step.
        episodes: episodes that ended in this batch; not those that were lost.
        return_sum: sum of their returns, as the reward role computed them.
        returns: their returns, in order of sequence number, then of environment.
        env_return_sum: the same sum of the environment's own rewards.
    """

    first_seq: int
    count: int
    env: memoryview
    policy: memoryview
    reward: memoryview
    steps: int
    episodes: int
    return_sum: float
    returns: tuple[float, ...]
    env_return_sum: float


class Join:
    """What is complete of one agent. Owns the three readers' positions: don't call their `next`.

    Args:
        env, policy, reward: readers of the agent's three rings.
        num_envs: environments in each record.
        reward_off_env: offset of the environment's own float64[num_envs] in an env record.
        flags_off_env: offset of the uint8[num_envs] flags in an env record; any bit is an end,
            FLAG_INFRA one that counts for nothing.
        reward_off: offset of float64[num_envs] in a reward record.
        first_seq: the first transition wanted. A recorder that was restarted gives the one after
            the last in its journal; what lies before it in the rings is dropped.
        begins: the observation before that one is wanted, too: nothing has been taken yet.

    Raises:
        LocalError: num_envs is out of range.
    """

    __slots__ = ("_arrays", "_readers", "c", "num_envs")

    def __init__(
        self,
        env: Reader,
        policy: Reader,
        reward: Reader,
        *,
        num_envs: int,
        reward_off_env: int,
        flags_off_env: int,
        reward_off: int = 0,
        first_seq: int = 0,
        begins: bool | None = None,
    ) -> None:
        if num_envs < 1 or min(reward_off_env, flags_off_env, reward_off, first_seq) < 0:
            raise LocalError("a join takes at least one environment and no negative offset")
        self.num_envs = num_envs
        self._readers = (env, policy, reward)
        finished_max = max(_FINISHED_MAX, num_envs)
        self._arrays = tuple(ffi.new("double[]", n) for n in (num_envs, num_envs, finished_max))
        c = self.c = ffi.new("dsec_join *")
        c.reader = [reader.c for reader in self._readers]
        c.num_envs, c.finished_max = num_envs, finished_max
        c.running, c.env_running, c.finished = self._arrays
        c.env_reward_off, c.env_flags_off, c.reward_off = reward_off_env, flags_off_env, reward_off
        c.next = first_seq
        taken = first_seq > 0 if begins is None else not begins
        c.has_first = taken
        c.resumed = [int(taken)] * 3

    def take(self, max_bytes: int) -> Batch | None:
        """Return the next complete transitions, or None if there are none.

        At least one transition is taken if there is one, however small `max_bytes` is. The batch
        stays taken until `release`; written or not, nothing is given back before.

        Raises:
            CorruptRingError: a record is malformed, of the wrong kind, too short, or out of
                sequence; names the ring.
            LocalError: the batch before was not released, or a handle is closed.
        """
        c = self.c
        code = lib.dsec_join_take(c, max_bytes)
        if code == lib.DSEC_EMPTY:
            return None
        if code:
            self._fail(code)
        env, policy, reward = self._spans()
        if c.flags & FLAG_OVERFLOW:
            env = whole(env, self._readers[0].peer)
            policy = whole(policy, self._readers[1].peer)
        episodes = int(c.episodes)
        return Batch(
            first_seq=int(c.first),
            count=int(c.count),
            env=env,
            policy=policy,
            reward=reward,
            steps=int(c.count) * self.num_envs - int(c.lost),
            episodes=episodes,
            return_sum=float(c.return_sum),
            returns=tuple(c.finished[0:episodes]) if episodes else (),
            env_return_sum=float(c.env_return_sum),
        )

    def release(self) -> None:
        """The batch is written: advance the three cursors."""
        code = lib.dsec_join_release(self.c)
        if code:
            self._fail(code)

    @property
    def next_seq(self) -> int:
        """The transition that comes next: all before it were taken."""
        return int(self.c.next)

    @property
    def ended(self) -> bool:
        """All is taken and all three ends were seen: nothing more will come."""
        return bool(self.c.seen_end == 7 and not self.c.taken)

    def remainder(self) -> tuple[memoryview, memoryview, memoryview]:
        """Return what is published and whole but was not taken, as raw records of each ring.

        For an agent whose writers are fenced: first `take` until None, then look here. A malformed
        record ends that ring's stretch.
        """
        code = lib.dsec_join_remainder(self.c)
        if code:
            self._fail(code)
        env, policy, reward = self._spans()
        # Few agents have a remainder, and none has much.
        env = whole(env, self._readers[0].peer, strict=False)
        return env, whole(policy, self._readers[1].peer, strict=False), reward

    def _spans(self) -> tuple[memoryview, memoryview, memoryview]:
        c = self.c
        views = []
        for ring, reader in enumerate(self._readers):
            start = c.begin[ring] & (reader.peer.capacity - 1)
            length = (c.end[ring] - c.begin[ring]) & 0xFFFF_FFFF_FFFF_FFFF
            views.append(reader.peer.buffer[start : start + length])
        return views[0], views[1], views[2]

    def _fail(self, code: int) -> None:
        reader = self._readers[self.c.bad_ring]
        fail(code, reader.c.fault, f"the join of the {role_name(reader.peer.role)} ring")
