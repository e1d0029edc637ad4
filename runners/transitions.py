"""From records in rings to the `Transitions` that user code gets.

This file owns the views of a ring's payloads and nothing that waits. It is shared by the policy
that learns and by rewards that compute, which must build the very same values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from dsec.errors import PeerError, ValueCodecError
from dsec.ipc import overflow
from dsec.ipc.frames import Role
from dsec.ipc.layout import (
    FLAG_INFRA,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    EnvRecord,
    Layout,
    RewardRecord,
)
from dsec.ipc.leaves import Slots
from dsec.ipc.ring import FLAG_REQUEST, KIND_ACTION, KIND_OBS, KIND_REWARD, Outbox, Peer, Reader
from dsec.runners.contract import Transitions

GRAIN_BITS = 6  # records start at multiples of 64 bytes
HEAD_BYTES = 32  # and their payload after a header of this size


def peers_fault(role: Role, error: Exception | str) -> PeerError:
    """The error to raise for bytes that another runner wrote: it names the ring's writer."""
    return PeerError(f"the ring of the {role.name.lower()} runner holds what it may not: {error}")


class Grid:
    """Views of every place in a ring where a payload may start, made once.

    The rows of `tree`'s arrays are the ring's grains: `offset >> GRAIN_BITS` is the row of the
    record whose payload starts at `offset`. Indexing costs a third of making a view, and keeping
    a view for each place would cost each runner a megabyte. Rows overlap; the second mapping of
    the ring gives the last ones their room.

    Attributes:
        tree: arrays (rows, n, ...) in the structure of the space.
        pick: `pick(row)` gives the tree of views (n, ...) of one record; variable leaves are empty.
        single: for n = 1, arrays (rows, ...): `layout.read(single, row)` and
            `layout.write(single, row, value)` then work on a record as on a batch.
    """

    __slots__ = ("pick", "tree")

    def __init__(self, ring: Outbox | Peer, views: Any) -> None:
        """`views` are those of the payload in the ring's first grain, at HEAD_BYTES."""
        self.tree = _strided(views, ring.capacity >> GRAIN_BITS)
        self.pick = _picker(self.tree)

    @property
    def single(self) -> Any:
        return _without_batch(self.tree)


def _strided(tree: Any, rows: int) -> Any:
    if isinstance(tree, dict):
        return {key: _strided(value, rows) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_strided(value, rows) for value in tree)
    if isinstance(tree, Slots):
        return tree
    shape, strides = (rows, *tree.shape), (1 << GRAIN_BITS, *tree.strides)
    return as_strided(tree, shape, strides, writeable=tree.flags.writeable)


def _picker(tree: Any) -> Callable[[int], Any]:
    if isinstance(tree, dict):
        by_key = [(key, _picker(value)) for key, value in tree.items()]
        return lambda row: {key: pick(row) for key, pick in by_key}
    if isinstance(tree, tuple):
        parts = [_picker(value) for value in tree]
        return lambda row: tuple(pick(row) for pick in parts)
    if isinstance(tree, Slots):
        return lambda _: Slots(tree)
    pick: Callable[[int], Any] = tree.__getitem__
    return pick


