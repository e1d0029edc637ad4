"""`dsec-kernel doctor`: what this machine can do for dsec-kernel, and what to change.

Owns the words and the exit code; what is judged, and how, is dsec.doctor's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec import signals
from dsec.cli.stream import standard_streams

if TYPE_CHECKING:
    from dsec.doctor import Report, Wants

EPILOG = """\b
Exit codes: 0 nothing fails, 2 wrong usage or configuration, 3 something
that was asked for can't work on this machine.
"""


@click.command(epilog=EPILOG)
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--agents", type=click.IntRange(1), metavar="N", help="For so many agents.")
@click.option(
    "--cluster", is_flag=True, help="For a host of several, which hold each other's atoms."
)
@click.option("--device", metavar="NAME", help="The RDMA device that is to be used.")
@click.option("--port", type=click.IntRange(1), metavar="N", help="Its port.")
@click.option("--gid", type=click.IntRange(0), metavar="N", help="The index of its address.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def doctor(
    config: Path | None,
    agents: int | None,
    cluster: bool,
    device: str | None,
    port: int | None,
    gid: int | None,
    as_json: bool,
) -> int:
    """Say what this machine can do and what to change; with CONFIG, for what it asks.

    Nothing is changed. Each line passes, warns or fails, and says which command mends it.
    """
    signals.let_in()
    stdout, stderr = standard_streams()
    from dsec.cli import render
    from dsec.doctor import Verdict, Wants, examine
    from dsec.errors import ConfigError

    pool_bytes = None
    if config is not None:
        try:
            wanted, pool_bytes = _asked(config)
        except ConfigError as error:
            for line in render.error_lines(error):
                stderr.line(line)
            return 2
        agents = agents or wanted
    wants = Wants(agents or 1, pool_bytes, cluster, device, port, gid)
    report = examine(wants)
    if as_json:
        stdout.line(json.dumps(as_object(report, wants)))
    else:
        for line in lines(report):
            stdout.line(line)
    return 3 if report.verdict is Verdict.FAIL else 0


def _asked(path: Path) -> tuple[int, int | None]:
    """How many agents a configuration has, and the bytes of its pool."""
    from dsec.config import agent_names, load

    config = load(path).config
    agents = sum(len(agent_names(each.name, each.count)) for each in config.agents)
    return agents, None if config.pool is None else config.pool.size_mb << 20


def lines(report: Report) -> list[str]:
    """A report for people: a line for each thing, and one below it for what mends it."""
    width = max(len(line.name) for line in report.lines)
    found: list[str] = []
    group = ""
    for line in report.lines:
        if line.group != group:
            group = line.group
            found.append(group)
        found.append(f"  {line.verdict}  {line.name:{width}}  {line.found}")
        if line.remedy:
            found.append(f"  {'':4}  {'':{width}}  → {line.remedy}")
    counts = report.counts.items()
    found.append(", ".join(f"{count} {verdict}" for verdict, count in counts))
    return found


def as_object(report: Report, wants: Wants) -> dict[str, Any]:
    """A report for programs."""
    return {
        "verdict": str(report.verdict),
        "counts": {str(verdict): count for verdict, count in report.counts.items()},
        "agents": wants.agents,
        "pool_bytes": wants.pool_bytes,
        "cluster": wants.cluster,
        "checks": [
            {
                "group": line.group,
                "name": line.name,
                "verdict": str(line.verdict),
                "found": line.found,
                "remedy": line.remedy or None,
            }
            for line in report.lines
        ],
    }
