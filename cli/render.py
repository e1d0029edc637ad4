"""A run in words: lines and tables from plain values. Pure; nothing is written here.

Numbers carry thousands separators and units; nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dsec.errors import ConfigError, DsecError, MachineError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsec.engine import AgentReport, Death, Failover, Outcome, RunReport, Snapshot

ROWS_MAX = 16  # agents with a row of their own; more are shown by groups
STDERR_LINES_MAX = 12
STACK_LINES_MAX = 8
BAR_WIDTH = 40
NAME_CELLS_MAX = 40
SEPARATOR = " | "
_ENDED = "episode ended by infrastructure"  # of a policy or a reward that is lost none has to end
_PYTHON_STACK = "Current thread 0x"  # how faulthandler begins the thread that was asked or hit


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 14 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def amount(value: float | None, digits: int = 1) -> str:
    """A number with separators; `-` if there is none."""
    if value is None:
        return "-"
    if abs(value) >= 1000 or digits == 0:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def metric(value: float | None) -> str:
    """A number of the user's, of which nothing is known: `2,000`, `0.250`, `3e-05`."""
    if value is None or value == int(value):
        return amount(value, 0)
    return amount(value, 3) if abs(value) >= 0.1 else f"{value:.3g}"


def counted(number: int, noun: str) -> str:
    """`1 agent`, `8 agents`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def states(snapshot: Snapshot) -> str:
    """`6 running, 2 done`, in the order of life."""
    order = ("starting", "ready", "running", "done", "quarantined")
    shown = [f"{snapshot.states[s]:,} {s}" for s in order if snapshot.states[s]]
    return ", ".join(shown) or "none"


def progress_line(snapshot: Snapshot) -> str:
    """The run at a glance, on one line."""
    return SEPARATOR.join(_progress(snapshot))


def _progress(snapshot: Snapshot) -> list[str]:
    total = len(snapshot.agents)
    parts = [f"[{duration(snapshot.elapsed_s)}] {counted(total, 'agent')}: {states(snapshot)}"]
    if snapshot.steps_quota:
        parts.append(
            f"{snapshot.steps:,}/{snapshot.steps_quota:,} steps ({snapshot.done_share:.0%})"
        )
    else:
        parts.append(f"{snapshot.steps:,} steps")
    if snapshot.steps_per_s is not None:
        parts.append(f"{amount(snapshot.steps_per_s, 0)} steps/s")
    if snapshot.episodes_quota:
        parts.append(f"{snapshot.episodes:,}/{snapshot.episodes_quota:,} episodes")
    else:
        parts.append(counted(snapshot.episodes, "episode"))
    if snapshot.mean_return is not None:
        parts.append(f"recent return {amount(snapshot.mean_return)}")
    parts.append(counted(snapshot.deaths, "death"))
    if snapshot.failovers:
        parts.append(counted(snapshot.failovers, "failover"))
    if snapshot.eta_s is not None and snapshot.done_share < 1:
        parts.append(f"{duration(snapshot.eta_s)} left")
    return parts


def folded(parts: Iterable[str], width: int) -> str:
    """The parts of a line on as many lines as it takes, each broken between two parts."""
    lines: list[str] = []
    for part in parts:
        if lines and len(longer := f"{lines[-1]}{SEPARATOR}{part}") <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def progress_table(snapshot: Snapshot, width: int) -> RenderableType:
    """The run at a glance, for a terminal of `width` columns: a row for each agent or group, and
    the sums."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("agent")
    table.add_column("state")
    for name in ("steps", "episodes", "return"):
        table.add_column(name, justify="right")
    for row in _rows(snapshot.agents):
        style = "red" if "quarantined" in row[1] else ""
        # As Text, for a name may look like markup.
        table.add_row(Text(shortened(row[0], NAME_CELLS_MAX)), *row[1:], style=style)
    done = round(BAR_WIDTH * snapshot.done_share)
    bar = Text.assemble(("━" * done, "green"), ("━" * (BAR_WIDTH - done), "dim"))
    return Group(table, bar, Text(folded(_progress(snapshot), width), overflow="fold"))


