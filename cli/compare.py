"""`dsec-kernel verify`: do two runs say the same? The words and the exit code; the answer is
dsec.recording.verify's. No user code runs here, and no process is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec import signals
from dsec.cli.stream import standard_streams

if TYPE_CHECKING:
    from dsec.recording.compare import Difference
    from dsec.recording.verify import AgentVerdict, Verdict

LINES_MAX = 20
SHOWN_MAX = 4

EPILOG = """\b
Exit codes: 0 identical, 1 something differs, 2 they can't be compared: not
the same agents, spaces or lengths; unfinished, damaged, missing, or of
another version.
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
    return f"{each.agent} differs first at step {each.step:,}: {described(each.differences)}"


def described(differences: tuple[Difference, ...]) -> str:
    """What differs at a step, in words; the environment is named where there are several."""
    several = len({found.env for found in differences}) > 1 or any(f.env for f in differences)
    words = [
        f"environment {found.env}, {found}" if several else str(found)
        for found in differences[:SHOWN_MAX]
    ]
    if len(differences) > SHOWN_MAX:
        words.append(f"and {len(differences) - SHOWN_MAX} more")
    return "; ".join(words)
