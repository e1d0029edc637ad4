"""`dsec-kernel`: run, validate, schema. Parses what is typed; everything else is dsec.engine's.

Nothing heavy is imported before it is known what to do, so that `--help` and shell completion are
quick. What a command does, it does in the supervisor, the child that `engine.guard` makes; this
process is the guardian, which waits for it and cleans up after it.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec import __version__
from dsec.cli.stream import SafeStream, standard_streams

if TYPE_CHECKING:
    from dsec.config import Override
    from dsec.engine import Outcome

EPILOG = """\b
Exit codes: 0 all done, 1 some agents failed, 2 the configuration is wrong,
3 this machine can't do it, 70 internal error, 130 interrupted (SIGINT or
SIGTERM; the first ends the run in order and keeps what was recorded, the
second kills it).
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dsec-kernel")
def cli() -> None:
    """A microkernel process supervisor for reinforcement-learning agents."""


_config = click.argument("config", type=click.Path(path_type=Path))
_sets = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change the configuration, as in run.steps=1000 or agents[0].env.num_envs=4; VALUE is "
    "YAML, null takes a key away. May be given several times.",
)
_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON object, the last line on stdout; all else goes to stderr.",
)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Log every change of state.")


@cli.command()
@_config
@_sets
@click.option("--out", type=click.Path(path_type=Path), help="The run directory; default runs/….")
@click.option(
    "--steps", metavar="N", help="Environment steps of all agents; replaces run.episodes."
)
@click.option("--seed", metavar="N", help="The run's seed.")
@_json
@_verbose
def run(
    config: Path,
    sets: Sequence[str],
    out: Path | None,
    steps: str | None,
    seed: str | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run CONFIG to its end.

    The run directory holds the recording, the logs of all runners, the configuration as it was
    run, and summary.json.
    """

    def main() -> int:
        from dsec import engine

        stdout, stderr = standard_streams()

        def work() -> Outcome:
            from dsec.cli.view import TerminalView

            overrides = _overrides(sets, steps, seed)
            options = engine.RunOptions(config, overrides, out, tuple(sys.argv))
            view = TerminalView(stderr if as_json else stdout, stderr, verbose=verbose)
            try:
                return engine.run(options, view)
            finally:
                view.close()

        return _finish(_caught(work), stdout, stderr, as_json=as_json)

    return _guarded(main, as_json)


@cli.command()
@_config
@_sets
@_json
@_verbose
def validate(config: Path, sets: Sequence[str], as_json: bool, verbose: bool) -> int:
    """Check CONFIG down to its environments and classes.

    One agent of each entry is constructed in processes of its own, then closed; nothing is stepped
    and nothing recorded.
    """

    def main(scratch: Path) -> int:
        from dsec import engine

        stdout, stderr = standard_streams()

        def work() -> Outcome:
            from dsec.cli.view import TerminalView

            view = TerminalView(stderr, stderr, verbose=verbose)
            try:
                return engine.validate(config, _overrides(sets, None, None), scratch, view)
            finally:
                view.close()

        outcome = _caught(work)
        if outcome.code == engine.Exit.DONE and not as_json:
            stdout.line(f"{config}: valid")
            return 0
        return _finish(outcome, stdout, stderr, as_json=as_json)

    # Made and removed here, in the guardian, which outlives the supervisor.
    try:
        folder = tempfile.TemporaryDirectory(prefix="dsec-validate-", ignore_cleanup_errors=True)
    except OSError as error:
        from dsec import engine
        from dsec.errors import MachineError

        problem = MachineError(
            f"there is no place for temporary files: {error.strerror}",
            "Set TMPDIR to a folder that can be written",
        )
        outcome = engine.Outcome(engine.Exit.MACHINE, engine.totals(None, None), problem)
        return _finish(outcome, *standard_streams(), as_json=as_json)
    with folder as scratch:
        return _guarded(lambda: main(Path(scratch)), as_json)


@cli.command()
def schema() -> int:
    """Print the JSON Schema of configurations, for editors.

    In VS Code: put `# yaml-language-server: $schema=dsec.schema.json` at the top of a file.
    """
    from dsec.config import json_schema

    standard_streams()[0].line(json.dumps(json_schema(), indent=2))
    return 0


def _overrides(sets: Sequence[str], steps: str | None, seed: str | None) -> list[Override]:
    from dsec.config import Override, parse_override

    overrides = [parse_override(text) for text in sets]
    if steps is not None:
        overrides.append(Override(("run", "episodes"), None, "--steps"))
        overrides.append(parse_override(f"run.steps={steps}", origin="--steps"))
    if seed is not None:
        overrides.append(parse_override(f"run.seed={seed}", origin="--seed"))
    return overrides


def _caught(work: Any) -> Outcome:
    """The outcome of `work`, which may raise what is wrong with the command line."""
    from dsec import engine
    from dsec.errors import ConfigError

    try:
        outcome: Outcome = work()
    except ConfigError as error:
        outcome = engine.Outcome(engine.Exit.CONFIG, engine.totals(None, None), error)
    except KeyboardInterrupt:
        outcome = engine.Outcome(engine.Exit.INTERRUPTED, engine.totals(None, None))
    return outcome


def _guarded(main: Any, as_json: bool) -> int:
    """`engine.guard`; what keeps it from beginning is an outcome, too."""
    # Half imported, the engine couldn't say what became of the run: a signal waits for that.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    from dsec import engine
    from dsec.errors import MachineError

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return engine.guard(main)
    except MachineError as error:
        outcome = engine.Outcome(engine.Exit.MACHINE, engine.totals(None, None), error)
    except KeyboardInterrupt:
        outcome = engine.Outcome(engine.Exit.INTERRUPTED, engine.totals(None, None))
    return _finish(outcome, *standard_streams(), as_json=as_json)


def _finish(outcome: Outcome, stdout: SafeStream, stderr: SafeStream, *, as_json: bool) -> int:
    from dsec import engine
    from dsec.cli import render

    for line in render.outcome_lines(outcome):
        (stderr if as_json else stdout).line(line)
    if outcome.error is not None:
        for line in render.error_lines(outcome.error):
            stderr.line(line)
    elif outcome.code == engine.Exit.INTERRUPTED and outcome.report is None:
        stderr.line("dsec-kernel: interrupted before the run began")
    if as_json:
        result = dict(outcome.totals)
        error = render.error_object(outcome)
        if error is not None:
            result["error"] = error
        stdout.line(json.dumps(result))
    return int(outcome.code)


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `dsec-kernel` script; returns the exit code."""
    # Until somebody listens, SIGTERM ends this as Ctrl-C does, and Ctrl-C does also where a shell
    # started us in the background and had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    standard_streams()  # before anything else can take a number that is theirs
    try:
        result = cli.main(args=argv, prog_name="dsec-kernel", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        standard_streams()[1].line("dsec-kernel: interrupted")
        return 130
    except BrokenPipeError:
        return 0
    return int(result or 0)


if __name__ == "__main__":
    sys.exit(main())
