"""`dsec-kernel verify` and `replay`: do two runs say the same, and does a run do it again?

Owns the words and the exit codes. What is compared is dsec.recording's; a replay runs in a process
that dsec.engine starts, so no user code comes here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec import signals
from dsec.cli.stream import standard_streams

if TYPE_CHECKING:
    from dsec.engine import Replay
    from dsec.recording.compare import Difference
    from dsec.recording.verify import AgentVerdict, Verdict

LINES_MAX = 20
SHOWN_MAX = 4

EPILOG = """\b
Exit codes: 0 identical, 1 something differs, 2 they can't be compared: not
the same agents, spaces or lengths; unfinished, damaged, missing, or of
another version.
"""
REPLAY_EPILOG = """\b
Exit codes: 0 identical, 1 it differs, crashes, hangs or raises, 2 there is
nothing to replay.
"""


@click.command(epilog=EPILOG)
@click.argument("run_a", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("run_b", metavar="RUN_B", type=click.Path(path_type=Path))
@click.option("--agent", metavar="NAME", help="Compare this agent only.")
@click.option(
    "--quick",
    is_flag=True,
    help="Believe the hash chains that the recorder wrote; read data only where they differ.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def verify(run_a: Path, run_b: Path, agent: str | None, quick: bool, as_json: bool) -> int:
    """Say whether two runs are the same, bit for bit, or where they differ first.

    RUN_A and RUN_B are run directories. Each recording is first held against the hash chain that
    was computed when it was made.
    """
    signals.let_in()
    stdout, stderr = standard_streams()
    from dsec.errors import DsecError
    from dsec.recording.verify import verify as compare

    sides = {"a": str(run_a), "b": str(run_b)}
    try:
        verdict = compare(run_a, run_b, agent, quick=quick)
    except DsecError as error:
        if as_json:
            told = {"kind": type(error).__name__, "message": str(error)}
            stdout.line(json.dumps({**sides, "identical": None, "error": told}))
        stderr.line(f"dsec-kernel verify: {error}")
        return 2
    if as_json:
        stdout.line(json.dumps({**sides, **as_object(verdict)}))
    else:
        for line in lines(verdict):
            stdout.line(line)
    return 0 if verdict.identical else 1


@click.command(epilog=REPLAY_EPILOG)
@click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--agent", metavar="NAME", required=True, help="Whose environments.")
@click.option(
    "--from",
    "first",
    metavar="STEP",
    type=click.IntRange(0),
    default=0,
    help="Compare from this step on; begin at the latest atom before it, if the run left one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def replay(run_dir: Path, agent: str, first: int, as_json: bool) -> int:
    """Step an agent's environments again, with its seed and its recorded actions, and compare.

    Everything that environments return is compared, bit for bit, but for infos. It happens in a
    process of its own, within the limits and deadlines of the run's configuration.
    """

    def main() -> int:
        stdout, stderr = standard_streams()
        said: dict[str, Any] = {"run": str(run_dir), "agent": agent, "from": first}
        try:
            try:
                signals.let_in()
                found = engine.replay(run_dir, agent, first)
            finally:
                signals.ignore()
        except KeyboardInterrupt:
            stderr.line("dsec-kernel: interrupted")
            return 130
        except DsecError as error:
            if as_json:
                told = {"kind": type(error).__name__, "message": str(error)}
                stdout.line(json.dumps({**said, "outcome": None, "error": told}))
            stderr.line(f"dsec-kernel replay: {error}")
            return 2
        if as_json:
            stdout.line(json.dumps({**said, **_replay_object(found)}))
        else:
            for line in _replay_lines(agent, first, found):
                stdout.line(line)
        if found.detail:
            stderr.line(found.detail.rstrip())
        return 0 if found.outcome in ("identical", "lost") else 1

    from dsec import engine
    from dsec.errors import DsecError, MachineError

    try:
        return engine.guard(main)
    except MachineError as error:
        standard_streams()[1].line(f"dsec-kernel replay: {error}")
        return 3


def _replay_object(found: Replay) -> dict[str, Any]:
    return {
        "outcome": found.outcome,
        "begin": found.begin,
        "step": found.step,
        "differences": list(found.differences),
        "cause": found.cause or None,
        "error": None,
    }


def _replay_lines(agent: str, first: int, found: Replay) -> list[str]:
    atom = f" (begun at an atom before step {found.begin:,})" if found.begin else ""
    since = f", compared from step {first:,} on" if first else ""
    match found.outcome:
        case "identical":
            return [f"identical: {agent}, {found.step:,} steps{since}{atom}"]
        case "lost":
            return [
                f"identical: {agent}, up to step {found.step:,}{atom}",
                "There the run lost the environment (G4); what came then began from another seed.",
            ]
        case "differs":
            what = described(found.differences)
            return [
                f"{agent} differs first at step {found.step:,}{atom}: {what}",
                "The recorded value comes first.",
            ]
        case _:
            return [f"{agent} can't be replayed at step {found.step:,}: {found.cause}"]


def as_object(verdict: Verdict) -> dict[str, Any]:
    """A verdict for programs."""
    return {
        "identical": verdict.identical,
        "quick": verdict.quick,
        "seeds": list(verdict.seeds),
        "agents": {
            each.agent: {
                "identical": each.identical,
                "steps": each.transitions,
                "chain": each.chain or None,
                "step": None if each.identical else each.step,
                "differences": [difference_object(found) for found in each.differences],
            }
            for each in verdict.agents
        },
    }


def difference_object(found: Difference) -> dict[str, Any]:
    """One difference for programs."""
    return {
        "env": found.env,
        "what": found.what,
        "where": found.where,
        "a": found.a,
        "b": found.b,
        "others": found.others,
    }


def lines(verdict: Verdict) -> list[str]:
    """A verdict for people."""
    agents = verdict.agents
    differing = [each for each in agents if not each.identical]
    steps = sum(each.transitions for each in agents)
    counted = f"{len(agents):,} {'agent' if len(agents) == 1 else 'agents'}, {steps:,} steps"
    if not differing:
        read = " (by their hash chains; the data was not read)" if verdict.quick else ""
        return [f"identical: {counted}{read}"]
    found = [_differs(each) for each in differing[:LINES_MAX]]
    if len(differing) > LINES_MAX:
        found.append(f"… and {len(differing) - LINES_MAX:,} more")
    rest = len(agents) - len(differing)
    found.append(f"different: {len(differing):,} of {counted}; {rest:,} identical")
    if verdict.seeds[0] != verdict.seeds[1]:
        found.append(f"their seeds are different: {verdict.seeds[0]} and {verdict.seeds[1]}")
    return found


def _differs(each: AgentVerdict) -> str:
    told = described([difference_object(found) for found in each.differences])
    return f"{each.agent} differs first at step {each.step:,}: {told}"


def described(differences: Sequence[Mapping[str, Any]]) -> str:
    """What differs at a step, in words; the environment is named unless it is always the first."""
    named = any(found["env"] for found in differences)
    words = []
    for found in differences[:SHOWN_MAX]:
        where = f"environment {found['env']}, " if named else ""
        more = f" (and {found['others']:,} more of it)" if found["others"] else ""
        words.append(f"{where}{found['what']}{found['where']}: {found['a']} and {found['b']}{more}")
    if len(differences) > SHOWN_MAX:
        words.append(f"and {len(differences) - SHOWN_MAX} more")
    return "; ".join(words)
