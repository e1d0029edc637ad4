"""`dsec-kernel host` and `dsec-kernel migrate`: hosts that keep each other's atoms."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from dsec.cli.stream import standard_streams

_token = click.option(
    "--token-file",
    required=True,
    type=click.Path(path_type=Path),
    help="The secret of all hosts: at least 16 bytes that nobody else may read.",
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where peers reach this host.")
@click.option(
    "--address", metavar="HOST:PORT", help="How their configurations name it; default --listen."
)
@_token
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(0.1, 3600),
    default=20.0,
    show_default=True,
    metavar="S",
    help="After how many silent seconds of a run's host its agents go on here.",
)
@click.option(
    "--pool-mb",
    type=click.IntRange(1, 2**24),
    default=32_768,
    show_default=True,
    metavar="N",
    help="MiB of shared memory that copies of all runs may take.",
)
def host(
    folder: Path, listen: str, address: str | None, token_file: Path, lease_s: float, pool_mb: int
) -> int:
    """Keep copies of the atoms of runs on other hosts, and go on with their agents when those fall
    silent. FOLDER takes what it has to remember, and the runs that go on here.

    Each event is one line of JSON on stdout. SIGINT or SIGTERM ends it, and those runs in order.
    """
    import asyncio

    from dsec import signals
    from dsec.engine import keeper
    from dsec.errors import DsecError, MachineError

    stdout, stderr = standard_streams()

    def log(what: str, **facts: Any) -> None:
        stdout.line(json.dumps({"t": round(time.time(), 3), "event": what, **facts}))

    signals.let_in()
    try:
        chosen = keeper.options(folder, listen, token_file, address or "", lease_s, pool_mb)
        asyncio.run(keeper.Keeper(chosen, log).run())
    except DsecError as error:
        stderr.line(f"dsec-kernel: {error}")
        return 3 if isinstance(error, MachineError) else 2
    return 0


@click.command()
@click.argument("agent", metavar="RUN_DIR/AGENT")
@click.argument("target", metavar="HOST:PORT")
@_token
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3600),
    default=60.0,
    show_default=True,
    metavar="S",
    help="How long it may take.",
)
def migrate(agent: str, target: str, token_file: Path, wait_s: float) -> int:
    """Let an agent of a run go on at another host, which is one of the run's pool.peers.

    It ends here at its next boundary, and goes on there from exactly that step.
    """
    from dsec import signals
    from dsec.engine import migrate as moving
    from dsec.errors import DsecError, MachineError

    stdout, stderr = standard_streams()
    signals.let_in()
    try:
        epoch = moving.migrate(Path(agent), target, token_file, wait_s)
    except DsecError as error:
        stderr.line(f"dsec-kernel: {error}")
        return 3 if isinstance(error, MachineError) else 2
    stdout.line(f"{Path(agent).name} goes on at {target}, epoch {epoch}")
    return 0
