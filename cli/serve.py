"""`dsec-kernel serve`: parses what is typed for it; everything else is dsec.engine's."""

from __future__ import annotations

from pathlib import Path

import click

from dsec.cli.stream import SafeStream


@click.command()
@click.option("--stdio", is_flag=True, help="Serve the program at stdin and stdout, until it ends.")
@click.option(
    "--socket",
    "path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Serve programs of this user at a Unix socket, until a signal or one of them ends it.",
)
def serve(stdio: bool, path: Path | None) -> int:
    """Be the kernel of other programs, which ask for runs and sandboxes in JSON-RPC 2.0.

    docs/ENGINE.md is the reference. SIGINT, SIGTERM or SIGHUP ends everything in order; a second
    one kills, and so does SIGQUIT at once.
    """
    if stdio is (path is not None):
        raise click.UsageError("Name one of --stdio and --socket PATH.")
    from dsec.cli import render
    from dsec.engine import serve as serving
    from dsec.errors import MachineError

    try:
        door: serving.Door = serving.standard_streams() if path is None else serving.Listener(path)
        return serving.serve(door)
    except MachineError as error:
        import sys

        stderr = SafeStream(sys.stderr)
        for line in render.error_lines(error):
            stderr.line(line)
        return 3
