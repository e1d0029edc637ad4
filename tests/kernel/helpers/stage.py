"""A supervisor in this process, with real zygotes, runners and recorder.

Owns the building of small RunSpecs from the environments of tests/crash/faulty.py, and `Stage`,
which runs one and lets a test act on it while it runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop

from dsec.engine.recorder import Recorder
from dsec.engine.servers import servers
from dsec.hooks import Hooks
from dsec.ipc.frames import EnvSettings, FailoverSettings, Phase, Role, Start
from dsec.ipc.segment import Segment
from dsec.kernel.agent import Agent
from dsec.kernel.runner import Runner
from dsec.kernel.supervisor import Supervisor
from dsec.report import AgentReport, Death, Failover, RunReport
from dsec.spec import AgentSpec, ImageSpec, RunnerSpec, RunSpec

FAULTY = "tests.crash.faulty"
WORLDS = "tests.kernel.helpers.worlds"
BASE = ImageSpec("base", ("numpy", "gymnasium", FAULTY, "dsec.policies", "dsec.reward"))
DEADLINES = {
    Phase.IMPORT: 30.0,
    Phase.CONSTRUCT: 30.0,
    Phase.RESET: 20.0,
    Phase.STEP: 20.0,
    Phase.ACT: 20.0,
    Phase.REWARD: 20.0,
    Phase.CLOSE: 20.0,
}
ENDLESS = 1 << 40

# libuv opens a pipe for signals once in a process, which the leak check must not find.
uvloop.new_event_loop().close()


def agent(
    name: str,
    *,
    group: str = "",
    steps: int = 60,
    deadlines: Mapping[Phase, float] | None = None,
    policy: str = "dsec.policies:RandomPolicy",
    policy_kwargs: Mapping[str, Any] | None = None,
    env_id: str = "",
    image: str = "base",
    external: bool = False,
    memory_mb: int = 0,
    evidence: Path | None = None,
    entry: str = f"{FAULTY}:Walk",
    restarts: int = 0,
    standby: str = "none",
    **env: Any,
) -> AgentSpec:
    """One agent; `env` goes to the constructor of its environment, whose fault leaves the file
    `evidence / name`."""
    if evidence is not None:
        env |= {"evidence": str(evidence), "name": name}
    limits = {"memory_mb": memory_mb} if memory_mb else {}
    settings = EnvSettings(id=env_id) if env_id else EnvSettings(entry=entry, kwargs=env)
    parts: dict[Role, dict[str, Any]] = {
        Role.ENV: {"env": settings},
        Role.POLICY: {"entry": policy, "kwargs": dict(policy_kwargs or {})},
        Role.REWARD: {"entry": "dsec.reward:EnvReward"},
    }
    runners = tuple(
        RunnerSpec(
            role,
            image,
            Start(
                name,
                role,
                0,
                hashlib.md5(name.encode()).hexdigest(),
                steps=steps,
                limits=limits,
                failover=FailoverSettings(standby),
                **own,
            ),
            {**DEADLINES, **(deadlines or {})},
            external=external and role is Role.POLICY,
        )
        for role, own in parts.items()
    )
    return AgentSpec(name, group or name, runners, restarts_max=restarts)


def states(report: RunReport) -> dict[str, str]:
    """Where each agent stands."""
    return {name: each.state for name, each in report.agents.items()}


class Recording(Hooks):
    """Keeps what the supervisor tells."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.deaths: list[Death] = []
        self.failovers: list[Failover] = []
        self.notes: list[tuple[str, dict[str, Any]]] = []

    def agent(self, report: AgentReport) -> None:
        self.states.append((report.name, report.state))

    def death(self, death: Death) -> None:
        self.deaths.append(death)

    def failover(self, failover: Failover) -> None:
        self.failovers.append(failover)

    def note(self, event: str, **fields: Any) -> None:
        self.notes.append((event, fields))

    def wired(self, agent: str, segments: Mapping[Role, Segment], spaces: bytes) -> bool:
        raise AssertionError("nobody here is external")


class Stage:
    """One run. `act` is a coroutine function that gets the stage while the run goes on.

    Attributes:
        hooks: what the supervisor told.
        supervisor: once it runs.
    """

    def __init__(self, tmp_path: Path, *agents: AgentSpec, **spec: Any) -> None:
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        spec = {"images": (BASE,), "record_format": "journal", "drain_timeout_s": 20.0} | spec
        self.spec = RunSpec("stage", str(self.run_dir), 7, agents=agents, **spec)
        self.hooks: Recording = Recording()
        self.supervisor: Supervisor

    def run(
        self,
        act: Callable[[Stage], Awaitable[None]] | None = None,
        timeout_s: float = 60.0,
        **options: Any,
    ) -> RunReport:
        """Run to the end in a uvloop of its own and return the report."""

        async def main() -> RunReport:
            self.supervisor = Supervisor(self.spec, self.hooks, servers=servers, **options)
            async with asyncio.timeout(timeout_s):
                if act is None:
                    return await self.supervisor.run()
                async with asyncio.TaskGroup() as group:
                    running = group.create_task(self.supervisor.run())
                    group.create_task(self._acting(act))
                return running.result()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    async def _acting(self, act: Callable[[Stage], Awaitable[None]]) -> None:
        try:
            await act(self)
        except BaseException:
            self.supervisor.request_kill()
            raise

    async def until(
        self, condition: Callable[[], object], what: str, timeout_s: float = 40
    ) -> None:
        """Wait for something that the run brings about."""
        until = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            assert asyncio.get_running_loop().time() < until, f"not within {timeout_s} s: {what}"
            await asyncio.sleep(0.01)

    async def until_stepping(self, *names: str, steps: int = 20) -> None:
        """Wait until these agents have recorded so many steps."""
        agents = self.supervisor.report.agents
        for name in names or tuple(agents):
            await self.until(lambda n=name: agents[n].steps >= steps, f"{name} steps")

    @property
    def recorder(self) -> Recorder:
        found = self.supervisor.servers["recorder"]
        assert isinstance(found, Recorder)
        return found

    def agent(self, name: str) -> Agent:
        return self.supervisor.agents[name]

    def runner(self, name: str, role: Role) -> Runner:
        return self.agent(name).runners[role]

    def signal(self, name: str, role: Role, number: signal.Signals) -> None:
        """Signal one runner."""
        os.kill(self.runner(name, role).pid, number)

    def log(self, name: str) -> str:
        return (self.run_dir / "logs" / name).read_text(errors="replace")
