"""The source's side of replication: each committed atom to the peers of a run, as it is put.

Owns a thread with a loop and one line to each peer, which connects, registers the run, becomes the
writer of its replica there, and pushes. Of each agent the newest atom that waits goes; one that is
overtaken by a newer one before it could go is dropped. Nobody who offers an atom waits.

The first peer is the heir. As long as it grants the lease this host may run the run's agents; when
that has lapsed by the own clock, or somebody has taken an agent over, `news` says so, and whoever
asks stops them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsec.errors import (
    AtomExists,
    DsecError,
    FencedOut,
    PeerGone,
    RemotePoolError,
    SizesDiffer,
    WrongToken,
)
from dsec.sml.pool import Label
from dsec.sml.remote import wire
from dsec.sml.remote.courier import Courier
from dsec.sml.remote.peer import Peer, RemoteSeat
from dsec.sml.remote.tenure import Tenure
from dsec.sml.remote.transport import Transport

RETRY_S: Final = 0.2
IDLE_S: Final = 0.5
DRAIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Replicated:
    """What is replicated.

    Attributes:
        run: its own name.
        config: of it, as text.
        seat: the replica's measures.
        peers: host and port of each; the heir first.
        transport: makes one in the loop where it is to live.
    """

    run: str
    config: str
    seat: wire.Seat
    peers: Sequence[tuple[str, int]]
    token: bytes
    transport: Callable[[], Awaitable[Transport]]


@dataclass(slots=True)
class News:
    """What whoever runs the agents has to know.

    Attributes:
        taken: agents that go on elsewhere.
        wanted: agents that somebody wants to have.
        lapsed: why none may be run here any more; empty while they may.
        problems: what keeps a peer from having copies, by peer; those that are mended are gone.
        over: agents that have nothing left to do.
        pushed: atoms that have arrived, of all peers together.
    """

    taken: set[str] = field(default_factory=set)
    wanted: set[str] = field(default_factory=set)
    lapsed: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    pushed: int = 0


class _Line:
    """To one peer. All in the courier's loop."""

    def __init__(self, what: Replicated, number: int, news: News, lock: threading.Lock) -> None:
        self._what = what
        self._host, self._port = what.peers[number]
        self._heir = number == 0
        self._news = news
        self._lock = lock
        self._atoms: dict[int, tuple[Label, bytes]] = {}
        self._asks: list[dict[str, Any]] = []
        self._more = asyncio.Event()
        self._tenure: Tenure | None = None
        self._began = time.monotonic()

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def idle(self) -> bool:
        return not self._atoms and not self._asks

    def offer(self, label: Label, body: bytes) -> None:
        self._atoms[label.agent] = label, body
        self._more.set()

    def ask(self, what: dict[str, Any]) -> None:
        self._asks.append({"run": self._what.run, **what})
        self._more.set()

    def lapsed(self, now: float, lease_s: float) -> str:
        """Why nothing may be run here, if this is the heir's line."""
        if not self._heir:
            return ""
        tenure = self._tenure
        since = self._began + lease_s / 2
        if (tenure is None and now < since) or (tenure is not None and tenure.valid(now)):
            return ""
        limit = (tenure.lease_s if tenure is not None else lease_s) / 2
        said = self._news.problems.get(self.name, "no answer")
        return f"no contact with {self.name} for {limit:g} s ({said}), which may take over"

    async def run(self) -> None:
        """Connect, serve, connect again, until it is cancelled or fenced."""
        while True:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    await self._session(stack)
            except FencedOut as error:
                with self._lock:
                    self._news.lapsed = str(error)
                return
            except DsecError as error:
                with self._lock:
                    self._news.problems[self.name] = f"{type(error).__name__}: {error}"
                slow = isinstance(error, WrongToken | SizesDiffer) or not isinstance(
                    error, RemotePoolError
                )
                await asyncio.sleep(RETRY_S * (10 if slow else 1))

    async def _session(self, stack: contextlib.AsyncExitStack) -> None:
        what = self._what
        transport = await what.transport()
        stack.push_async_callback(transport.close)
        peer = await Peer.connect(self._host, self._port, what.token, transport)
        stack.push_async_callback(peer.close)
        sent = time.monotonic()
        entered = await self._asked(
            peer,
            {"do": "ward", "run": what.run, "config": what.config,
             "heir": self._heir, "over": sorted(self._news.over)},
        )  # fmt: skip
        self._learn(entered)
        if self._tenure is None:
            self._tenure = Tenure(float(entered["lease_s"]), f"run {what.run} from {self.name}")
        self._tenure.granted(self._tenure.ask(sent))
        seat = await RemoteSeat.take(peer, what.seat)
        with self._lock:
            self._news.problems.pop(self.name, None)
        while True:
            await self._push(peer, seat)
            now = time.monotonic()
            if self._tenure.due(now):
                number = self._tenure.ask(now)
                held = {"do": "hold", "run": what.run, "number": number}
                answer = await self._asked(peer, held)
                self._tenure.granted(int(answer["number"]))
                self._learn(answer)
            wait_s = min(IDLE_S, max(0.0, self._tenure.next_s - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._more.wait()
            peer.check()

    async def _push(self, peer: Peer, seat: RemoteSeat) -> None:
        self._more.clear()
        while self._asks or self._atoms:
            if self._asks:
                ask = self._asks[0]
                if ask["do"] == "hand" and self._atoms:
                    await self._put(seat)
                    continue
                await self._asked(peer, ask)
                self._asks.pop(0)
            else:
                await self._put(seat)

    async def _put(self, seat: RemoteSeat) -> None:
        rank, (label, body) = next(iter(self._atoms.items()))
        with contextlib.suppress(AtomExists):
            await seat.put(label, body)
        if self._atoms.get(rank, (None,))[0] is label:
            del self._atoms[rank]
        with self._lock:
            self._news.pushed += 1

    async def _asked(self, peer: Peer, what: dict[str, Any]) -> dict[str, Any]:
        return (await peer.ask(wire.Ask(what), wire.Told)).what

    def _learn(self, said: dict[str, Any]) -> None:
        with self._lock:
            self._news.taken |= set(said["taken"])
            self._news.wanted |= set(said.get("wanted", ()))


class Replicator:
    """Replicates one run until it is closed.

    Args:
        lease_s: by which the first contact has to be made; then it is the heir's.
    """

    def __init__(self, what: Replicated, lease_s: float) -> None:
        self._news = News()
        self._lock = threading.Lock()
        self._lease_s = lease_s
        self._courier = Courier("replication")
        self._lines: list[_Line] = []
        self._courier.call(self._begin(what))

    async def _begin(self, what: Replicated) -> None:
        self._lines = [_Line(what, n, self._news, self._lock) for n in range(len(what.peers))]
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(line.run()) for line in self._lines]

    def offer(self, label: Label, body: bytes) -> None:
        """An atom that is committed."""
        self._tell(lambda line: line.offer(label, body))

    def marks(self, marks: dict[str, list[tuple[int, bytes]]]) -> None:
        """The hash chain of agents at boundaries that are committed."""
        self._tell(lambda line: line.ask({"do": "marks", "marks": marks}))

    def over(self, agent: str) -> None:
        """An agent has nothing left to do here or anywhere, or is not to go on by itself."""
        with self._lock:
            self._news.over.add(agent)
        self._tell(lambda line: line.ask({"do": "over", "agents": [agent]}))

    def hand(self, agent: str) -> None:
        """An agent was stopped, and its last atom offered, for who wanted it."""
        self._tell(lambda line: line.ask({"do": "hand", "agent": agent}))

    def news(self) -> News:
        """What there is; a copy."""
        now = time.monotonic()
        with self._lock:
            known = self._news
            lapsed = known.lapsed
            for line in self._lines:
                lapsed = lapsed or line.lapsed(now, self._lease_s)
            return News(
                set(known.taken), set(known.wanted), lapsed, dict(known.problems),
                set(known.over), known.pushed,
            )  # fmt: skip

    def pause(self) -> None:
        """Let some time pass: a hundredth of a second."""
        self._courier.call(asyncio.sleep(0.01))

    def close(self) -> None:
        """Push what waits, for a bounded time, and let go. Idempotent."""
        with contextlib.suppress(DsecError):
            self._courier.call(self._drain())
        self._courier.close()

    async def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        while time.monotonic() < until and not all(line.idle for line in self._lines):
            if all(task.done() for task in self._tasks):
                break
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tell(self, what: Callable[[_Line], None]) -> None:
        async def tell() -> None:
            for line in self._lines:
                what(line)

        with contextlib.suppress(PeerGone):
            self._courier.start(tell())
