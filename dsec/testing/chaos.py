"""`run_chaos`: a real run under planned faults, beside one without; which guarantees held.

Owns the checks, one for each guarantee that a run can show, and the report. Safety is asked of
every agent; liveness (that it does its quota) of those whose faults are within their budget of
restarts. The faults themselves happen in the runners (runners/chaos.py), as they were planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from dsec.config import Config, Override, agent_names, dump, load
from dsec.engine.summary import percentile
from dsec.errors import JournalError, LengthsDiffer, MachineError
from dsec.testing import runs
from dsec.testing.plans import FaultPlan, PlanError, config_digest, draw_plan

SCHEMA: Final = 1
RUN_S: Final = 24 * 3600.0
CAUSES: Final = {
    "segv": "killed by SIGSEGV",
    "abort": "killed by SIGABRT",
    "kill": "killed by SIGKILL",
    "hang": "hung in",
    "stop": "hung in",
    "exit": "left with exit code 3",
    "exception": "raised dsec.runners.chaos.InjectedFault",
}

Tell = Callable[[str], None]


class Guarantee(msgspec.Struct, frozen=True):
    """One guarantee in this run: how it was checked, and what was wrong (nothing: it held).

    Attributes:
        number: of docs/GUARANTEES.md.
        how: what was compared with what.
        cases: how many times.
        broken: a sentence for each time that it did not hold.
    """

    number: str
    how: str
    cases: int
    broken: tuple[str, ...] = ()


class ChaosReport(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        sound: no guarantee was broken.
        planned, happened: faults, by kind; what was planned behind the end of an agent's run, or
            of an agent that was quarantined before, does not happen.
        failovers: how many, `exact` of them bit-identical; `failover_ms` their p50 and p99, from
            the fault (of a hang: its deadline) until the successor could go on.
        lost: transitions that were lost in failovers that could not be exact.
        quarantined: agents that were given up.
        left: what was there when the run had ended.
        hit, calm: the run directories with and without faults.
        notes: sentences that are good to know.
    """

    sound: bool
    seed: int
    agents: int
    steps: int
    seconds: float
    planned: dict[str, int]
    happened: dict[str, int]
    failovers: int
    exact: int
    failover_ms: dict[str, float | None]
    lost: int
    quarantined: tuple[str, ...]
    left: tuple[str, ...]
    identical: bool
    guarantees: tuple[Guarantee, ...]
    notes: tuple[str, ...]
    hit: str
    calm: str
    schema: int = SCHEMA

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What to do.

    Attributes:
        config: the file, and `overrides` of it.
        out: a new directory for the plan and both runs.
        seed: of the plan, and of the run where the configuration has none.
        kinds, rate, roles, beyond_budget: see `draw_plan`.
        plan: one to be done again; then nothing is drawn.
    """

    config: Path
    out: Path
    overrides: Sequence[Override] = ()
    seed: int = 0
    kinds: Sequence[str] = ("segv", "kill", "exit", "exception")
    rate: float = 0.002
    roles: Sequence[str] = ("env", "policy", "reward")
    beyond_budget: bool = False
    plan: FaultPlan | None = None


def run_chaos(options: ChaosOptions, tell: Tell = lambda _: None) -> ChaosReport:
    """Run a configuration under faults, and once more in peace, and compare.

    `out` holds plan.json, chaos.yaml (an ordinary configuration: `dsec-kernel run` does it again),
    and the run directories `hit` and `calm`.

    Raises:
        ConfigError: the configuration is wrong.
        PlanError: no such plan can be drawn, or this one is of other agents.
        MachineError, EngineDied, EngineRefused, RunTooLong: a run can't be made.
    """
    config, plan, notes = prepared(options)
    _make(options.out)
    plan.save(options.out / "plan.json")
    path = options.out / "chaos.yaml"
    path.write_text(dump(config))
    tell(f"running with {len(plan.faults):,} faults")
    hit = runs.run(path, options.out / "hit", limit_s=RUN_S)
    tell("running without")
    calm = runs.run(path, options.out / "calm", set=("chaos=null",), limit_s=RUN_S)
    tell("comparing")
    return _Judge(config, plan, hit, calm, notes).report()


def prepared(options: ChaosOptions) -> tuple[Config, FaultPlan, list[str]]:
    """The configuration with its faults, the plan that they are of, and what is to be said."""
    notes: list[str] = []
    plan = options.plan
    changes = list(options.overrides)
    loaded = load(options.config, changes)
    if plan is None:
        if loaded.config.run.seed is None:
            changes.append(Override(("run", "seed"), options.seed, "--seed"))
            loaded = load(options.config, changes)
        plan = draw_plan(
            loaded.config,
            seed=options.seed,
            kinds=options.kinds,
            rate=options.rate,
            roles=options.roles,
            beyond_budget=options.beyond_budget,
        )
    elif config_digest(loaded.config) != plan.config:
        notes.append("the plan was drawn for another configuration, or version of it")
    changes += [
        Override(("run", "episodes"), None, "plan"),
        Override(("run", "steps"), plan.steps, "plan"),
        Override(("run", "seed"), plan.run_seed, "plan"),
        Override(("chaos",), {"faults": plan.as_config()}, "plan"),
    ]
    return load(options.config, changes).config, plan, notes


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise PlanError(f"{folder} is there already: name a new directory with --out") from None
    except OSError as error:
        raise MachineError(f"{folder} can't be made: {error.strerror}", "Choose another") from None


class _Judge:
    """Holds what both runs left against the guarantees."""

    def __init__(
        self,
        config: Config,
        plan: FaultPlan,
        hit: runs.Ran,
        calm: runs.Ran,
        notes: list[str],
    ) -> None:
        self._config, self._plan, self._hit, self._calm = config, plan, hit, calm
        self._notes = notes
        for ran in (hit, calm):
            if not ran.agents:
                why = (ran.error or {}).get("message", f"exit code {ran.code}")
                raise PlanError(f"no run came about in {ran.run_dir}: {why}")
        self._budgets = {
            name: agent.failover.restarts.max
            for agent in config.agents
            for name in agent_names(agent.name, agent.count)
        }
        faults = config.chaos.faults
        self._evidence = [(fault, hit.happened(fault)) for fault in faults]
        self._hits = Counter(fault.agent for fault, told in self._evidence if told is not None)
        self._given_up = tuple(
            name for name, agent in hit.agents.items() if agent["state"] != "done"
        )
        self._compared = 0
        self._damaged: list[str] = []
        self._unlike: list[str] = []
        if config.record.format == "none":
            notes.append("nothing was recorded, so only hash chains were compared")
        else:
            self._compare()

    def report(self) -> ChaosReport:
        """All of it."""
        guarantees = (
            self._others(),
            self._nothing_lost(),
            self._exact(),
            self._said(),
            self._causes(),
            self._bounded(),
            self._nothing_left(),
            self._same_chain(),
        )
        hit, failovers = self._hit, self._hit.failovers
        took = [each["ms"]["total"] for each in failovers]
        happened = Counter(fault.kind for fault, told in self._evidence if told is not None)
        missed = len(self._evidence) - happened.total()
        if missed:
            self._notes.append(f"{missed} planned faults did not happen: it was over before")
        return ChaosReport(
            sound=not any(each.broken for each in guarantees),
            seed=self._plan.seed,
            agents=len(hit.agents),
            steps=hit.summary["steps"],
            seconds=hit.summary["seconds"],
            planned=dict(sorted(Counter(each.kind for each in self._plan.faults).items())),
            happened=dict(sorted(happened.items())),
            failovers=len(failovers),
            exact=sum(each["exact"] for each in failovers),
            failover_ms={"p50": percentile(took, 0.5), "p99": percentile(took, 0.99)},
            lost=hit.summary["lost"],
            quarantined=self._given_up,
            left=hit.left,
            identical=hit.chains == self._calm.chains,
            guarantees=guarantees,
            notes=tuple(self._notes),
            hit=str(hit.run_dir),
            calm=str(self._calm.run_dir),
        )

    def _others(self) -> Guarantee:
        spared = [name for name in self._hit.agents if not self._hits[name]]
        broken = [
            f"{name}, which had no fault, is {self._hit.agents[name]['state']}"
            for name in spared
            if self._hit.agents[name]["state"] != "done"
        ]
        return Guarantee("G1", "agents without faults did their quota", len(spared), tuple(broken))

    def _compare(self) -> None:
        """Both recordings of each agent, whose failovers were all exact: what follows a lost step
        is another episode, and is said (G4)."""
        from dsec.recording.verify import verify

        for name in self._hit.agents:
            if self._inexact(name):
                continue
            self._compared += 1
            try:
                (found,) = verify(self._hit.run_dir, self._calm.run_dir, name).agents
            except LengthsDiffer as error:  # as far as both go they are the same
                if name not in self._given_up:
                    self._unlike.append(str(error))
            except (JournalError, ModuleNotFoundError) as error:
                self._damaged.append(f"{name}: {error}")
            else:
                if not found.identical:
                    self._unlike.append(f"{name} differs first at step {found.step:,}")

    def _nothing_lost(self) -> Guarantee:
        how = "recordings are whole: they fit the hash chains that were computed beside them"
        return Guarantee("G2", how, self._compared, tuple(self._damaged))

    def _inexact(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self._hit.failovers if e["agent"] == name and not e["exact"]]

    def _exact(self) -> Guarantee:
        exact = sum(each["exact"] for each in self._hit.failovers)
        how = "failovers were exact: recordings are, bit for bit, those of peace"
        return Guarantee("G3", how, exact, tuple(self._unlike))

    def _said(self) -> Guarantee:
        inexact = [each for each in self._hit.failovers if not each["exact"]]
        silent = tuple(
            f"{each['agent']} {each['role']}: not exact, and it is not said why"
            for each in inexact
            if not each["why"]
        )
        return Guarantee("G4", "what was not exact says why", len(inexact), silent)

    def _causes(self) -> Guarantee:
        """Each fault that happened is the cause of a death of that role, in the kernel's words."""
        deaths: Counter[tuple[str, str, str]] = Counter()
        for each in self._hit.failovers:
            for cause in (each["death"]["cause"], *each["tried"]):
                deaths[each["agent"], each["role"], _kind_of(cause)] += 1
        for death in self._hit.summary["deaths_in_order"]:
            deaths[death["agent"], death["role"], _kind_of(death["cause"])] += 1
        broken = []
        happened = [fault for fault, told in self._evidence if told is not None]
        for fault in happened:
            key = fault.agent, fault.role, CAUSES[fault.kind]
            deaths[key] -= 1
            if deaths[key] < 0:
                broken.append(
                    f"{fault.agent} {fault.role}: {fault.kind} at {fault.step} is no death's cause"
                )
        how = "each fault that happened is the cause of a death"
        return Guarantee("G6", how, len(happened), tuple(broken))

    def _bounded(self) -> Guarantee:
        """Within its budget an agent goes on; beyond it, it may be given up, and nobody else."""
        broken = [
            f"{name} was given up after {self._hits[name]} faults, and may have {budget}"
            for name, budget in self._budgets.items()
            if name in self._given_up and self._hits[name] <= budget
        ]
        code = 1 if self._given_up else 0
        if self._hit.code != code:
            broken.append(f"the run's exit code is {self._hit.code} and not {code}")
        how = "within its budget of restarts an agent does its quota"
        return Guarantee("G7", how, len(self._budgets), tuple(broken))

    def _nothing_left(self) -> Guarantee:
        how = "no process, shared memory or descriptor is left of either run"
        return Guarantee("G8", how, 2, (*self._hit.left, *self._calm.left))

    def _same_chain(self) -> Guarantee:
        whole = [n for n in self._hit.agents if not self._inexact(n) and n not in self._given_up]
        if self._calm.code:
            self._notes.append(f"the run without faults ended with exit code {self._calm.code}")
        broken = tuple(
            f"{name} has another hash chain than without faults"
            for name in whole
            if self._hit.chains[name] != self._calm.chains[name]
        )
        return Guarantee("G12", "hash chains with and without faults are equal", len(whole), broken)


def _kind_of(cause: str) -> str:
    """The beginning of a cause that tells kinds of faults apart."""
    return next((said for said in CAUSES.values() if cause.startswith(said)), cause)