def shortened(name: str, cells: int) -> str:
    """A name that takes at most so many cells of a terminal, where a character may take two: its
    beginning and its end, for agents of one entry differ in their last characters."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(name) <= cells:
        return name
    tail, rest = "", (cells - 1) // 3
    for char in reversed(name):
        if (rest := rest - cell_len(char)) < 0:
            break
        tail = char + tail
    return set_cell_size(name, cells - 1 - cell_len(tail)).rstrip() + "…" + tail


def _rows(agents: tuple[AgentReport, ...]) -> Iterator[tuple[str, str, str, str, str]]:
    if len(agents) <= ROWS_MAX:
        for agent in agents:
            mean = amount(agent.returns_last) if agent.episodes else "-"
            yield agent.name, agent.state, f"{agent.steps:,}", f"{agent.episodes:,}", mean
        return
    groups: dict[str, list[AgentReport]] = {}
    for agent in agents:
        groups.setdefault(agent.group, []).append(agent)
    shown = list(groups.items())
    for name, members in shown[:ROWS_MAX]:
        yield _group_row(f"{name} x {len(members):,}", members)
    rest = [member for _, members in shown[ROWS_MAX:] for member in members]
    if rest:
        yield _group_row(f"{len(shown) - ROWS_MAX:,} more entries", rest)


def _group_row(name: str, members: list[AgentReport]) -> tuple[str, str, str, str, str]:
    counts: dict[str, int] = {}
    for member in members:
        counts[member.state] = counts.get(member.state, 0) + 1
    returns = [member.returns_last for member in members if member.episodes]
    return (
        name,
        ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items())),
        f"{sum(member.steps for member in members):,}",
        f"{sum(member.episodes for member in members):,}",
        amount(sum(returns) / len(returns)) if returns else "-",
    )


def death_lines(death: Death, advice: str, log: str) -> list[str]:
    """A death as a person reads it: cause first, what was last seen, what to do."""
    role = death.role.name.lower()
    lines = [f"DEATH {death.agent} {role} (pid {death.pid}): {_indented(death.cause)}"]

    def item(name: str, value: str) -> None:
        if value:
            lines.append(f"  {name:<12} {value}")

    item("phase", death.phase.name.lower() if death.phase else "")
    item("sequence", f"{death.seq_last:,}" if death.seq_last >= 0 else "")
    item("last action", death.action_last)
    item("fault at", death.fault_address)
    if death.rss_peak_bytes:
        limit = f" of {_mib(death.memory_limit_bytes)}" if death.memory_limit_bytes else ""
        item("peak memory", _mib(death.rss_peak_bytes) + limit)
    if death.error is not None and death.error.traceback:
        lines += _block("traceback", death.error.traceback.splitlines())
    elif shown := stderr_lines(_without_our_traceback(death)):
        lines += _block("stderr", shown)
    item("log", log)
    item("what to do", advice)
    return lines


def failover_line(failover: Failover) -> str:
    """A failover on one line: who, why, how it went on, and how long it was away."""
    told, role = failover.death, failover.role.name.lower()
    seq = f" after record {failover.seq:,}" if failover.seq >= 0 else ""
    if failover.exact:
        replayed = counted(failover.replayed, "step")
        # A policy's or reward's answers are compared while it serves: a note tells if they differ.
        how = "exactly" if role == "env" else "with its state"
        went_on = f"went on {how} ({failover.level}, {replayed} replayed)"
    else:
        why = "the same step was fatal twice" if failover.poisoned else failover.why
        went_on = _ENDED if role == "env" else "went on, but not exactly"
        went_on += f" ({printable(why)})" if why else ""
    cause = _indented(told.cause).partition("\n")[0]
    return f"FAILOVER {failover.agent} {role}: {cause}{seq}; {went_on}; {failover.total_ms:.1f} ms"


def protection_lines(agent: AgentReport) -> list[str]:
    """How the state of an agent's environment would be kept, and why so."""
    told = next((p for role, p in agent.protection.items() if role.name == "ENV"), None)
    if told is None:
        return []
    level = f"{told.level} ({told.codec})" if told.codec not in ("", told.level) else told.level
    after = f", about {told.recovery_ms:.2g} ms" if told.recovery_ms else ""
    lines = [f"{agent.name}: after a death of its environment: {level}{after}"]
    return lines + [f"  {printable(note)}" for note in told.notes]


def stderr_lines(tail: str) -> list[str]:
    """The lines of a runner's stderr that say most: the last ones, or those where the stacks of a
    fatal signal or of a hang begin, for these list the innermost call first."""
    lines = tail.splitlines()
    return _stack_lines(lines) or lines[-STDERR_LINES_MAX:]


def _stack_lines(lines: list[str]) -> list[str]:
    shown: list[str] = []
    for mark in ("dsec: fatal signal", "Fatal Python error"):
        begins = [i for i, line in enumerate(lines) if line.startswith(mark)]
        if begins:
            shown += lines[begins[-1] :][:STACK_LINES_MAX]
    if shown:
        return shown
    begins = [i for i, line in enumerate(lines) if line.startswith(_PYTHON_STACK)]
    return lines[begins[-1] :][:STACK_LINES_MAX] if begins else []


def _without_our_traceback(death: Death) -> str:
    """The stderr of a runner, without the traceback of an error whose message says it all.

    Such an error is the runner's own, about what user code returned: the calls that led to it are
    none that the user could mend, and they push out what the user's code wrote.
    """
    if death.error is None:
        return death.stderr_tail
    before, mark, _ = death.stderr_tail.rpartition("Traceback (most recent call last):\n")
    if mark:
        return before
    return "" if death.error.message in death.stderr_tail else death.stderr_tail


