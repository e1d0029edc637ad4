"""One lane: an agent's rings as its policy has them, which is the caller.

Owns the mappings. What is written into them, and when it is waited for, is lanes.py's.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsec.engine import talk
from dsec.errors import LocalError
from dsec.ipc import datagrams
from dsec.ipc.frames import Role
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import Outbox, Peer, Reader


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

    def close(self) -> None:
        """Forget the mappings; again is no error."""
        self.outbox.close()
        for peer in self.peers.values():
            peer.close()
