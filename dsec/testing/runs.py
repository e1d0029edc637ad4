"""Runs of a configuration in a kernel of their own, for those who compare them.

Owns starting one, waiting for its end with a limit, and what it left behind: its summary and the
planned faults that happened. What is made of it is check.py's and chaos.py's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec.config import Fault
from dsec.engine import SyncEngine
from dsec.engine.plan import CHAOS_FOLDER, fault_folder, pool_name
from dsec.errors import DsecError
from dsec.ipc.frames import Phase, PlannedFault
from dsec.runners.chaos import evidence_name
from dsec.testing import leaks


class RunTooLong(DsecError):
    """A run did not end within its limit; it was ended."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended.

    Attributes:
        code: its exit code.
        summary: what is in summary.json; empty where there was no run.
        error: what was wrong with the run as a whole, as `--json` has it; None if nothing was.
        left: sentences on what was there afterwards: processes, shared memory, descriptors.
    """

    code: int
    run_dir: Path
    summary: dict[str, Any] = field(repr=False)
    error: dict[str, Any] | None = None
    left: tuple[str, ...] = ()

    @property
    def agents(self) -> dict[str, Any]:
        """By name, as summary.json has them."""
        found: dict[str, Any] = self.summary.get("agents_by_name", {})
        return found

    @property
    def chains(self) -> dict[str, str | None]:
        """The hash chain of each agent at its end."""
        return {name: agent["chain"] for name, agent in self.agents.items()}

    @property
    def failovers(self) -> list[dict[str, Any]]:
        """In the order in which they were done."""
        found: list[dict[str, Any]] = self.summary.get("failovers_in_order", [])
        return found

    def happened(self, fault: Fault) -> dict[str, Any] | None:
        """What a planned fault left: the record that it came at (`seq`), its process and its time;
        None if it did not happen."""
        planned = PlannedFault(
            fault.kind, Phase[fault.phase.upper()], fault.step, fault.instant == "after"
        )
        folder = self.run_dir / CHAOS_FOLDER / fault_folder(fault.agent, fault.role)
        try:
            found: dict[str, Any] = json.loads((folder / evidence_name(planned)).read_text())
        except FileNotFoundError:
            return None
        except ValueError:  # it was killed from outside in the middle of it
            return {}
        return found


def run(config: Path, out: Path, *, set: Sequence[str] = (), limit_s: float) -> Ran:
    """Run a configuration to its end, in a kernel that is gone afterwards with all that it had.

    Args:
        config: the file.
        out: its run directory, which does not exist yet.
        set: changes, as `--set` has them.
        limit_s: how long it may take.

    Raises:
        RunTooLong: it was ended.
        EngineRefused: the configuration is wrong; says where.
        EngineDied, MachineError: the kernel can't be started.
    """
    with leaks.marked_work() as before:
        with SyncEngine.spawn(events=("event.ended",)) as engine:
            started = engine.run_start(str(config), set=set, out=str(out))
            if next(engine.events(limit_s), None) is None:
                engine.run_stop(started.run, kill=True)
                raise RunTooLong(f"the run in {out} was not done after {limit_s:g} s")
            status = engine.run_status(started.run)
        # Of shared memory only this run's is looked for: others may run beside it.
        own = pool_name("", str(out))
        left = leaks.settled(
            lambda: [e for e in before.leaks() if not e.startswith(leaks.SHARED) or own in e]
        )
    path = out / "summary.json"
    summary = json.loads(path.read_text()) if path.exists() else {}
    assert status.exit_code is not None, "it has ended"
    return Ran(status.exit_code, out, summary, status.error, tuple(left))
