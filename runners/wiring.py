"""The segments of one agent, attached: my outbox, the others' outboxes, and who holds back whom.

The table below is the agent's wiring. It knows role numbers and nothing of what the records say.
Gymnasium is only imported when there are spaces to rebuild: every zygote loads this file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsec.errors import FrameError
from dsec.ipc.frames import Role, Wire
from dsec.ipc.group import GroupSegment
from dsec.ipc.ring import Outbox, Peer, Reader

if TYPE_CHECKING:
    from gymnasium import Space

READS = {
    Role.ENV: (Role.POLICY,),
    Role.POLICY: (Role.ENV, Role.REWARD),
    Role.REWARD: (Role.ENV, Role.POLICY),
}
"""Whose rings a role reads. A policy reads its reward ring only if it learns."""


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


def connect(role: Role, wire: Wire, fds: Sequence[int]) -> Wiring:
    """Map what Wire brings; the descriptors are closed.

    Raises:
        FrameError: a descriptor or my own segment is missing.
        PeerError: a segment or the spaces are not what they should be.
        MachineError: there is no memory to map them.
    """
    from dsec.ipc.layout import decode_spaces

    try:
        handed = (*wire.segments, *([wire.doorbell] if wire.doorbell else ()))
        if any(not 0 <= segment.fd < len(fds) for segment in handed):
            raise FrameError(f"Wire with {len(handed)} segments and {len(fds)} descriptors")
        observation_space, action_space = decode_spaces(wire.spaces)
        group = None
        if role is Role.ENV and wire.doorbell is not None:
            group = GroupSegment(fds[wire.doorbell.fd])
        outbox: Outbox | None = None
        peers: dict[Role, Peer] = {}
        for segment in wire.segments:
            if segment.role == role:
                outbox = Outbox(fds[segment.fd], segment.size, role, epoch=segment.epoch)
            else:
                peers[Role(segment.role)] = Peer(fds[segment.fd], segment.size, segment.role)
    finally:
        for fd in fds:
            os.close(fd)
    missing = set(READS[role]) - peers.keys()
    if outbox is None or missing:
        raise FrameError(f"Wire for {role.name} lacks segments of {missing or role}")
    if group is not None:
        outbox.join_group(group)
    return Wiring(role, outbox, peers, observation_space, action_space, wire.num_envs)
