"""Plans of faults: drawn from a seed, kept in a file, done again exactly. Pure but for the file.

A plan says which fault happens where (role, phase), when (record, before or after the call) and to
whom. It is drawn before anything runs, so it can't depend on the machine: an agent's part follows
from the seed and its name. The weights of what comes next depend on the state that the plan itself
leads to: an agent that has more open faults than it may, or whose budget of restarts is spent, is
hit by none; healing (a stretch in which nothing is done to it) is always as likely as all faults
together, and of too many faults it is all that can come next.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dsec.config import Config, agent_names
from dsec.engine.plan import quotas
from dsec.errors import DsecError

SCHEMA: Final = 1
WEIGHTS: Final[Mapping[str, float]] = {
    "segv": 4.0,
    "kill": 4.0,
    "abort": 2.0,
    "exit": 2.0,
    "exception": 2.0,
    "hang": 1.0,  # it costs its deadline
    "stop": 1.0,
}
PHASES: Final = {"env": "step", "policy": "act", "reward": "reward"}
OPEN_MAX: Final = 2
FAULTS_PER_HEALING: Final = 1.5
"""One, and half of the time another one before it is healed."""
CLOSE: Final = 4  # records between two faults without healing, at most
FAULTS_MAX: Final = 10_000


class PlanError(DsecError):
    """There is no such plan, or it doesn't fit; says what to do."""


class PlannedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault, as `chaos.faults` in a configuration has it."""

    agent: str
    role: str
    phase: str
    step: int
    kind: str
    instant: str = "before"


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults, and the run that they belong to.

    Attributes:
        seed: that it was drawn from.
        run_seed, steps: of the run.
        config: digest of the configuration, without its faults.
        beyond_budget: agents may be given more faults than they may survive.
    """

    seed: int
    run_seed: int
    steps: int
    config: str
    faults: tuple[PlannedFault, ...]
    beyond_budget: bool = False
    schema: int = SCHEMA

    def save(self, path: Path) -> None:
        """Write it, one fault a line, for people to read and cut."""
        head = {key: value for key, value in self._plain().items() if key != "faults"}
        text = msgspec.json.encode(head).decode()
        lines = ",\n  ".join(msgspec.json.encode(each).decode() for each in self.faults)
        inside = f"\n  {lines}\n" if lines else ""
        path.write_text(f'{text[:-1]},"faults":[{inside}]}}\n')

    @classmethod
    def load(cls, path: Path) -> FaultPlan:
        """Read one.

        Raises:
            PlanError: the file can't be read, or is no plan.
        """
        try:
            plan = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise PlanError(f"{path} can't be read: {error.strerror}") from None
        except msgspec.MsgspecError as error:
            raise PlanError(f"{path} is no plan of faults: {error}") from None
        if plan.schema != SCHEMA:
            raise PlanError(f"{path} is a plan of version {plan.schema}; this reads {SCHEMA}")
        return plan

    def as_config(self) -> list[dict[str, Any]]:
        """Its faults as `chaos.faults` has them."""
        return [*self._plain()["faults"]]

    def _plain(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def config_digest(config: Config) -> str:
    """Of all but the faults, the seed and the steps, which a plan has itself."""
    left = config.model_dump(exclude={"chaos": True, "run": {"seed", "steps"}})
    data = msgspec.json.encode(left, order="sorted")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def draw_plan(
    config: Config,
    *,
    seed: int,
    kinds: Sequence[str],
    rate: float,
    roles: Sequence[str] = tuple(PHASES),
    beyond_budget: bool = False,
) -> FaultPlan:
    """Draw a plan for a run of this configuration.

    Args:
        config: with run.seed and run.steps.
        seed: what is drawn follows from it alone.
        kinds: of WEIGHTS; each is as likely as it weighs there.
        rate: faults a record of an agent, in the mean, as far as its budget goes.
        roles: whose runners are hit, each as often as the others.
        beyond_budget: don't stop at the budget of restarts: then agents may be quarantined.

    Raises:
        PlanError: the run has no number of steps, nobody may be restarted, or it would be more
            than FAULTS_MAX faults.
    """
    if config.run.steps is None or config.run.seed is None:
        raise PlanError("faults are planned by steps: give run.steps and not run.episodes")
    shares, faults, rank = quotas(config), [], 0
    if all(not agent.failover.restarts.max for agent in config.agents) and not beyond_budget:
        raise PlanError("failover.restarts.max is 0 for every agent: none may be hit")
    for agent in config.agents:
        budget = agent.failover.restarts.max if not beyond_budget else FAULTS_MAX
        for name in agent_names(agent.name, agent.count):
            records = shares[rank].steps // agent.env.num_envs
            dice = random.Random(f"{seed}/{name}")
            faults += _walk(dice, name, records, budget, kinds, rate, roles)
            rank += 1
            if len(faults) > FAULTS_MAX:
                raise PlanError(
                    f"more than {FAULTS_MAX:,} faults in a run: take fewer steps, or a lower rate"
                )
    return FaultPlan(
        seed,
        config.run.seed,
        config.run.steps,
        config_digest(config),
        tuple(faults),
        beyond_budget,
    )


def _walk(
    dice: random.Random,
    agent: str,
    records: int,
    budget: int,
    kinds: Sequence[str],
    rate: float,
    roles: Sequence[str],
) -> list[PlannedFault]:
    """One agent's faults, from its first record to its last."""
    found: list[PlannedFault] = []
    chance = min(1.0, rate / FAULTS_PER_HEALING)
    weights = [WEIGHTS[kind] for kind in kinds]
    at, opened = _gap(chance, dice), 0
    while at < records and len(found) < budget:
        if opened >= OPEN_MAX or (opened and dice.random() < 0.5):
            at += CLOSE + _gap(chance, dice)
            opened = 0
            continue
        role = dice.choice(roles)
        kind = dice.choices(kinds, weights)[0]
        instant = dice.choice(("before", "after"))
        found.append(PlannedFault(agent, role, PHASES[role], at, kind, instant))
        opened += 1
        # Never twice at one record: a step that is fatal twice is not tried again, and that is
        # right.
        at += 1 + dice.randrange(CLOSE)
    return found


def _gap(chance: float, dice: random.Random) -> int:
    """Records until the next fault, as if each threw the dice."""
    if chance >= 1.0:
        return 1
    return 1 + int(math.log(1.0 - dice.random()) / math.log(1.0 - chance))