def _without_batch(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_batch(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_without_batch(value) for value in tree)
    return tree[:, 0]


class EnvGrid:
    """The env's records in its ring: `obs` a Grid, `reward` and `flags` arrays (rows, n)."""

    def __init__(self, ring: Outbox | Peer, space: Space[Any], n: int) -> None:
        self.record = EnvRecord(space, n)
        views = self.record.views(ring.buffer, HEAD_BYTES)
        self.obs = Grid(ring, views.obs)
        self.reward: NDArray[np.float64] = _strided(views.reward, ring.capacity >> GRAIN_BITS)
        self.flags: NDArray[np.uint8] = _strided(views.flags, ring.capacity >> GRAIN_BITS)


class ObsStream:
    """One agent's env ring as a reader sees it, record by record, with copies for user code.

    The caller advances the reader and releases records; this class checks headers and builds
    values.
    """

    def __init__(self, reader: Reader, peer: Peer, space: Space[Any], n: int) -> None:
        self.reader = reader
        self.grid = EnvGrid(peer, space, n)
        self._peer = peer
        self.fixed_bytes = self.grid.record.fixed_bytes
        self.copy = self.grid.record.layout.copy
        self._n = n
        self._no_flags = bytes(n)

    def check(self, seq: int) -> int:
        """Check the current record against what is due; return its row.

        Raises:
            PeerError: it is not observation `seq`.
        """
        reader = self.reader
        if reader.kind != KIND_OBS or reader.seq != seq or reader.nbytes < self.fixed_bytes:
            raise peers_fault(
                Role.ENV,
                f"seq {reader.seq}, kind {reader.kind}, {reader.nbytes} bytes, where observation"
                f" {seq} of at least {self.fixed_bytes} bytes was due",
            )
        return reader.offset >> GRAIN_BITS

    def obs(self, row: int) -> Any:
        """The observations in that row, which is the current record's; a copy.

        Raises:
            PeerError: what has no fixed size in it is malformed.
        """
        if not self.grid.record.layout.variable:
            return self.copy(self.grid.obs.pick(row))
        return self._open(row)[0]

    def _open(self, row: int) -> tuple[Any, bytes | memoryview]:
        """A copy of the observations in the current record, at `row`, and its extras."""
        grid, reader = self.grid, self.reader
        views = grid.obs.pick(row)
        try:
            tail = overflow.tail(
                self._peer, reader.flags, reader.offset, reader.nbytes, self.fixed_bytes
            )
            extras = grid.record.open_tail(views, tail)
            return self.copy(views), extras
        except PeerError as error:
            raise peers_fault(Role.ENV, error) from None

    def transition(
        self, row: int, obs: Any, action: Any, reward: NDArray[np.float64] | None
    ) -> Transitions:
        """The transition that led to the current record, at `row`.

        Args:
            obs: the observation before, a copy that the transition may keep.
            action: what was done, likewise.
            reward: what the reward runner computed; None says the environment's.

        Raises:
            PeerError: the record's extras are malformed.
        """
        grid = self.grid
        env_reward = grid.reward[row].copy()
        if self.reader.nbytes == self.fixed_bytes:
            next_obs = self.obs(row)
            infos: list[dict[str, Any]] = [{} for _ in range(self._n)]
        else:
            next_obs, extras = self._open(row)
            try:
                finals, infos = grid.record.decode_extras(extras)
            except (PeerError, ValueCodecError) as error:
                raise peers_fault(Role.ENV, error) from None
            for i, final in finals.items():
                next_obs = grid.record.layout.patched(next_obs, i, final)
        flags = grid.flags[row]
        if flags.tobytes() == self._no_flags:
            terminated, truncated, infra = (np.zeros(self._n, np.bool_) for _ in range(3))
        else:
            infra = (flags & FLAG_INFRA) != 0
            terminated = (flags & FLAG_TERMINATED) != 0
            truncated = (flags & FLAG_TRUNCATED) != 0
        return Transitions(
            seq=self.reader.seq - 1,
            obs=obs,
            action=action,
            reward=env_reward.copy() if reward is None else reward,
            env_reward=env_reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
            infos=infos,
            infra=infra,
        )


class ActionStream:
    """One agent's policy ring as a reader sees it.

    Attributes:
        read: `read(views, i)` is the action for environment i; PeerError where it is malformed.
    """

    def __init__(self, reader: Reader, peer: Peer, space: Space[Any], n: int) -> None:
        self.reader = reader
        self.layout = Layout(space, n, "action")
        self.grid = Grid(peer, self.layout.views(peer.buffer, HEAD_BYTES))
        self._peer = peer
        self.read = self._read if self.layout.variable else self.layout.read

    def _read(self, views: Any, i: int) -> Any:
        try:
            return self.layout.read(views, i)
        except PeerError as error:
            raise peers_fault(Role.POLICY, error) from None

    def check(self, seq: int) -> int:
        """Check the current record; return its row.

        Raises:
            PeerError: it is not action `seq`.
        """
        fixed = self.layout.nbytes
        longer = bool(self.layout.variable or self.reader.flags & FLAG_REQUEST)
        check_header(self.reader, Role.POLICY, KIND_ACTION, seq, fixed, longer=longer)
        return self.reader.offset >> GRAIN_BITS

    def views(self, seq: int) -> Any:
        """The tree of views of the current record, which must be action `seq`.

        Raises:
            PeerError: it isn't, or what has no fixed size in it is malformed.
        """
        views = self.grid.pick(self.check(seq))
        layout, reader = self.layout, self.reader
        if layout.variable:
            try:
                tail = overflow.tail(
                    self._peer, reader.flags, reader.offset, reader.nbytes, layout.nbytes
                )
                layout.unpack(views, tail)
            except PeerError as error:
                raise peers_fault(Role.POLICY, error) from None
        return views

    def request(self) -> bytes:
        """What the current record, a request, asks for; see requests.py."""
        reader, fixed = self.reader, self.layout.nbytes
        tail = overflow.tail(self._peer, reader.flags, reader.offset, reader.nbytes, fixed)
        return bytes(tail)

    def action(self, seq: int) -> Any:
        """Action `seq`, which must be the current record; a copy. Raises what `views` does."""
        views = self.views(seq)
        try:
            return self.layout.copy(views)
        except PeerError as error:
            raise peers_fault(Role.POLICY, error) from None


class RewardStream:
    """One agent's reward ring as a learning policy sees it."""

    def __init__(self, reader: Reader, peer: Peer, n: int) -> None:
        self.reader = reader
        self._record = RewardRecord(n)
        self.nbytes = self._record.fixed_bytes
        self._buffer = peer.buffer

    def take(self, seq: int) -> NDArray[np.float64]:
        """The rewards of the current record, a copy.

        Raises:
            PeerError: it is not reward `seq`.
        """
        check_header(self.reader, Role.REWARD, KIND_REWARD, seq, self._record.fixed_bytes)
        return self._record.views(self._buffer, self.reader.offset).copy()


def check_header(
    reader: Reader, role: Role, kind: int, seq: int, nbytes: int, *, longer: bool = False
) -> None:
    """Check the current record's header against what is due; it may be `longer`, or not.

    Raises:
        PeerError: another sequence number, kind or size; the ring's writer is named.
    """
    fits = reader.nbytes >= nbytes if longer else reader.nbytes == nbytes
    if reader.seq != seq or reader.kind != kind or not fits:
        raise peers_fault(
            role,
            f"seq {reader.seq}, kind {reader.kind}, {reader.nbytes} bytes, where seq {seq},"
            f" kind {kind}, {nbytes} bytes were due",
        )
