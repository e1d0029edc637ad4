"""The sections of one agent, as the atoms' server finds them, and the atom that is made of a cut.

Owns the memory files in which the roles keep their states (failover/keep.py): they are read while
their writers write, so each look may find less than the one before said. What a state says is
nobody's business here; it goes into the atom as its codec made it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dsec.errors import SnapshotError
from dsec.failover import keep
from dsec.failover.codecs import ambient
from dsec.failover.keep import Head, Snapshot
from dsec.ipc.frames import Enrol, Role
from dsec.runners.cuts import NO_CODEC
from dsec.sml.atom import Atom, Faith, Manifest, RandomState, RewardWindow
from dsec.sml.atom import Snapshot as Section
from dsec.sml.cut import Cuts

_FLOAT = 8
_EVIDENCE = {
    Faith.UNKNOWN: "its attributes can be captured; nobody has compared what comes of them",
    Faith.PROVEN: "restored in a scratch process and compared, step by step",
    Faith.BY_CONTRACT: "by its own word",
    Faith.UNFAITHFUL: "no codec holds it",
}


class Cut(NamedTuple):
    """One section of each role, copied."""

    seq: int
    sections: Mapping[int, Snapshot]


class Sections:
    """One agent's.

    Args:
        enrolled: who it is.
        last: the boundary of the newest atom that there is of it already, -1 without one.
    """

    def __init__(self, enrolled: Enrol, last: int) -> None:
        self.agent = enrolled
        self.cuts: Cuts[Snapshot] = Cuts(enrolled.roles, last)
        self._fds: dict[int, int] = {}
        self._unheld: set[int] = set()

    def replace(self, role: int, fd: int) -> None:
        """A role keeps its states in this memory file from now on, which is closed here. What the
        one before held is not forgotten.

        Raises:
            SnapshotError: it is no such file.
        """
        old = self._fds.pop(role, -1)
        if old >= 0:
            try:
                for head in _boundaries(old):
                    if head.seq > self.cuts.last and (found := keep.read(old, head)) is not None:
                        self.cuts.hold(role, head.seq, found)
            finally:
                os.close(old)
        self._fds[role] = fd
        keep.heads(fd)

    def look(self) -> Cut | None:
        """The newest cut beyond the last one; None if there is none yet, or none that an agent
        could go on from."""
        heads = {
            role: {head.seq: head for head in _boundaries(fd)} for role, fd in self._fds.items()
        }
        seen = {role: found.keys() for role, found in heads.items()}

        def fetch(role: int, seq: int) -> Snapshot | None:
            found = keep.read(self._fds[role], heads[role][seq])
            return found if found is not None and found.seq == seq and found.boundary else None

        found = self.cuts.next(seen, fetch)
        if found is None:
            return None
        cut = Cut(*found)
        self._unheld = {role for role, kept in cut.sections.items() if kept.codec == NO_CODEC}
        return None if self._unheld else cut

    @property
    def missing(self) -> tuple[str, ...]:
        """The roles whose state is in no atom: they gave nothing, or no codec holds it."""
        missing = (set(self.agent.roles) - self._fds.keys()) | self._unheld
        return tuple(Role(role).name.lower() for role in sorted(missing))

    def close(self) -> None:
        """Let go of the memory files; again is no error."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def _boundaries(fd: int) -> list[Head]:
    try:
        return sorted(
            (head for head in keep.heads(fd) if head.boundary), key=lambda head: head.generation
        )
    except SnapshotError:
        return []  # it was one when it came, and it can't be resized


def make_atom(
    agent: Enrol, cut: Cut, atom_id: int, atom_uuid: uuid.UUID, chain: bytes = b""
) -> Atom:
    """The atom of a cut. `chain` is the value of the agent's hash chain there, if it is known."""
    env, policy = cut.sections.get(Role.ENV), cut.sections.get(Role.POLICY)
    reward = cut.sections.get(Role.REWARD)
    return Atom(
        Manifest(
            id=atom_id,
            uuid=atom_uuid,
            agent=agent.agent,
            agent_rank=agent.rank,
            episode=env.counted if env is not None else 0,
            rollout=policy.counted if policy is not None else 0,
            seq=cut.seq,
            chain=chain,
            parent=agent.parent,
            fork_index=agent.fork_index,
        ),
        random=_random(cut.sections.values()),
        env=_envs(env) if env is not None else (),
        observation=bytes(env.parts[-1]) if env is not None else b"",
        policy=_actor(policy) if policy is not None else None,
        rewards=_window(agent, cut.seq, reward) if reward is not None else None,
    )


def _section(kept: Snapshot, data: bytes | memoryview, index: int = 0) -> Section:
    faith = Faith(kept.faith) if kept.faith in Faith._value2member_map_ else Faith.UNKNOWN
    return Section(kept.codec, bytes(data), faith, _EVIDENCE.get(faith, ""), index)


def _envs(kept: Snapshot) -> tuple[Section, ...]:
    return tuple(_section(kept, part, index) for index, part in enumerate(kept.parts[:-2]))


def _random(sections: Iterable[Snapshot]) -> RandomState:
    """What is the processes' own: of each section the last part but for what is beside it."""
    found = [ambient.decoded(each.parts[-1 - each.beside]) for each in sections]
    return RandomState(
        tuple(generator for each in found for generator in each.generators),
        tuple(flag for each in found for flag in each.flags),
    )


def _actor(kept: Snapshot) -> Section:
    return _section(kept, kept.parts[0] if len(kept.parts) > 1 else b"")


def _window(agent: Enrol, seq: int, kept: Snapshot) -> RewardWindow:
    *state, _, rewards = kept.parts
    steps = len(rewards) // (_FLOAT * agent.num_envs)
    return RewardWindow(
        length=agent.window,
        first_seq=seq - steps,
        num_envs=agent.num_envs,
        rewards=bytes(rewards),
        state=_section(kept, state[0]) if state else None,
    )
