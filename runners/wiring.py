"""The segments of one agent, attached: my outbox, the others' outboxes, and who holds back whom.

The table below is the agent's wiring. It knows role numbers and nothing of what the records say.
Gymnasium is only imported when there are spaces to rebuild: every zygote loads this file.

Who takes over from a dead runner attaches first, which writes nothing, and opens its outbox when
its predecessor is fenced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from dsec.errors import FrameError
from dsec.ipc.frames import Role, SegmentRef, Wire
from dsec.ipc.ring import Outbox, Peer, Reader

if TYPE_CHECKING:
    from gymnasium import Space

READS = {
    Role.ENV: (Role.POLICY,),
    Role.POLICY: (Role.ENV, Role.REWARD),
    Role.REWARD: (Role.ENV, Role.POLICY),
}
"""Whose rings a role reads. A policy reads its reward ring only if it learns."""


KnownSpaces: TypeAlias = "tuple[bytes, Space[Any], Space[Any]]"
"""A description, and the observation and the action space that it describes."""


@dataclass(slots=True)
class Wiring:
    """What a runner of `role` holds of its agent.

    Attributes:
        outbox: mine.
        peers: everybody else's, by role; the recorder's is missing in a run without one.
        observation_space, action_space: those of a single environment.
    """

    role: Role
    outbox: Outbox
    peers: dict[Role, Peer]
    observation_space: Space[Any]
    action_space: Space[Any]
    num_envs: int

    def reader(self, role: Role) -> Reader:
        """Start reading that role's ring, where my cursor on it is."""
        return Reader(self.outbox, self.peers[role])

    def follow(self, *, policy_learns: bool) -> None:
        """Let everybody who reads my ring hold me back and be woken by me."""
        for role, peer in self.peers.items():
            reads = READS.get(role, tuple(Role))
            if self.role in reads and (
                policy_learns or (role, self.role) != (Role.POLICY, Role.REWARD)
            ):
                self.outbox.add_reader(peer)

    def close(self) -> None:
        """Unmap everything; a second time does nothing."""
        self.outbox.close()
        for peer in self.peers.values():
            peer.close()


class Attachment:
    """What Wire brings, mapped but for my own outbox; its descriptor is kept, the others closed.

    Args:
        known: spaces that were decoded before, and the bytes that they were decoded from.

    Attributes:
        peers: everybody else's outboxes, by role.
        observation_space, action_space: those of a single environment.

    Raises:
        FrameError: a descriptor or my own segment is missing.
        PeerError: a segment or the spaces are not what they should be.
        MachineError: there is no memory to map them.
    """

    def __init__(
        self, role: Role, wire: Wire, fds: Sequence[int], known: KnownSpaces | None = None
    ) -> None:
        from dsec.ipc.layout import decode_spaces

        self.role = role
        self.num_envs = wire.num_envs
        self.peers: dict[Role, Peer] = {}
        self._own: SegmentRef | None = None
        self._fd = -1
        try:
            handed = wire.segments
            if any(not 0 <= segment.fd < len(fds) for segment in handed):
                raise FrameError(f"Wire with {len(handed)} segments and {len(fds)} descriptors")
            if known is None or known[0] != wire.spaces:
                known = (wire.spaces, *decode_spaces(wire.spaces))
            _, self.observation_space, self.action_space = known
            for segment in wire.segments:
                if segment.role == role:
                    self._own, self._fd = segment, os.dup(fds[segment.fd])
                else:
                    peer = Peer(fds[segment.fd], segment.size, segment.role)
                    self.peers[Role(segment.role)] = peer
            missing = set(READS[role]) - self.peers.keys()
            if self._own is None or missing:
                raise FrameError(f"Wire for {role.name} lacks segments of {missing or role}")
        except BaseException:
            self.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    @property
    def own(self) -> SegmentRef:
        assert self._own is not None, "checked when it was attached"
        return self._own

    def look(self) -> Peer:
        """My own outbox, to be read only: somebody else may be writing it yet."""
        return Peer(self._fd, self.own.size, self.role)

    def open(self) -> Wiring:
        """Make the outbox mine, from its tail on.

        Raises:
            CorruptRingError, MachineError: as for Outbox.
        """
        try:
            outbox = Outbox(self._fd, self.own.size, self.role, epoch=self.own.epoch)
        finally:
            os.close(self._fd)
            self._fd = -1
        return Wiring(
            self.role,
            outbox,
            self.peers,
            self.observation_space,
            self.action_space,
            self.num_envs,
        )

    def close(self) -> None:
        """Let go of all that was not opened."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for peer in self.peers.values():
            peer.close()


def connect(role: Role, wire: Wire, fds: Sequence[int]) -> Wiring:
    """Map what Wire brings; the descriptors are closed. Raises what Attachment does."""
    return Attachment(role, wire, fds).open()
