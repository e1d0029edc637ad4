"""One lane: an agent's rings as its policy has them, which is the caller.

Owns the mappings. What is written into them, and when it is waited for, is lanes.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsec.engine import talk
from dsec.errors import LocalError
from dsec.ipc import datagrams
from dsec.ipc.frames import Role
from dsec.ipc.layout import FLAG_ASIDE, FLAG_INFRA, RewardRecord
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import Outbox, Peer, Reader

_NO_TRANSITION = FLAG_ASIDE | FLAG_INFRA
"""Flags of a row that is a reset in the place of a step, or the end of a lost episode: the
reward role is asked for the whole batch, and what it says of these counts for nothing."""


class Lane:
    """One agent's rings, the caller its policy."""

    def __init__(self, attach: talk.Attach, fds: Sequence[int]) -> None:
        self.name = attach.agent
        self.peers: dict[int, Peer] = {}
        outbox: Outbox | None = None
        try:
            for ref in attach.segments:
                if ref.role == Role.POLICY:
                    outbox = Outbox(fds[ref.fd], ref.size, ref.role, epoch=ref.epoch)
                else:
                    self.peers[ref.role] = Peer(fds[ref.fd], ref.size, ref.role)
        finally:
            datagrams.close_fds(fds)
        if outbox is None or Role.ENV not in self.peers:
            raise LocalError(f"{attach.agent} came without its rings")
        self.outbox = outbox
        for role in (Role.ENV, Role.REWARD, Role.RECORDER):
            if role in self.peers:
                outbox.add_reader(self.peers[role])
        self.reader = Reader(outbox, self.peers[Role.ENV])
        self.spill = Spill(outbox)
        self.rewards: Reader | None = None
        self.seq = 0

    def take_rewards(self, seq: int, timeout_s: float, rewards: Any, flags: Any) -> None:
        """Have what the reward role said of record `seq`, and nothing older, in `rewards`.

        Args:
            rewards, flags: of this lane's environments, float64 and uint8 (n,).

        Raises:
            RingTimeout: it has not said so yet. RingInterrupted: a signal came. Call it again.
        """
        reader = self.rewards
        assert reader is not None, "opened when they were arranged"
        record = RewardRecord(len(rewards))
        while self.seq <= seq:
            reader.next(timeout_s)
            self.seq = reader.seq + 1
            rewards[...] = record.views(reader.peer.buffer, reader.offset)
            rewards[flags & _NO_TRANSITION != 0] = 0.0
            reader.release()

    def close(self) -> None:
        """Forget the mappings; again is no error."""
        self.outbox.close()
        for peer in self.peers.values():
            peer.close()
