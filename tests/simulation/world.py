"""One simulated run: a machine, what is configured, and the real supervisor on top.

Owns what a seed means before anything happens: how many agents there are, how each protects its
state, its budget, how long its phases take. What goes wrong then is in faults.py.
"""

from __future__ import annotations

import random
from typing import Any

from dsec.engine.recorder import Recorder
from dsec.hooks import Hooks
from dsec.ipc.frames import FailoverSettings, Phase, Role, Start
from dsec.kernel.supervisor import Supervisor
from dsec.report import AgentReport, Death, Failover
from dsec.spec import AgentSpec, ImageSpec, RunnerSpec, RunSpec
from tests.simulation.actors import PolicyRunner, RewardRunner
from tests.simulation.env import EnvRunner
from tests.simulation.machine import Machine
from tests.simulation.process import Process
from tests.simulation.recorder import RecorderProcess
from tests.simulation.runners import Agent, Runner, Zygote
from tests.simulation.things import Thing

DEADLINES = {
    Phase.CONSTRUCT: 5.0,
    Phase.RESET: 3.0,
    Phase.STEP: 2.0,
    Phase.ACT: 2.0,
    Phase.REWARD: 2.0,
    Phase.CLOSE: 2.0,
    Phase.REPLAY: 3.0,
}
KINDS = {Role.ENV: EnvRunner, Role.POLICY: PolicyRunner, Role.REWARD: RewardRunner}
LEVELS = ("state", "state", "fork", "replay", "none")


class Telling(Hooks):
    """Passes on what the supervisor tells."""

    def __init__(self, machine: Machine) -> None:
        self._tell = machine.tell

    def agent(self, report: AgentReport) -> None:
        self._tell("agent", report.name, report.state)

    def death(self, death: Death) -> None:
        self._tell("death", death)

    def away(self, agent: str, role: Role) -> None:
        self._tell("away", agent, role)

    def failover(self, failover: Failover) -> None:
        self._tell("failover", failover)

    def disk(self, state: str, message: str) -> None:
        self._tell("disk", state)

    def note(self, event: str, **fields: Any) -> None:
        self._tell("note", event, fields)


class World:
    """What one seed describes, and the run of it.

    Attributes:
        calm_since: when the last fault was done, or mended.
        whole: no fault has hit the run as a whole (the machine, the supervisor, a server).
        touched: agents that some fault has hit.
        over: faults end, for the run does.
        violations: what oracles found, the first one first.
    """

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.machine = Machine(seed, trace=trace)
        self.chance: random.Random = self.machine.random
        self.machine.make_zygote = self._zygote
        self.violations: list[str] = []
        self.calm_since, self.whole, self.orphaned = self.machine.now(), True, False
        self.touched: set[str] = set()
        self.broken_image, self.over = "", False
        self.agents = {f"a-{i}": self._agent(i) for i in range(self.chance.choice((1, 1, 2, 3)))}
        self.spec = self._spec()
        self.hooks = Telling(self.machine)
        served = self.spec.recorder and not self.spec.dry
        self.supervisor = Supervisor(
            self.spec,
            self.hooks,
            now=self.machine.now,
            orphaned=lambda: self.orphaned,
            servers=lambda run: [Recorder(run)] if served else [],
            system=self.machine,
        )

    def found(self, oracle: str, what: str) -> None:
        """An oracle saw something that may not be."""
        at = self.machine.now() - 1000.0
        self.violations.append(f"{oracle}: {what} (at {at:.6f} s)")
        self.machine.tell("VIOLATION", oracle, what)

    def touch(self, runner: Runner) -> None:
        """A fault is done to this one."""
        self.touched.add(runner.agent.name)

    def mend(self) -> None:
        """What a fault had done is over."""
        self.calm_since = self.machine.now()

    def living(self, *kinds: type[Process]) -> list[Process]:
        """Processes of these kinds of which nothing ends yet."""
        found = self.machine.processes.values()
        return [each for each in found if each.alive and isinstance(each, kinds)]

    # ------------------------------------------------------------ what there is

    def _agent(self, index: int) -> Agent:
        chance = self.chance
        level = chance.choice(LEVELS)
        step_s = chance.choice((0.005, 0.04, 0.2))
        spans = {
            Phase.CONSTRUCT: (0.002, chance.choice((0.01, 0.3))),
            Phase.RESET: (0.001, 0.01),
            Phase.STEP: (step_s / 4, step_s * 2),
            Phase.ACT: (1e-4, 2e-3),
            Phase.REWARD: (1e-4, 1e-3),
            Phase.CLOSE: (1e-4, 1e-2),
        }
        return Agent(
            name=f"a-{index}",
            seed=chance.getrandbits(40),
            steps=chance.choice((6, 20, 40)),
            level=level,
            interval=chance.choice((1, 3, 7)),
            actors_kept=chance.random() < 0.7,
            learns=chance.random() < 0.4,
            slots=chance.choice((2, 8, 32)),
            recycle=chance.choice((0, 0, 0, 7)),
            span_s=spans,
        )

    def _spec(self) -> RunSpec:
        chance = self.chance
        images = (ImageSpec("base", ("numpy",), 5.0), ImageSpec("torch", ("torch",), 5.0))
        agents = []
        for agent in self.agents.values():
            other = chance.choice(("base", "base", "torch"))
            runners = tuple(
                RunnerSpec(
                    role,
                    other if role is Role.POLICY else "base",
                    Start(agent.name, role, 0, f"{agent.seed:032x}", steps=agent.steps,
                          failover=FailoverSettings(agent.level)),
                    DEADLINES,
                )
                for role in KINDS
            )  # fmt: skip
            most, period_s = chance.choice((0, 1, 3, 10, 10)), chance.choice((1.0, 5.0, 60.0))
            agents.append(
                AgentSpec(agent.name, chance.choice(("g", agent.name)), runners,
                          restarts_max=most, restarts_period_s=period_s)
            )  # fmt: skip
        return RunSpec(
            "simulated", "/nowhere", self.seed, images, tuple(agents),
            dry=chance.random() < 0.03,
            recorder=chance.random() < 0.9,
            drain_timeout_s=5.0,
        )  # fmt: skip

    # ------------------------------------------------------------ processes

    def _zygote(self, parent: int, things: list[Thing]) -> Zygote:
        zygote = Zygote(self.machine, parent, things)
        zygote.fork, zygote.broken = self._fork, self.broken_image
        return zygote

    def _fork(self, name: str, epoch: int) -> Process:
        agent, _, role = name.rpartition(".")
        if not agent:
            return RecorderProcess(self.machine, self.agents, name, epoch)
        runner: Runner = KINDS[Role[role.upper()]](self.machine, self.agents[agent], name, epoch)
        return runner
