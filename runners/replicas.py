"""What the server of the atoms does for copies on other hosts: which atom goes, and when.

An atom goes when what led to it is committed, which the hash chain in the journal tells; the mark
of the chain goes before it, so that whoever goes on from the atom goes on with the chain. Atoms
that are overtaken before that are dropped. Nothing here waits; the pushing is done by a thread
(sml/remote/replicate.py).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from dsec.errors import DsecError
from dsec.ipc.frames import AnyFrame, Captured, Moved, PoolStart
from dsec.runners.follow import ChainFollower
from dsec.sml.pool import Label
from dsec.sml.pool_shm import ATOM_BYTES_TYPICAL
from dsec.sml.remote import wire
from dsec.sml.remote.address import host_port
from dsec.sml.remote.choose import choose
from dsec.sml.remote.handshake import read_token
from dsec.sml.remote.replicate import News, Replicated, Replicator

HAND_S: Final = 5.0
"""What the recorder has to commit the last transitions of an agent that is handed over."""
WAITING_MAX: Final = 32
"""Atoms of one agent that wait for their commitment."""


class Replicas:
    """The copies of one run.

    Args:
        start: of the server; it has peers.
        space: of the run's atoms.
        chains: the run's hash chains.

    Raises:
        MachineError: the token can't be read, or the backend can't be had.
    """

    def __init__(
        self,
        start: PoolStart,
        space: tuple[int, int],
        chains: ChainFollower,
    ) -> None:
        self._agents: dict[int, str] = {}
        self._chains = chains
        self._recorded = start.recorded
        self._waiting: dict[int, list[tuple[Label, bytes]]] = {}
        self._known = News()
        self._handing: dict[str, int] = {}
        size = start.size_mb << 20
        seat = wire.Seat(
            f"replica-{start.run}",
            size,
            max(64, size // ATOM_BYTES_TYPICAL),
            persist=True,
            space=space,
        )
        chosen = choose(start.backend, [*map(host_port, start.peers)])
        config = (Path(start.run_dir) / "config.yaml").read_text()
        self._replicator = Replicator(
            Replicated(
                start.run, config, seat, chosen.peers, read_token(Path(start.token_file)),
                chosen.transport,
            ),
            start.lease_s,
        )  # fmt: skip

    def enrol(self, agent: str, rank: int) -> None:
        """An agent has atoms from now on."""
        self._agents[rank] = agent

    def stored(self, label: Label, body: bytes) -> None:
        """An atom is in the pool."""
        waiting = self._waiting.setdefault(label.agent, [])
        waiting.append((label, body))
        del waiting[: max(0, len(waiting) - WAITING_MAX)]

    def look(self) -> list[AnyFrame]:
        """Offer what is committed by now; what is to be told to the kernel."""
        for rank, waiting in self._waiting.items():
            self._offer(self._agents[rank], waiting)
        for agent, rank in tuple(self._handing.items()):
            if not self._waiting.get(rank):
                self._replicator.hand(agent)
                del self._handing[agent]
        news, before = self._replicator.news(), self._known
        self._known = news
        told: list[AnyFrame] = []
        if news.lapsed and not before.lapsed:
            told.append(Moved((), news.lapsed))
        if gone := tuple(sorted(news.taken - before.taken)):
            told.append(Moved(gone, "another host has taken them over"))
        if asked := tuple(sorted(news.wanted - before.wanted - news.taken)):
            told.append(Moved(asked, "another host wants them", handing=True))
        for peer, problem in news.problems.items():
            if before.problems.get(peer) != problem:
                told.append(Captured((), f"no copies at {peer}: {problem}"))
        return told

    def settled(self, agent: str, rank: int) -> None:
        """An agent has come to its end here, and its last atom is stored."""
        if self._known.lapsed or agent in self._known.taken:
            return
        if agent in self._known.wanted:
            self._handing[agent] = rank
        else:
            self._replicator.over(agent)

    def over(self) -> None:
        """The run ends in order: its agents are not to be gone on with by themselves."""
        until = time.monotonic() + HAND_S
        while self._handing and time.monotonic() < until and not self._known.lapsed:
            self.look()
            self._replicator.pause()
        if not self._known.lapsed:
            for agent in self._agents.values():
                if agent not in self._known.wanted | self._known.taken:
                    self._replicator.over(agent)

    def close(self) -> None:
        """Push what waits, for a bounded time, and let go."""
        self._replicator.close()

    def _offer(self, agent: str, waiting: list[tuple[Label, bytes]]) -> None:
        for place in reversed(range(len(waiting))):
            label, body = waiting[place]
            if self._recorded:
                try:
                    mark = self._chains.mark(agent, label.seq)
                except DsecError:
                    return  # the recorder has its own word to say about that
                if mark is None:
                    continue
                self._replicator.marks({agent: [(label.seq, mark.pack())]})
            self._replicator.offer(label, body)
            del waiting[: place + 1]
            return
