"""The server of the atoms as the kernel sees it: nobody waits for it but the end of an agent.

What it says makes the report's figures of atoms. Its death stops nothing: it is started again, and
gets what the roles keep; where it can't be kept alive the run goes on without atoms, says so, and
ends with an exit code that is not 0.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dsec import tree
from dsec.engine.attendant import AttendantServer
from dsec.errors import MachineError
from dsec.ipc import frames
from dsec.ipc.frames import AnyFrame, Role
from dsec.ipc.segment import Segment
from dsec.kernel.machine import AgentEvent
from dsec.report import AtomsReport, Death
from dsec.sml.named import Hold

if TYPE_CHECKING:
    from dsec.kernel.agent import Agent
    from dsec.kernel.supervisor import Supervisor
    from dsec.spec import PoolSpec


class Atoms(AttendantServer):
    """The server of one run's atoms."""

    def __init__(self, run: Supervisor, pool: PoolSpec) -> None:
        super().__init__(run, "atoms", Role.SML, run.spec.recorder_image)
        self._pool = pool
        self._hold: Hold | None = None
        run.report.atoms = AtomsReport()

    @property
    def _report(self) -> AtomsReport:
        assert self.run.report.atoms is not None, "made with this"
        return self.run.report.atoms

    @property
    def holds_back(self) -> bool:
        """It never does."""
        return False

    def first(self) -> AnyFrame:
        """Which pool."""
        pool, spec = self._pool, self.run.spec
        return frames.PoolStart(
            spec.run_dir, pool.name, pool.size_mb, pool.persist, spec.ranks or len(spec.agents),
            pool.space, pool.peers, pool.backend, pool.token_file, pool.lease_s, pool.run,
            pool.recorded,
        )  # fmt: skip

    def serving(self) -> None:
        """The pool is there: while this kernel lives, nobody takes it away, whatever becomes of the
        server."""
        if self._hold is None:
            with contextlib.suppress(MachineError):  # somebody has taken its name away already
                self._hold = Hold(self._pool.name)
        super().serving()

    def introduce(self, agent: Agent) -> None:
        """Who it is, and what its roles keep by now."""
        forked = tree.forked(agent.spec)
        start = forked[0].start
        roles = tuple(int(each.role) for each in forked)
        self.tell(
            frames.Enrol(
                agent.name,
                agent.spec.rank,
                agent.spec.num_envs,
                roles,
                self._pool.snapshot_intervals[agent.spec.group],
                start.reward_window,
                agent.spec.parent,
                agent.spec.fork_index,
            )
        )
        for role, kept in agent.kept.items():
            self.kept(agent.name, role, kept)

    def kept(self, agent: str, role: Role, kept: Segment) -> None:
        """Hand it on, to be read."""
        if self.up and self.name not in self.run.agents[agent].served:
            sections = frames.Sections(agent, int(role), kept.size)
            self.tell(sections, [self.run.system.readonly(kept.fd)])

    def settle(self, agent: str) -> None:
        """Have it take an agent's last atom."""
        if self.name not in self.run.agents[agent].served:
            self.tell(frames.Settled(agent))

    def heard(self, frame: AnyFrame) -> bool:
        """Count what it says; a pool that doesn't take an agent's first atom is too small."""
        run = self.run
        match frame:
            case frames.Captured():
                for each in frame.agents:
                    if each.agent in run.agents:
                        self._report.count(each)
                if frame.problem and self._report.refuse(frame.problem):
                    run.hooks.note("atoms", reason=frame.problem)
                if frame.key:
                    error = frames.ErrorInfo("PoolTooSmall", frame.problem, where=frame.key)
                    run.fail("config", frame.problem, error)
            case frames.Moved():
                self._moved(frame)
            case frames.Taken() if frame.agent in run.agents:
                if frame.missing:
                    self._report.missing[frame.agent] = frame.missing
                self.done_with(run.agents[frame.agent])
            case _:
                return False
        return True

    def release(self) -> None:
        """As for every server; and the pool is nobody's."""
        super().release()
        self._let_go()

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def _moved(self, moved: frames.Moved) -> None:
        """Agents go on elsewhere, or may: they end here, and nobody says that they are done."""
        run = self.run
        run.hooks.note("moved", agents=list(moved.agents) or "all", reason=moved.why)
        if not moved.agents:
            run.fail("machine", moved.why)
            run.end_agents(AgentEvent.FENCE, settling=False)
        for name in moved.agents:
            if (agent := run.agents.get(name)) is not None and not agent.settling:
                agent.apply(AgentEvent.DRAIN if moved.handing else AgentEvent.FENCE)

    def ended(self, death: Death | None) -> None:
        """It is over: as it should be, or because it can't begin, or died too often."""
        self._let_go()
        run, report = self.run, self._report
        done = self.runner.said.get(frames.PoolDone) if self.runner is not None else None
        if death is not None and not self.was_up and death.error is not None:
            kind = "config" if death.error.where else "machine"
            run.fail(kind, death.error.message, death.error)
        elif death is not None:
            report.lost = death.cause
            if self._pool.peers:
                run.fail("machine", f"nobody holds the lease of the agents: {death.cause}")
                run.end_agents(AgentEvent.FENCE, settling=False)
            run.hooks.note("atoms", reason=f"no more atoms are kept: {death.cause}")
        elif done is not None:
            report.kept, report.kept_bytes, report.spilled = done.atoms, done.nbytes, done.spilled
        run.leave(self)
