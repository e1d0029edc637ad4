"""`dsec-kernel chaos`: a run under planned faults, and what of the guarantees held.

Owns the words and the exit codes. The plan, both runs and the checks are dsec.testing's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dsec import signals
from dsec.cli.check import KINDS, parse_kinds
from dsec.cli.stream import standard_streams

if TYPE_CHECKING:
    from dsec.config import Override
    from dsec.testing.chaos import ChaosOptions, ChaosReport

SHOWN = 4
ROLES = ("env", "policy", "reward")
DRAWN = ("seed", "kinds", "rate", "roles", "beyond_budget", "steps")
EPILOG = """\b
Exit codes: 0 every guarantee held, 1 one was broken, 2 the configuration or
the plan is wrong, 3 this machine can't do it, 130 interrupted.
"""


def parse_roles(_context: click.Context, _parameter: click.Parameter, value: str) -> Sequence[str]:
    """Roles from a list with commas."""
    found = [each.strip() for each in value.split(",")]
    if unknown := [each for each in found if each not in ROLES]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(ROLES)}")
    return found


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of the plan; default 0.")
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A plan to be done again; if there is no such file, the plan is written there.",
)
@click.option(
    "--faults",
    "kinds",
    callback=parse_kinds,
    default="segv,kill,exit,exception",
    metavar="KINDS",
    help=f"Of {', '.join(KINDS)}. Default segv,kill,exit,exception; hang and stop cost their "
    "deadlines.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.002,
    help="Faults a step of each agent, as far as its budget of restarts goes. Default 0.002.",
)
@click.option("--roles", callback=parse_roles, default="env,policy,reward", help="Whose runners.")
@click.option(
    "--beyond-budget",
    is_flag=True,
    help="Plan more faults than failover.restarts allows: agents may be given up then.",
)
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Steps of all agents.")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="As for run.")
@click.option("--out", type=click.Path(path_type=Path), help="A new directory; default runs/….")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.pass_context
def chaos(
    context: click.Context,
    config: Path,
    seed: int | None,
    plan_file: Path | None,
    kinds: Sequence[str],
    rate: float,
    roles: Sequence[str],
    beyond_budget: bool,
    steps: int | None,
    sets: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> int:
    """Run CONFIG under seeded faults, and once more without, and say which guarantees held.

    The plan is drawn before anything runs, and hits the same calls each time. The directory
    --out holds it, and both run directories.
    """
    if plan_file is not None and plan_file.exists():
        _refuse_what_is_drawn(context, plan_file)
    signals.let_in()
    from dsec.testing.chaos import ChaosOptions

    folder = out or Path("runs", f"chaos-{time.strftime('%Y%m%d-%H%M%S')}")

    def options() -> ChaosOptions:
        changes = _changes(sets, steps)
        return ChaosOptions(config, folder, changes, seed or 0, kinds, rate, roles, beyond_budget)

    return _chaos(options, plan_file, as_json=as_json)


def _refuse_what_is_drawn(context: click.Context, plan_file: Path) -> None:
    given = [n for n in DRAWN if context.get_parameter_source(n) is ParameterSource.COMMANDLINE]
    if given:
        options = {each.name: each.opts[-1] for each in context.command.params}
        named = ", ".join(options[name] for name in given)
        raise click.UsageError(f"{plan_file} is a plan already: leave {named} out.")


def _changes(sets: Sequence[str], steps: int | None) -> list[Override]:
    from dsec.config import Override, parse_override

    changes = [parse_override(text) for text in sets]
    if steps is not None:
        changes.append(Override(("run", "episodes"), None, "--steps"))
        changes.append(Override(("run", "steps"), steps, "--steps"))
    return changes


def _chaos(options: Callable[[], ChaosOptions], plan_file: Path | None, *, as_json: bool) -> int:
    """Both runs, and what is said of them; returns the exit code."""
    stdout, stderr = standard_streams()
    from dsec.errors import ConfigError, DsecError, MachineError
    from dsec.testing.chaos import run_chaos
    from dsec.testing.plans import FaultPlan, PlanError

    def tell(what: str) -> None:
        if stderr.isatty():
            stderr.line(f"dsec-kernel chaos: {what} …")

    try:
        known = plan_file is not None and plan_file.exists()
        asked = options()
        if known and plan_file is not None:
            asked = replace(asked, plan=FaultPlan.load(plan_file))
        report = run_chaos(asked, tell)
        if plan_file is not None and not known:
            plan_file.write_bytes((asked.out / "plan.json").read_bytes())
    except OSError as error:
        stderr.line(f"dsec-kernel chaos: {plan_file} can't be written: {error.strerror}")
        return 3
    except DsecError as error:
        stderr.line(f"dsec-kernel chaos: {error}")
        if isinstance(error, MachineError):
            return 3
        return 2 if isinstance(error, ConfigError | PlanError) else 1
    if as_json:
        stdout.line(json.dumps(report.as_object()))
    else:
        for line in lines(report):
            stdout.line(line)
    return 0 if report.sound else 1


def lines(report: ChaosReport) -> list[str]:
    """The report for people."""
    found = []
    for each in report.guarantees:
        verdict = "held" if not each.broken else f"BROKEN {len(each.broken)} times"
        found.append(f"{each.number:<4}{verdict}: {each.how} ({each.cases:,})")
        found += [f"      {said}" for said in each.broken[:SHOWN]]
        if len(each.broken) > SHOWN:
            found.append(f"      … and {len(each.broken) - SHOWN:,} more")
    happened = ", ".join(f"{kind} {count:,}" for kind, count in report.happened.items()) or "none"
    total, planned = sum(report.happened.values()), sum(report.planned.values())
    found.append(f"faults: {total:,} of {planned:,} planned ({happened})")
    p50, p99 = (report.failover_ms[key] for key in ("p50", "p99"))
    took = f": p50 {p50:,.1f} ms, p99 {p99:,.1f} ms" if p50 is not None and p99 is not None else ""
    found.append(f"failovers: {report.failovers:,}{took}; {report.exact:,} exact")
    given_up = ", ".join(report.quarantined[:SHOWN]) or "none"
    found.append(
        f"{report.agents:,} agents, {report.steps:,} steps in {report.seconds:,.1f} s; "
        f"{report.lost:,} lost; {len(report.left):,} left behind; given up: {given_up}"
    )
    found += [f"note: {note}" for note in report.notes]
    chains = "equal" if report.identical else "different"
    found.append(f"hash chains with and without faults: {chains} ({report.hit}, {report.calm})")
    return found
