"""The run in numbers, for `summary.json` and for `--json`, and the exit code that it earns. Pure.

The keys of `totals` are a promise to whoever reads them with a program: they are all there, in
every case, and a number that doesn't exist is null and never 0 or NaN.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from dsec.engine.footprint import Ledger
from dsec.errors import ConfigError, DsecError, MachineError
from dsec.report import AtomsReport, Death, Failover, RunReport


class Exit(enum.IntEnum):
    """Exit codes of `dsec-kernel`."""

    DONE = 0
    AGENTS_FAILED = 1
    CONFIG = 2
    MACHINE = 3
    INTERNAL = 70
    INTERRUPTED = 130


def exit_code(report: RunReport) -> Exit:
    """The exit code of a run that came to its end, by itself or not."""
    if report.failure:
        kinds = {"config": Exit.CONFIG, "machine": Exit.MACHINE}
        return kinds.get(report.failure_kind, Exit.INTERNAL)
    if report.drained:
        return Exit.INTERRUPTED
    if any(agent.state != "done" for agent in report.agents.values()):
        return Exit.AGENTS_FAILED
    if report.atoms is not None and report.atoms.lost:
        return Exit.AGENTS_FAILED
    return Exit.DONE


def totals(
    report: RunReport | None, run_dir: str | None, ledger: Ledger | None = None
) -> dict[str, Any]:
    """The run as one flat object; `report` is None where no run came about."""
    agents = list(report.agents.values()) if report is not None else []
    steps = sum(agent.steps for agent in agents)
    before = sum(agent.before for agent in agents)
    episodes = sum(agent.episodes for agent in agents)
    returned = sum(agent.return_sum for agent in agents)
    seconds = report.seconds if report is not None else 0.0
    took_ms = [each.total_ms for each in report.failovers] if report is not None else []
    result: dict[str, Any] = {
        "agents": len(agents),
        "steps": steps,
        "episodes": episodes,
        "seconds": round(seconds, 6),
        "steps_per_s": _number((steps - before) / seconds) if seconds > 0 else None,
        "episodes_per_s": _number(episodes / seconds) if seconds > 0 and not before else None,
        "mean_return": _number(returned / episodes) if episodes else None,
        "deaths": len(report.deaths) + len(took_ms) if report is not None else 0,
        "failovers": len(took_ms),
        "recycled": sum(agent.recycled for agent in agents),
        "failover_ms": {"p50": percentile(took_ms, 0.5), "p99": percentile(took_ms, 0.99)},
        "lost": sum(agent.lost for agent in agents),
        "quarantined": sum(agent.state == "quarantined" for agent in agents),
        "memory": (ledger or Ledger()).totals(),
        "atoms": _atoms(report.atoms) if report is not None else None,
        "run_dir": run_dir,
    }
    metrics = {
        agent.name: {name: _number(value) for name, value in sorted(agent.metrics.items())}
        for agent in agents
        if agent.metrics
    }
    if metrics:
        result["metrics"] = metrics
    return result


def details(report: RunReport, ledger: Ledger | None = None) -> dict[str, Any]:
    """What `summary.json` holds beyond the totals: every agent, every death."""
    peaks = ledger.peak if ledger is not None else {}
    return {
        "agents_by_name": {
            agent.name: {
                "state": agent.state,
                "steps": agent.steps,
                "episodes": agent.episodes,
                "mean_return": (
                    _number(agent.return_sum / agent.episodes) if agent.episodes else None
                ),
                "lost": agent.lost,
                "chain": agent.chain or None,
                "pss_peak_bytes": peaks.get(agent.name),
                "failovers": agent.failovers,
                "recycled": agent.recycled,
                "pinned": {
                    role.name.lower(): pinned
                    for role, pinned in sorted(agent.pinned.items())
                    if pinned
                },
                "not_enforced": {
                    role.name.lower(): list(said)
                    for role, said in sorted(agent.open.items())
                    if said
                },
                "atom_seq": report.atoms.seq.get(agent.name) if report.atoms is not None else None,
                "protection": {
                    role.name.lower(): msgspec.to_builtins(protection)
                    for role, protection in sorted(agent.protection.items())
                },
            }
            for agent in report.agents.values()
        },
        "deaths_in_order": [_death(death) for death in report.deaths],
        "failovers_in_order": [failover_object(each) for each in report.failovers],
        "files": list(report.files),
        "interrupted": report.drained,
    }


def _atoms(atoms: AtomsReport | None) -> dict[str, Any] | None:
    """What became of Agent State Atoms; None where the run had no pool."""
    if atoms is None:
        return None
    return {
        "captured": atoms.captured,
        "captured_bytes": atoms.captured_bytes,
        "kept": atoms.kept,
        "kept_bytes": atoms.kept_bytes,
        "on_disk": atoms.spilled,
        "missing": {name: list(roles) for name, roles in sorted(atoms.missing.items())},
        "problem": atoms.lost or atoms.problem or None,
    }


def _death(death: Death) -> dict[str, Any]:
    return {
        "agent": death.agent,
        "role": death.role.name.lower(),
        "pid": death.pid,
        "cause": death.cause,
        "kind": death.kind,
        "signal": death.signal_name or None,
        "exit_code": death.exit_code if death.exit_code >= 0 else None,
        "phase": death.phase.name.lower(),
        "seq_last": death.seq_last if death.seq_last >= 0 else None,
        "action_last": death.action_last or None,
        "rss_peak_bytes": death.rss_peak_bytes or None,
        "memory_limit_bytes": death.memory_limit_bytes or None,
        "fault_address": death.fault_address or None,
        "stderr_tail": death.stderr_tail,
        "traceback": death.error.traceback if death.error is not None else None,
    }


def failover_object(failover: Failover) -> dict[str, Any]:
    """One failover as the event that it is for programs; milliseconds to the microsecond."""
    return {
        "agent": failover.agent,
        "role": failover.role.name.lower(),
        "epoch": failover.epoch,
        "level": failover.level,
        "exact": failover.exact,
        "why": failover.why or None,
        "poisoned": failover.poisoned,
        "seq": failover.seq if failover.seq >= 0 else None,
        "action_last": failover.action_last or None,
        "replayed": failover.replayed,
        "ms": {
            "detect": None if failover.detect_ms is None else round(failover.detect_ms, 3),
            "fence": round(failover.fence_ms, 3),
            "restore": round(failover.restore_ms, 3),
            "replay": round(failover.replay_ms, 3),
            "total": round(failover.total_ms, 3),
        },
        "tried": list(failover.tried),
        "death": _death(failover.death),
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below or at which `share` of them lie (the nearest rank); None of nothing."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 3)


def _number(value: float) -> float | None:
    """A number that JSON has, or None."""
    return round(value, 6) if math.isfinite(value) else None


def error_object(error: DsecError | None, code: int) -> dict[str, Any] | None:
    """An error for programs, with the exit code that it means; None if there is none."""
    if error is None:
        return None
    result: dict[str, Any] = {"exit_code": code, "message": str(error)}
    if isinstance(error, ConfigError):
        result["kind"] = "config"
        result["diagnostics"] = [
            {
                "file": problem.file,
                "line": problem.line or None,
                "column": problem.column or None,
                "path": problem.path,
                "message": problem.message,
            }
            for problem in error.diagnostics
        ]
    else:
        result["kind"] = "machine" if isinstance(error, MachineError) else "internal"
    return result
