"""`dsec-kernel`. Parses what is typed for run and validate; everything else is dsec.engine's.

Nothing heavy is imported before it is known what to do, so that `--help` and shell completion are
quick. What a command does, it does in the supervisor, the child that `engine.guard` makes; this
process is the guardian, which waits for it and cleans up after it.
"""

from __future__ import annotations

import json
import resource
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsec import __version__, signals
from dsec.cli.chaos import chaos
from dsec.cli.check import check
from dsec.cli.compare import replay, verify
from dsec.cli.doctor import doctor
from dsec.cli.host import host, migrate
from dsec.cli.serve import serve
from dsec.cli.stream import SafeStream, standard_streams

if TYPE_CHECKING:
    from dsec.config import Override
    from dsec.engine import Outcome, RunOptions

EPILOG = """\b
Exit codes: 0 all done, 1 some agents failed, 2 the configuration is wrong,
3 this machine can't do it, 70 internal error, 130 interrupted. SIGINT,
SIGTERM or SIGHUP ends the run in order and keeps what was recorded; a
second one kills it, and so does SIGQUIT at once.
"""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dsec-kernel")
def cli() -> None:
    """A microkernel process supervisor for reinforcement-learning agents."""


cli.add_command(check)
cli.add_command(chaos)
cli.add_command(verify)
cli.add_command(replay)
cli.add_command(serve)
cli.add_command(host)
cli.add_command(migrate)
cli.add_command(doctor)

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
@click.argument("config", type=click.Path(path_type=Path), required=False)
@_sets
@click.option("--out", type=click.Path(path_type=Path), help="The run directory; default runs/….")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Go on with the run in RUN_DIR, which was interrupted: each agent from its newest atom.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="KEY",
    help="With --resume: let this key of the configuration, and all below it, differ from what it "
    "was. May be given several times.",
)
@click.option(
    "--steps", metavar="N", help="Environment steps of all agents; replaces run.episodes."
)
@click.option("--seed", metavar="N", help="The run's seed.")
@_json
@_verbose
def run(
    config: Path | None,
    sets: Sequence[str],
    out: Path | None,
    resume: Path | None,
    allowed: Sequence[str],
    steps: str | None,
    seed: str | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run CONFIG to its end.

    The run directory holds the recording, the logs of all runners, the configuration as it was
    run, and summary.json. With --resume CONFIG may be left out: it is that of RUN_DIR then.
    """
    if resume is None and config is None:
        raise click.UsageError("Missing argument 'CONFIG' (or --resume RUN_DIR).")
    if resume is not None and out is not None:
        raise click.UsageError("--resume goes on in its run directory: leave --out out.")
    if allowed and resume is None:
        raise click.UsageError("--allow is for --resume.")

    def options() -> RunOptions:
        from dsec import engine

        overrides = _overrides(sets, steps, seed)
        return engine.RunOptions(config, overrides, out, tuple(sys.argv), resume, allowed)

    return _guarded(lambda: _ran(options, as_json, verbose), as_json)


@cli.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--agent", required=True, metavar="NAME", help="The agent, by its full name.")
@click.option(
    "--atom",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="The step of the atom; default newest.",
)
@click.option(
    "--index",
    type=click.IntRange(0, 2**31),
    default=0,
    metavar="K",
    help="Which fork of this atom, from 0: each has random streams of its own.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The run directory; default runs/….")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Environment steps of the agent in all, those before the atom included; default: what it "
    "had to do.",
)
@_json
@_verbose
def fork(
    run_dir: Path,
    agent: str,
    atom: int | None,
    index: int,
    out: Path | None,
    steps: int | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Begin a new run with one agent of RUN_DIR, from an atom of it.

    Its state is what it was there, but whatever is random in it goes on with other numbers, in the
    environment, the policy and the reward. The same atom and index give the same run again.
    """

    def options() -> RunOptions:
        from dsec import engine

        found = engine.Fork(run_dir, agent, atom, index, steps)
        return engine.RunOptions(None, (), out, tuple(sys.argv), fork=found)

    return _guarded(lambda: _ran(options, as_json, verbose), as_json)


@cli.command()
@_config
@_sets
@_json
@_verbose
def validate(config: Path, sets: Sequence[str], as_json: bool, verbose: bool) -> int:
    """Check CONFIG down to its environments and classes.

    One agent of each entry is constructed in processes of its own and its environment reset, then
    closed; nothing is recorded. How its state would be kept for a successor is found out as in a
    run: a copy of the environment does a few steps for that.
    """

    # Named in the guardian, made and removed in the supervisor, which outlives the guardian's death
    # by as long as it takes to clean up; and removed by the guardian, should the supervisor die.
    try:
        scratch = Path(tempfile.gettempdir(), f"dsec-validate-{secrets.token_hex(8)}")
    except OSError as error:
        return _finish(_no_scratch(error), *standard_streams(), as_json=as_json)

    def main() -> int:
        from dsec import engine
        from dsec.cli.render import protection_lines

        stdout, stderr = standard_streams()

        def work() -> Outcome:
            from dsec.cli.view import TerminalView

            view = TerminalView(stderr, stderr, verbose=verbose)
            try:
                scratch.mkdir(mode=0o700)
                return engine.validate(config, _overrides(sets, None, None), scratch, view)
            except OSError as error:
                return _no_scratch(error)
            finally:
                view.close()

        outcome = _caught(work)
        shutil.rmtree(scratch, ignore_errors=True)
        if outcome.code == engine.Exit.DONE and not as_json:
            stdout.line(f"{config}: valid")
            for agent in outcome.report.agents.values() if outcome.report is not None else ():
                for line in protection_lines(agent):
                    stdout.line(line)
            return 0
        return _finish(outcome, stdout, stderr, as_json=as_json)

    try:
        return _guarded(main, as_json)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@cli.command()
def schema() -> int:
    """Print the JSON Schema of configurations, for editors.

    In VS Code: put `# yaml-language-server: $schema=dsec.schema.json` at the top of a file.
    """
    from dsec.config import json_schema

    signals.let_in()
    standard_streams()[0].line(json.dumps(json_schema(), indent=2))
    return 0


def _ran(options: Callable[[], RunOptions], as_json: bool, verbose: bool) -> int:
    """A run from its options, which may be wrong, to its exit code."""
    stdout, stderr = standard_streams()

    def work() -> Outcome:
        from dsec import engine
        from dsec.cli.view import TerminalView

        chosen = options()
        view = TerminalView(stderr if as_json else stdout, stderr, verbose=verbose)
        try:
            return engine.run(chosen, view)
        finally:
            view.close()

    return _finish(_caught(work), stdout, stderr, as_json=as_json)


def _overrides(sets: Sequence[str], steps: str | None, seed: str | None) -> list[Override]:
    from dsec.config import Override, parse_override

    overrides = [parse_override(text) for text in sets]
    if steps is not None:
        overrides.append(Override(("run", "episodes"), None, "--steps"))
        overrides.append(parse_override(f"run.steps={steps}", origin="--steps"))
    if seed is not None:
        overrides.append(parse_override(f"run.seed={seed}", origin="--seed"))
    return overrides


def _no_scratch(error: OSError) -> Outcome:
    from dsec import engine
    from dsec.errors import MachineError

    problem = MachineError(
        f"there is no place for temporary files: {error.strerror}",
        "Set TMPDIR to a folder that can be written",
    )
    return engine.Outcome(engine.Exit.MACHINE, engine.totals(None, None), problem)


def _caught(work: Callable[[], Outcome]) -> Outcome:
    """The outcome of `work`, which may raise what is wrong with the command line. Meanwhile, and
    nowhere else, a signal is a KeyboardInterrupt."""
    from dsec import engine
    from dsec.errors import ConfigError

    try:
        try:
            signals.let_in()
            return work()
        except ConfigError as error:
            return engine.Outcome(engine.Exit.CONFIG, engine.totals(None, None), error)
        finally:
            signals.ignore()
    except KeyboardInterrupt:
        return engine.Outcome(engine.Exit.INTERRUPTED, engine.totals(None, None))


def _guarded(main: Callable[[], int], as_json: bool) -> int:
    """`engine.guard`; what keeps it from beginning is an outcome, too."""
    from dsec import engine
    from dsec.errors import MachineError

    try:
        return engine.guard(main)
    except MachineError as error:
        outcome = engine.Outcome(engine.Exit.MACHINE, engine.totals(None, None), error)
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
        error = engine.error_object(outcome.error, int(outcome.code))
        if error is not None:
            result["error"] = error
        stdout.line(json.dumps(result))
    return int(outcome.code)


def _no_memory(error: ImportError | MemoryError) -> int:
    """Say that not even the imports found room, where that is what the error means."""
    from dsec.errors import lacks_memory

    if not lacks_memory(f"{type(error).__name__}: {error}"):
        raise error
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = f"; `ulimit -v` allows {limit >> 20:,} MiB" if limit >= 0 else ""
    standard_streams()[1].line(f"dsec-kernel: there is no memory to begin with{limited}")
    return 3


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `dsec-kernel` script; returns the exit code."""
    with signals.held():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    standard_streams()  # before anything else can take a number that is theirs
    try:
        result = cli.main(args=argv, prog_name="dsec-kernel", standalone_mode=False)
    except (ImportError, MemoryError) as error:
        return _no_memory(error)
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