def _block(name: str, texts: Iterable[str]) -> list[str]:
    return [f"  {name}", *(f"    | {printable(text)}" for text in texts)]


def printable(text: str) -> str:
    """One line of somebody else's output, with control characters shown and not obeyed."""
    return "".join(
        c if c.isprintable() else "    " if c == "\t" else c.encode("unicode_escape").decode()
        for c in text
    )


def _indented(text: str) -> str:
    """A message that may have several lines, and whatever else user code put in it."""
    return "\n    ".join(map(printable, text.split("\n")))


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def error_lines(error: DsecError) -> list[str]:
    """What went wrong, and what to do: for a ConfigError exactly one line for each mistake."""
    if isinstance(error, ConfigError):
        lines = []
        for problem in error.diagnostics:
            lines.append(_indented(str(problem)))
            detail = problem.detail.splitlines()
            lines += [f"    {printable(text)}" for text in _stack_lines(detail) or detail]
        return lines
    if isinstance(error, MachineError):
        lines = [f"dsec-kernel: {_indented(error.problem)}"]
        return lines + ([f"  {error.remedy}"] if error.remedy else [])
    lines = [f"dsec-kernel: {_indented(str(error))}"]
    return lines + [f"  {printable(text)}" for text in getattr(error, "detail", "").splitlines()]


def _memory_line(memory: dict[str, Any]) -> list[str]:
    """What an agent takes of the machine; nothing where the run was too short to look."""
    mean, most = memory["agent_pss_bytes"], memory["agent_pss_peak_bytes"]
    if mean is None:
        return []
    roles = ", ".join(f"{role} {_mib(size)}" for role, size in memory["role_pss_bytes"].items())
    parts = [f"memory of an agent {_mib(mean)} ({roles})"]
    if memory["agents_sampled"] > 1:
        parts.append(f"at most {_mib(most)} ({memory['agent_pss_peak']})")
    own = memory["supervisor_rss_peak_bytes"]
    parts += [f"supervisor {_mib(own)}"] if own is not None else []
    return [" | ".join(parts)]


def outcome_lines(outcome: Outcome) -> list[str]:
    """How a run ended, in a few lines."""
    numbers, report = outcome.totals, outcome.report
    if report is None or numbers["run_dir"] is None:
        return []  # nothing was run
    quarantined = [a.name for a in report.agents.values() if a.state == "quarantined"]
    word = "interrupted" if report.drained else "ended early" if report.failure else "done"
    if quarantined and word == "done":
        word = f"ended with {len(quarantined):,} quarantined"
    speed = f"{amount(numbers['steps_per_s'], 0)} steps/s"
    episodes_per_s = f"{amount(numbers['episodes_per_s'])} episodes/s"
    done = f"{counted(numbers['steps'], 'step')}, {counted(numbers['episodes'], 'episode')}"
    took = f"{duration(numbers['seconds'])} ({speed}, {episodes_per_s})"
    faults = f"{counted(numbers['deaths'], 'death')} | {numbers['lost']:,} lost"
    lines = [
        f"{word}: {counted(numbers['agents'], 'agent')}, {done} in {took}",
        f"mean return {amount(numbers['mean_return'])} | {faults}",
        *_memory_line(numbers["memory"]),
    ]
    if numbers["failovers"]:
        lines.append(failovers_line(numbers, report))
    if quarantined:
        more = f" and {len(quarantined) - 8:,} more" if len(quarantined) > 8 else ""
        lines.append(f"quarantined: {', '.join(quarantined[:8])}{more}")
    for name, values in numbers.get("metrics", {}).items():
        shown = ", ".join(f"{key} {metric(value)}" for key, value in values.items())
        lines.append(f"{name}: {shown}")
    if report.drained or report.failure:
        lines.append(f"go on with: dsec-kernel run --resume {numbers['run_dir']}")
    files = f" ({', '.join(report.files[:4])}{', …' if len(report.files) > 4 else ''})"
    lines.append(f"{numbers['run_dir']}{files if report.files else ''}")
    return lines


def failovers_line(numbers: dict[str, Any], report: RunReport) -> str:
    """All failovers of a run: how many, how long, how many of them exact."""
    took = numbers["failover_ms"]
    exact = sum(each.exact for each in report.failovers)
    ended = sum(not each.exact and each.role.name == "ENV" for each in report.failovers)
    count = counted(numbers["failovers"], "failover")
    times = f"p50 {amount(took['p50'])} ms, p99 {amount(took['p99'])} ms"
    parts = [f"{count}: {times}", f"{exact:,} exact"]
    if ended:
        parts.append(f"{counted(ended, 'episode')} ended by infrastructure")
    if others := len(report.failovers) - exact - ended:
        parts.append(f"{others:,} not exact")
    return "; ".join(parts)
