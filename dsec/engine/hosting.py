"""One sandbox in the kernel that is served: environments whose policy is the program that asks.

Owns its life. Each has a supervisor of its own on the one loop, with its own zygotes, lifeline and
folder, so what happens in one is nothing to the others: neither its end nor a fault of its kernel.
Steps don't pass through here. The descriptors of its rings wait here until the program fetches them
(handover.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsec import rundir
from dsec.config import Agent
from dsec.engine import isolating, talk, telling
from dsec.engine.handover import Parcels
from dsec.engine.hosted import hosted_spec
from dsec.engine.methods import AgentRow
from dsec.engine.rpc import Code, Problem
from dsec.errors import DsecError, MachineError, PoolOwned
from dsec.hooks import Hooks
from dsec.ipc import datagrams, segment
from dsec.ipc.frames import Role
from dsec.ipc.segment import Segment
from dsec.report import AgentReport, Death, Failover, RunReport
from dsec.sml.orphans import discard

if TYPE_CHECKING:
    from dsec.kernel.supervisor import Supervisor

Tell = Callable[[talk.AnyMessage, str], None]
PARCELS_MAX = 64  # descriptors that were told of, and that nobody has fetched yet


class Sandbox:
    """One sandbox, from the order to the end of its last process.

    Args:
        tell: called with all that concerns the program, from the loop, and with the ticket of the
            descriptors beside it; empty where there are none.
        place: a folder that doesn't exist yet; it is gone with the sandbox.
        open_files: the limit on descriptors that runners get.

    Attributes:
        ticket: what the hand-over socket wants to hear.
        files: of the recording, once all has ended.
    """

    def __init__(
        self, name: str, order: talk.Order, agent: Agent, place: Path, open_files: int, tell: Tell
    ) -> None:
        self.name, self.ticket = name, secrets.token_hex(16)
        self.files: tuple[str, ...] = ()
        self._order, self._agent, self._place = order, agent, place
        self._open_files, self._tell = open_files, tell
        self._rings: list[tuple[talk.Attach, list[int]]] = []
        self._parcels: dict[str, tuple[talk.AnyMessage, list[int]]] = {}
        self._supervisor: Supervisor | None = None
        self._running: set[str] = set()
        self._there = asyncio.Event()  # all its agents run, or never will
        self._refused: talk.Refused | None = None
        self._lost: talk.Lost | None = None
        self._kill = False
        self._task = asyncio.ensure_future(self._run())

    @property
    def ended(self) -> bool:
        """Nothing of it is left."""
        return self._task.done()

    async def opened(self) -> tuple[str, ...]:
        """Wait until all environments are there; the names of its agents.

        Raises:
            Problem: they won't be.
        """
        await self._there.wait()
        if len(self._running) == self._order.lanes:
            return tuple(sorted(attach.agent for attach, _ in self._rings))
        if self._refused is not None:
            kinds = {"machine": Code.MACHINE, "config": Code.CONFIG, "internal": Code.INTERNAL}
            code = kinds.get(self._refused.kind, Code.FAILED)
            raise Problem(code, self._refused.message, self.name, self._refused.remedy)
        if self._lost is not None:
            raise Problem(Code.FAILED, self._lost.cause, self._lost.agent, report=self._lost.report)
        raise Problem(Code.ENDED, "it was closed before all its environments were there", self.name)

    def claim(self, ticket: str) -> Parcels:
        """What a ticket is for, with descriptors that are the caller's from now on: the rings, or
        what an event told of. Nothing the second time, or for another one's ticket."""
        if ticket in self._parcels:
            return [self._parcels.pop(ticket)]
        if ticket != self.ticket:
            return []
        rings, self._rings = self._rings, []
        return list(rings)

    def agents(self) -> list[AgentRow]:
        """Where its agents stand."""
        return [
            AgentRow(
                agent=each.name,
                state=each.state,
                steps=each.steps,
                episodes=each.episodes,
                failovers=each.failovers,
                sandbox=self.name,
            )
            for each in (self._supervisor.report.agents.values() if self._supervisor else ())
        ]

    def kill(self) -> None:
        """End it at once."""
        self._kill = True
        if self._supervisor is not None and not self.ended:
            self._supervisor.request_kill()

    def drain(self, reason: str) -> None:
        """End it at the next boundary of each agent."""
        if self._supervisor is not None and not self.ended:
            self._supervisor.request_drain(reason)
        else:
            self.kill()

    async def gone(self, grace_s: float | None) -> None:
        """See it gone: by itself within `grace_s` (None: however long it takes), else killed."""
        await asyncio.wait([self._task], timeout=grace_s)
        self.kill()
        await asyncio.wait([self._task])

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        refused: talk.Refused | None = None
        try:
            refused = await self._supervise()
        except MachineError as error:
            refused = talk.Refused("machine", error.problem, error.remedy)
        except DsecError as error:
            refused = talk.Refused("internal", f"{type(error).__name__}: {error}")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            refused = talk.Refused("internal", f"{type(error).__name__}: {error}")
        self._refused = refused
        for _, fds in (*self._parcels.values(), *self._rings):
            datagrams.close_fds(fds)
        self._parcels.clear()
        self._rings.clear()
        shutil.rmtree(self._place, ignore_errors=True)
        self._there.set()
        why = (refused.kind, refused.message, refused.remedy) if refused is not None else ()
        self._tell(talk.Ended(self.files, *why), "")

    async def _supervise(self) -> talk.Refused | None:
        from dsec.engine.guardian import orphaned
        from dsec.engine.servers import servers
        from dsec.kernel.supervisor import Supervisor

        order, claimed = self._order, None
        self._place.mkdir(mode=0o700)
        try:
            if order.out:
                claimed = rundir.claim(Path(order.out), self._agent.name)
            place = str(claimed.path if claimed is not None else self._place)
            spec = hosted_spec(order, self._agent, run_dir=place, open_files=self._open_files)
            spec, unenforced = isolating.settle(spec)
            for each in isolating.lines(unenforced):
                self.said(talk.Noted("warning", "isolation not enforced", {"what": each}))
            supervisor = Supervisor(
                spec, _Hooks(self), shared_process=True, orphaned=orphaned, servers=servers
            )
            self._supervisor = supervisor
            if self._kill:
                supervisor.request_kill()
            report = await supervisor.run()
            self.files = report.files
            error = report.failure_error
            no_pool = error is not None and error.where.startswith("pool")
            if report.failure and (no_pool or report.failure_kind != "config"):
                return talk.Refused(report.failure_kind, report.failure)
            return None
        finally:
            if claimed is not None:
                claimed.close()
            pool = order.pool
            if pool is not None and not pool["persist"]:
                with contextlib.suppress(PoolOwned):  # by somebody else, which was said
                    discard(pool["name"])  # its server may have been killed before it could do so

    def wired(self, attach: talk.Attach, fds: list[int]) -> None:
        """The rings of an agent are there."""
        self._rings.append((attach, fds))

    def runs(self, agent: str) -> None:
        """An agent has started."""
        self._running.add(agent)
        if len(self._running) == self._order.lanes:
            self._there.set()

    def said(self, message: talk.AnyMessage, fds: Sequence[int] = ()) -> None:
        """Pass on what concerns the program; `fds` wait for it to fetch them."""
        ticket = ""
        if fds:
            ticket = secrets.token_hex(16)
            self._parcels[ticket] = message, list(fds)
            if len(self._parcels) > PARCELS_MAX:
                datagrams.close_fds(self._parcels.pop(next(iter(self._parcels)))[1])
        self._tell(message, ticket)
        if isinstance(message, talk.Lost):
            self._lost = self._lost or message
            self._there.set()


