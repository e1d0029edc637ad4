"""Where a run shows itself, and what of what the kernel tells is shown there.

Owns the decision which deaths are told as such: those that will turn out to be mistakes in the
configuration are told as those, later and elsewhere. Knows no terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dsec.engine.advice import advice
from dsec.engine.diagnose import always_a_mistake, group_began, may_be_a_mistake
from dsec.engine.progress import Snapshot
from dsec.report import AgentReport, Death, Failover, RunReport

if TYPE_CHECKING:
    from dsec.spec import RunSpec


class View(Protocol):
    """Where a run shows itself. Called from the supervisor's loop: return soon, never raise."""

    interval_s: float

    def begin(self, run_dir: str, agents: int, seed: int) -> None:
        """The run directory is claimed; processes start now."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """The run at a glance, every `interval_s`, and once at the end."""

    def death(self, death: Death, advice: str, log: str) -> None:
        """A runner died. `advice` is one sentence, or empty; `log` the file of its stderr."""

    def failover(self, failover: Failover) -> None:
        """A role that was lost goes on."""

    def log(self, level: str, event: str, **fields: Any) -> None:
        """Something to be noted; `level` is debug, info, warning or error."""


_DISK = {
    "full": ("warning", "disk full: recording waits"),
    "ok": ("info", "disk: recording goes on"),
    "lasting": ("error", "disk full: recording has ended"),
    "lost": ("error", "the recording is gone"),
}


def make_hooks(view: View, spec: RunSpec) -> Any:
    """The kernel's hooks that lead to a view."""
    from dsec.hooks import Hooks
    from dsec.ipc.logs import file_name

    logs = Path(spec.run_dir) / "logs"

    class ViewHooks(Hooks):
        """Passes what the kernel tells on to the view.

        Deaths that will turn out to be mistakes in the configuration are not told as deaths; those
        of which that is open yet are told as soon as an agent of the same entry steps.
        """

        def __init__(self) -> None:
            self._held: list[Death] = []
            self._told: set[tuple[int, str]] = set()

        def agent(self, report: AgentReport) -> None:
            view.log("debug", "agent", name=report.name, state=report.state)

        def death(self, death: Death) -> None:
            if may_be_a_mistake(death, dry=spec.dry):
                self._held.append(death)
            elif not always_a_mistake(death):
                self._tell(death)

        def failover(self, failover: Failover) -> None:
            view.failover(failover)

        def progress(self, report: RunReport) -> None:
            for death in [death for death in self._held if group_began(report, death)]:
                self._held.remove(death)
                if not always_a_mistake(death):
                    self._tell(death)

        def _tell(self, death: Death) -> None:
            if (death.pid, death.cause) in self._told:
                return  # an image that broke takes all its agents along, and they may be hundreds
            self._told.add((death.pid, death.cause))
            name = f"{file_name(death.agent)}.{death.role.name.lower()}.err"
            # What a dry run writes is gone when somebody looks for it.
            view.death(death, advice(death), "" if spec.dry else str(logs / name))

        def disk(self, state: str, message: str) -> None:
            level, event = _DISK[state]
            view.log(level, event, **({"reason": message} if message else {}))

        def note(self, event: str, **fields: Any) -> None:
            view.log("info", event, **fields)

    return ViewHooks()
