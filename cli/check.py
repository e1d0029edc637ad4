"""`dsec-kernel check`: is this environment deterministic, whose state can be kept, what does it
survive? Owns the words, the table and the exit codes; what is found out is dsec.testing's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dsec import signals
from dsec.cli.stream import SafeStream, standard_streams

if TYPE_CHECKING:
    from dsec.testing.report import CheckReport

KINDS = ("segv", "abort", "kill", "hang", "stop", "exit", "exception")
EPILOG = """\b
Exit codes: 0 nothing is wrong, 1 there are problems, 2 there is no such
environment, or it can't be made or stepped, 3 this machine can't do it,
130 interrupted.
"""


def parse_kinds(_context: click.Context, _parameter: click.Parameter, value: str) -> Sequence[str]:
    """Kinds of faults from a list with commas."""
    kinds = [each.strip() for each in value.split(",") if each.strip()]
    for kind in kinds:
        if kind not in KINDS:
            raise click.BadParameter(f"{kind!r} is none of {', '.join(KINDS)}")
    return kinds


def parse_mapping(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> dict[str, Any]:
    """Keywords, written as YAML or JSON."""
    from dsec.config.source import parse
    from dsec.errors import ConfigError

    if value is None:
        return {}
    try:
        data = parse(value, "--kwargs").data
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    if not isinstance(data, dict):
        raise click.BadParameter("write a mapping, as in '{render_mode: rgb_array}'")
    return data


@click.command(epilog=EPILOG)
@click.argument("env", metavar="ENV")
@click.option("--agent", default="", metavar="NAME", help="Of a configuration; default the first.")
@click.option("--kwargs", callback=parse_mapping, metavar="YAML", help="Keywords, as '{size: 8}'.")
@click.option(
    "--wrapper",
    "wrappers",
    multiple=True,
    metavar="NAME",
    help="A class of gymnasium.wrappers, or module:Class; innermost first, may be given several "
    "times. Wrappers with keywords: check a configuration.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="Default 0.")
@click.option(
    "--faults",
    callback=parse_kinds,
    default="segv,kill,hang,exit,exception",
    metavar="KINDS",
    help=f"Of {', '.join(KINDS)}; '' for none. Default segv,kill,hang,exit,exception.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def check(
    env: str,
    agent: str,
    kwargs: dict[str, Any],
    wrappers: Sequence[str],
    seed: int,
    faults: Sequence[str],
    as_json: bool,
) -> int:
    """Find out what the environment ENV is good for, in about half a minute.

    ENV is an id (CartPole-v1, module:Name-v0), module:Class, or a configuration file (*.yaml).
    Whether it is deterministic, what it opens, whether it leaks, which codecs hold its state,
    and whether a real run of it survives each kind of fault with the very same trajectory.
    """
    signals.let_in()
    stdout, stderr = standard_streams()
    from dsec.errors import ConfigError, DsecError, MachineError
    from dsec.testing.check import check_config, check_env
    from dsec.testing.probing import EnvironmentUnusable

    def tell(what: str) -> None:
        if stderr.isatty():
            stderr.line(f"dsec-kernel check: {what} …")

    try:
        if env.endswith((".yaml", ".yml")):
            if kwargs or wrappers:
                raise click.UsageError("--kwargs and --wrapper are in the configuration.")
            report = check_config(Path(env), agent, seed=seed, faults=faults, tell=tell)
        else:
            named = [{"entry": each} for each in wrappers]
            report = check_env(
                env, kwargs=kwargs, wrappers=named, seed=seed, faults=faults, tell=tell
            )
    except DsecError as error:
        code = 2 if isinstance(error, ConfigError | EnvironmentUnusable) else 1
        code = 3 if isinstance(error, MachineError) else code
        _refuse(env, error, code, stdout, stderr, as_json=as_json)
        return code
    if as_json:
        stdout.line(json.dumps(report.as_object()))
    else:
        show(report, stdout)
    return 0 if report.sound else 1


def _refuse(
    env: str,
    error: Exception,
    code: int,
    stdout: SafeStream,
    stderr: SafeStream,
    *,
    as_json: bool,
) -> None:
    detail = getattr(error, "detail", "")
    if as_json:
        told = {"kind": type(error).__name__, "message": str(error), "exit_code": code}
        stdout.line(json.dumps({"schema": 1, "env": env, "sound": None, "error": told}))
    stderr.line(f"dsec-kernel check: {error}")
    if detail:
        stderr.line(detail.rstrip())


# ---------------------------------------------------------------- for people


def show(report: CheckReport, stdout: SafeStream) -> None:
    """The report as a table, and what is wrong below it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=report.env, title_justify="left", show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(report):
        table.add_row(Text(name), Text(text))
    Console(file=cast("Any", stdout), highlight=False, soft_wrap=False).print(table)
    for note in report.notes:
        stdout.line(f"note: {note}")
    for problem in report.problems:
        stdout.line(f"problem: {problem}")
    verdict = "sound" if report.sound else f"{len(report.problems)} problems"
    stdout.line(f"{report.env}: {verdict} ({report.seconds:.0f} s)")


def rows(report: CheckReport) -> list[tuple[str, str]]:
    """Each line of the table."""
    same, found = report.deterministic, []
    words = {
        "yes": f"yes, {same.steps:,} steps in two processes",
        "hash seed": f"with a fixed hash seed, {same.steps:,} steps",
        "no": f"no: {same.what} at step {same.step} differs",
    }
    found.append(("observations", report.observation_space))
    found.append(("actions", report.action_space))
    found.append(
        ("made in", f"{report.construct_ms:,.0f} ms, a step takes {report.step_us:,.0f} µs")
    )
    found.append(("deterministic", words[same.verdict]))
    found.append(("opens", _opens(report)))
    for name, growth in (
        ("1,000 steps leak", report.per_1000_steps),
        ("100 resets leak", report.per_100_resets),
    ):
        if growth is not None:
            more = f" (from {growth.measured:,})" if growth.measured < growth.batch else ""
            lost = f"{growth.memory_kib:,.0f} KiB, {growth.descriptors:g} descriptors"
            found.append((name, f"{lost}, {growth.threads:g} threads{more}"))
    for codec in report.codecs:
        kept = "faithful"
        if codec.capture_us is not None and codec.bytes is not None:
            kept += f", {codec.bytes:,} bytes in {codec.capture_us:,.0f} µs"
        found.append((f"codec {codec.name}", kept if codec.faithful else f"no: {codec.why}"))
    for name, trial in (("done again", report.replay), ("forked", report.fork)):
        if trial is not None:
            found.append((name, "the same" if trial.faithful else f"no: {trial.why}"))
    if report.level:
        by = f" by codec {report.codec}" if report.codec else ""
        found.append(("kept at level", f"{report.level}{by}"))
    for each in report.faults:
        found.append((f"survives {each.kind}", _survives(each)))
    if report.identical is not None:
        found.append(("recording", "bit-identical" if report.identical else "differs"))
    return found


def _opens(report: CheckReport) -> str:
    parts = []
    for what in ("threads", "children", "files", "sockets"):
        counts = [len(getattr(each, what)) for each in (report.opened, report.stepped)]
        if any(counts):
            parts.append(f"{what}: {counts[0]} when made, {counts[1]} after steps")
    return "; ".join(parts) or "no threads, children, files or sockets"


def _survives(each: Any) -> str:
    if not each.happened:
        return "it did not happen"
    if not each.survived:
        return f"no: {each.cause}"
    took = f" in {each.ms:,.1f} ms" if each.ms is not None else ""
    return f"yes{took}, " + ("bit-identical" if each.exact else f"not exactly: {each.why}")
