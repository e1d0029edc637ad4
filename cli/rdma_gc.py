"""`dsec-rdma-gc`: what the pools of this machine hold and why; with --force, frees the rest.

Owns the words. What is held and what may go is decided by dsec.pools; a pool whose kernel lives is
only looked at.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dsec import __version__

if TYPE_CHECKING:
    from dsec.pools import Survey

EPILOG = """\b
Exit codes: 0 done, 2 wrong usage, 3 a pool isn't there, or its kernel lives.
"""
ROWS_MAX = 20


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dsec-rdma-gc")
@click.argument("names", nargs=-1, metavar="[POOL]...")
@click.option(
    "--force", is_flag=True, help="Free what nobody holds. Without it nothing is changed."
)
@click.option(
    "--keep-last",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Atoms of each agent that stay in a pool that may outlive its kernel.",
)
@click.option(
    "--persisted",
    is_flag=True,
    help="With --force: the whole of a pool that was kept for a later run, too; files stay.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def cli(names: Sequence[str], force: bool, keep_last: int, persisted: bool, as_json: bool) -> int:
    """List what the pools of Agent State Atoms hold and why; free what nobody holds.

    Every byte is attributed to an agent, episode and rollout. A pool that its kernel left without
    having been told to (pool.persist) is a leak, and is taken away as a whole, unless an atom in it
    is pinned.
    """
    if persisted and not force:
        raise click.UsageError("--persisted says what --force takes away: give both.")
    from dsec.errors import DsecError, PoolOwned
    from dsec.pools import Retention, collect, pools, survey

    retention = Retention(keep_last=keep_last)
    found: list[Survey] = []
    problems: list[str] = []
    for name in names or pools():
        try:
            found.append(
                collect(name, retention, persisted_too=persisted)
                if force
                else survey([name], retention)[0]
            )
        except PoolOwned as error:
            if names:
                problems.append(str(error))
            found += survey([name], retention)
        except DsecError as error:
            problems.append(str(error))
    if as_json:
        click.echo(json.dumps({"pools": [_as_dict(each) for each in found], "problems": problems}))
    elif found:
        click.echo("\n".join(_lines(found, force=force)))
    elif not names:
        click.echo("There are no pools on this machine.")
    for problem in problems:
        click.echo(f"dsec-rdma-gc: {problem}", err=True)
    return 3 if problems else 0


def _lines(found: Sequence[Survey], *, force: bool) -> list[str]:
    lines: list[str] = []
    for each in found:
        lines += [_head(each), *_body(each)]
        if each.unlinked:
            lines.append(f"  freed: the whole pool, {each.size:,} bytes")
        elif each.freed_atoms:
            lines.append(f"  freed: {each.freed_atoms:,} atoms, {each.freed_bytes:,} bytes")
    if not force and any(each.leaked or _may_go(each) for each in found if each.owner is None):
        lines.append("Nothing was changed; `dsec-rdma-gc --force` frees it.")
    return lines


def _head(each: Survey) -> str:
    if each.owner is not None:
        whose = f"belongs to process {each.owner}" if each.owner else "belongs to a living process"
    elif each.problem and not each.unfinished:
        whose = "not used by this version"
    elif each.persist:
        whose = "kept for a later run"
    else:
        whose = "leaked: its kernel is gone" if each.leaked else "its kernel is gone"
    return f"pool {each.name}: {each.size:,} bytes, {whose}"


def _body(each: Survey) -> list[str]:
    if each.problem:
        return [f"  {each.problem}"]
    usage, plan = each.usage, each.plan
    assert usage is not None
    assert plan is not None
    full = usage.room_bytes / usage.data_bytes
    lines = [f"  {usage.atoms:,} atoms in {usage.room_bytes:,} bytes, {full:.1%} of the pool"]
    rows = [
        (each.agents.get(agent, f"agent {agent}"), episode, rollout, share.atoms, share.bytes)
        for (agent, episode, rollout), share in each.shares.items()
    ]
    if rows:
        width = max(5, *(len(row[0]) for row in rows[:ROWS_MAX]))
        lines.append(f"  {'agent':{width}}  episode  rollout    atoms         bytes")
        lines += [
            f"  {name:{width}}  {episode:7}  {rollout:7}  {atoms:7,}  {nbytes:12,}"
            for name, episode, rollout, atoms, nbytes in rows[:ROWS_MAX]
        ]
        if len(rows) > ROWS_MAX:
            rest = sum(row[4] for row in rows[ROWS_MAX:])
            lines.append(f"  … and {len(rows) - ROWS_MAX:,} more, {rest:,} bytes")
    if each.reasons and not each.leaked:
        reasons = ", ".join(f"{count:,} {why}" for why, count in sorted(each.reasons.items()))
        lines.append(f"  stay: {len(plan.keeps):,} atoms ({reasons})")
    if not each.leaked and not each.freed_atoms and plan.frees:
        lines.append(f"  may go: {len(plan.frees):,} atoms, {_may_go(each):,} bytes")
    return lines


def _may_go(each: Survey) -> int:
    return sum(verdict.entry.room for verdict in each.plan.frees) if each.plan else 0


def _as_dict(each: Survey) -> dict[str, Any]:
    plan = each.plan
    return {
        "name": each.name,
        "bytes": each.size,
        "owner": each.owner,
        "persist": each.persist,
        "leaked": each.leaked,
        "problem": each.problem,
        "atoms": each.usage.atoms if each.usage else 0,
        "used_bytes": each.usage.room_bytes if each.usage else 0,
        "shares": [
            {
                "agent": each.agents.get(agent, f"agent {agent}"),
                "rank": agent,
                "episode": episode,
                "rollout": rollout,
                "atoms": share.atoms,
                "bytes": share.bytes,
            }
            for (agent, episode, rollout), share in each.shares.items()
        ],
        "stays": {str(why): count for why, count in each.reasons.items()},
        "may_go_atoms": len(plan.frees) if plan else 0,
        "may_go_bytes": _may_go(each),
        "freed_atoms": each.freed_atoms,
        "freed_bytes": each.freed_bytes,
        "unlinked": each.unlinked,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `dsec-rdma-gc` script; returns the exit code."""
    try:
        result = cli.main(args=argv, prog_name="dsec-rdma-gc", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        return 0
    return int(result or 0)


if __name__ == "__main__":
    sys.exit(main())
