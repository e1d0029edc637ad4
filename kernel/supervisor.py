"""The supervisor: the thin shell that runs everything on one loop.

Owns the order of start and stop, the tick, and what a fault of one part means for the whole. It is
never on the data path and running agents never wait for it. All its methods are for its loop's
thread.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dsec import tree
from dsec.errors import MachineError
from dsec.failover.detect import Deadlines, Timed
from dsec.failover.diagnose import blames_the_config, of_image
from dsec.failover.turns import Turns
from dsec.failover.waves import Waves
from dsec.hooks import Attendant, Hooks
from dsec.ipc import launch
from dsec.ipc.frames import ErrorInfo, Phase, Role
from dsec.ipc.system import SYSTEM, System
from dsec.kernel import reap, spawn
from dsec.kernel.agent import Agent
from dsec.kernel.machine import AgentEvent, AgentState
from dsec.kernel.recovery import Recovery
from dsec.kernel.runner import Runner
from dsec.report import Death, Failover, RunReport
from dsec.spec import SERVERS_DRAIN_S, ImageSpec, RunSpec

TICK_S = 0.25
CLOSE_MAX_S = 10.0
TURN_S = 0.01
LATE_NOTE_S = 1.0


class Supervisor:
    """Runs one RunSpec.

    Args:
        now: the clock, in seconds: CLOCK_MONOTONIC, as that of the progress words is.
        shared_process: the process has children that are not ours (a supervisor inside somebody's
            program). It becomes a child subreaper for the time of the run, as runners need it, but
            nobody else's children are reaped or killed. By default all children are ours.
        orphaned: says whether whoever was to outlive this process is gone.
        servers: makes the servers that read the agents' rings.
        system: the machine that it runs on.

    Attributes:
        report: the run as it stands.
        servers: by name; those that are over, or no longer waited for, are not among them.
    """

    def __init__(
        self,
        spec: RunSpec,
        hooks: Hooks,
        *,
        now: Callable[[], float] = time.monotonic,
        shared_process: bool = False,
        orphaned: Callable[[], bool] = lambda: False,
        servers: Callable[[Supervisor], Iterable[Attendant]] = lambda run: (),
        system: System = SYSTEM,
    ) -> None:
        self.spec, self.hooks, self.system = spec, hooks, system
        self.reason = ""  # why the run drains
        self.zygotes: dict[str, spawn.Zygote] = {}
        self.agents = {agent.name: Agent(agent, self) for agent in spec.agents}
        self.report = RunReport({name: agent.report for name, agent in self.agents.items()})
        self.now, self._shared, self._orphaned = now, shared_process, orphaned
        self._over, self._killed, self._alone = asyncio.Event(), False, False
        self._error: Exception | None = None
        self.went_at = 0.0  # when the first agent got its Go
        cores = system.cores()
        self.waves: Waves[str] = Waves(self.agents, tree.starting_max(cores))
        self.turns: Turns[tuple[Recovery, Role]] = Turns(tree.spares_max(cores))
        self._dropped: list[Attendant] = []
        self._tick: asyncio.TimerHandle | None = None
        self.deadlines: Deadlines[Timed] = Deadlines(TICK_S)
        self.servers = {each.name: each for each in servers(self)}

    async def run(self) -> RunReport:
        """Run everything to its end, once.

        Raises:
            LocalError: the spec contradicts itself.
            MachineError: this system can't have it.
            Exception: what a hook raised, or a fault of the kernel; all is killed by then.
        """
        images = tree.images(self.spec)
        was_subreaper = self.system.set_subreaper(True)
        lifeline, alive = self.system.pipe()
        try:
            self._open(lifeline)
            try:
                self._begin(images)
                await self._over.wait()
            finally:
                await self._end()
        finally:
            self.system.close(lifeline)
            self.system.close(alive)
            self.system.set_subreaper(was_subreaper or not self._shared)
        if self._error is not None:
            raise self._error
        return self.report

    def request_drain(self, reason: str) -> None:
        """End every agent at its next boundary, and then the run."""
        self.report.drained = True
        self._drain(reason)

    def request_kill(self) -> None:
        """SIGKILL every runner at once. Servers have SERVERS_DRAIN_S to write what they had
        published; nothing is converted."""
        self.report.drained = self._killed = True
        self.reason = self.reason or "killed"
        self.end_agents(AgentEvent.FENCE, settling=False)
        for zygote in self.zygotes.values():
            zygote.close(self.reason)  # whose answer some runners wait for that are to be fenced
        self.later(SERVERS_DRAIN_S, self._drop_all)

    # ------------------------------------------------------------ what the parts tell

    def changed(self, agent: Agent) -> None:
        """The agent's reported state is new."""
        self.hooks.agent(agent.report)
        if agent.ended:
            self.waves.drop(agent.name)
        self.admit()
        self.look_over()

    def died(self, death: Death) -> None:
        """A death is complete."""
        self.report.deaths.append(death)
        self.hooks.death(death)

    def recovered(self, failover: Failover) -> None:
        """A role that was lost, or recycled, goes on."""
        if (counted := self.report.count(failover)).recycled:
            who = f"{counted.agent}.{counted.role.name.lower()}"
            said = {"why": counted.death.cause, "ms": round(counted.total_ms, 3)}
            self.hooks.note("recycled", name=who, seq=counted.seq, **said)
        else:
            self.hooks.failover(counted)

    def faulted(self, agent: Agent, death: Death) -> None:
        """An agent is at fault; and with it the run, if the configuration is to blame."""
        group = agent.spec.group
        alike = [each for each in self.agents.values() if each.spec.group == group]
        if blames_the_config(death, (each.deaths[0] if each.deaths else None for each in alike)):
            whose = "machine" if death.short_of_memory else "config"
            self.fail(whose, death.cause, death.error, group)

    def fail(self, kind: str, text: str, error: ErrorInfo | None = None, group: str = "") -> None:
        """The run as a whole has failed: note why, the first time, and drain. A dry run goes on,
        to find everything that is wrong."""
        report = self.report
        if not report.failure:
            report.failure, report.failure_kind = text, kind
            report.failure_error, report.failure_group = error, group
        if not self.spec.dry:
            self._drain(text)

    def leave(self, server: Attendant) -> None:
        """A server has ended, or won't be started again: nobody waits for it any more."""
        self.servers.pop(server.name, None)
        for agent in self.agents.values():
            agent.look_served()
        self.look_over()

    def drop(self, *servers: Attendant) -> None:
        """Wait for servers no longer: hang up, upon which they write what they can, and leave."""
        for each in servers:
            self._dropped.append(self.servers.pop(each.name))
            each.hang_up()
        self.end_agents(AgentEvent.FENCE)

    def end_agents(self, event: AgentEvent, settling: bool = True) -> None:
        """Let `event` happen to all agents; to those that settle, only if `settling`."""
        self.waves.waiting.clear()
        for agent in self.agents.values():
            if settling or not agent.settling:
                agent.apply(event)
        self.look_over()

    def look_over(self) -> None:
        """End the run if nothing is left to do."""
        if any(not agent.ended for agent in self.agents.values()):
            return
        if self.went_at and not self.report.seconds:
            self.report.seconds = self.now() - self.went_at
        if not self.servers or self._killed:
            self._over.set()
        for server in tuple(self.servers.values()):
            server.finish()

    # ------------------------------------------------------------ inside

    def _open(self, lifeline: int) -> None:
        self.loop, self.lifeline, name = asyncio.get_running_loop(), lifeline, uuid.uuid4().hex
        self.environment = self.system.environment(name, deterministic=self.spec.deterministic)
        self.logs = self.system.logs(Path(self.spec.run_dir) / "logs", self.spec.log_bytes_max)
        mark = f"{launch.MARK}={name}" if self._shared else ""
        self.reaper = reap.Reaper(self.loop, mark, self.system)

    def _begin(self, images: tuple[ImageSpec, ...]) -> None:
        for image in images:
            self.zygotes[image.name] = spawn.Zygote(self, image)
        for zygote in self.zygotes.values():
            zygote.start()
        for server in self.servers.values():
            server.start()
        self.guarded(self._on_tick)()
        self.look_over()

    async def _end(self) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self.guarded(self._drop_all)()
        servers: list[spawn.Server | Attendant] = [*self.zygotes.values(), *self._dropped]
        for _ in range(int(SERVERS_DRAIN_S / TURN_S)):
            if any(server.alive for server in self._dropped):
                await asyncio.sleep(TURN_S)
        for server in servers:
            self.guarded(server.close)("the run is over")
        reaper, until = self.reaper, self.now() + CLOSE_MAX_S
        while left := reaper.kill_all():
            if self.now() > until:
                self.guarded(self.hooks.note)("left_behind", processes=left)
                break
            await asyncio.sleep(TURN_S)
            reaper.sweep()
        for agent in self.agents.values():
            agent.release()
        for server in servers:
            server.release()

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Call something later, guarded."""
        asyncio.get_running_loop().call_later(delay_s, self.guarded(call), *args)

    def arm(self, key: Timed, phase: Phase, limit_s: float) -> None:
        """Give somebody a deadline."""
        self.deadlines.arm(key, phase, limit_s, self.now())

    def guarded(self, call: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback for the loop: an exception there ends the run instead of vanishing."""

        def guarded(*args: object, **kwargs: object) -> None:
            try:
                call(*args, **kwargs)
            except MachineError as error:
                self.loop.call_soon(self.guarded(self.fail), "machine", str(error))
            except Exception as error:
                self._error = self._error or error
                self._over.set()

        return guarded

    def _on_tick(self) -> None:
        self._tick = self.loop.call_later(TICK_S, self.guarded(self._on_tick))
        now, deadlines = self.now(), self.deadlines
        if (late := deadlines.lateness.tick(now)) > LATE_NOTE_S:
            self.hooks.note("late_tick", seconds=late)
        for key, followed in deadlines.due(now):
            word = key.word() if followed and isinstance(key, Runner) else None
            verdict = deadlines.judge(key, now, word)
            if verdict is not None:
                key.late(verdict)
        if self._orphaned() and not self._alone:
            self._alone = True
            self.request_drain("the guardian died")
            self.later(SERVERS_DRAIN_S, self.request_kill)
        self.reaper.sweep()
        self.logs.rotate()
        for server in tuple(self.servers.values()):
            server.tick()
        self.admit()
        self._release()

    def admit(self) -> None:
        """Start agents whose images are warm, as long as not too many are starting."""
        while (name := self.waves.next(self.now(), self._warm)) is not None:
            self.agents[name].apply(AgentEvent.ADMIT)
        while (turn := self.turns.next(self.now())) is not None:
            recovery, role = turn
            if not recovery.spare(role):
                self.turns.done(turn)

    def _warm(self, name: str) -> bool:
        return all(self.zygotes[i].up for i in tree.images_of(self.agents[name].spec))

    def ready(self, agent: Agent) -> None:
        """An agent is ready: it steps as soon as its wave lets it."""
        if self.waves.ready(agent.name, self.now()):
            agent.report.state = "ready"
        self.admit()
        self.loop.call_soon(self.guarded(self._release))

    def _release(self) -> None:
        for name in self.waves.release(self.now()):
            self.agents[name].apply(AgentEvent.READY)

    def broken(self, zygote: spawn.Zygote, death: Death) -> None:
        """An image can't be had (any more): nobody can start who needs it."""
        death, whose, error = of_image(zygote.image, death, zygote.was_up)
        needing = [a for a in self.agents.values() if zygote.image.name in tree.images_of(a.spec)]
        for agent in needing:
            if agent.state is AgentState.WAITING:
                self.waves.drop(agent.name)
                role = min(r.role for r in agent.spec.runners if r.image == zygote.image.name)
                agent.fail(replace(death, agent=agent.name, role=role))
        if error is not None:
            self.fail(whose, death.cause, error, needing[0].spec.group if needing else "")

    def _drain(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.end_agents(AgentEvent.DRAIN)

    def _drop_all(self) -> None:
        self.drop(*self.servers.values())