class _Hooks(Hooks):
    """What the kernel tells of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._reads_rewards = sandbox._order.reward

    def agent(self, report: AgentReport) -> None:
        self._sandbox.said(talk.Standing(report.name, report.state))
        if report.state == "running":
            self._sandbox.runs(report.name)

    def progress(self, report: RunReport) -> None:
        return None

    def disk(self, state: str, message: str) -> None:
        self._sandbox.said(talk.Noted("warning", f"disk: {state}", {"reason": message}))

    def note(self, event: str, **fields: Any) -> None:
        self._sandbox.said(talk.Noted("info", event, fields))

    def wired(self, agent: str, segments: Mapping[Role, Segment], spaces: bytes) -> bool:
        refs, fds = segment.hand_out(segments.values(), Role.POLICY, 0)
        self._sandbox.wired(talk.Attach(agent, spaces, refs), fds)
        return self._reads_rewards

    def death(self, death: Death) -> None:
        self._sandbox.said(telling.lost(death))

    def away(self, agent: str, role: Role) -> None:
        if role is Role.ENV:
            self._sandbox.said(talk.Away(agent))

    def kept(self, agent: str, role: Role, kept: Segment) -> None:
        if role is Role.REWARD:  # the environments tell their state themselves
            fds = [segment.readonly(kept.fd)]
            self._sandbox.said(talk.Holds(agent, int(role), kept.size), fds)

    def failover(self, failover: Failover) -> None:
        self._sandbox.said(telling.survived(failover))
