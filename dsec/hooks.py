"""What the kernel tells to whoever uses it: the callbacks of a run. Types only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dsec.ipc.frames import Role
from dsec.ipc.segment import Segment
from dsec.report import AgentReport, Death, Failover, RunReport


class Hooks(Protocol):
    """What the supervisor tells while it runs, always from its loop. An exception that comes out
    of a hook ends the run. Inherit from it and override what you need."""

    def agent(self, report: AgentReport) -> None:
        """The agent's `state` is new."""

    def death(self, death: Death) -> None:
        """A runner died; the cause is complete, and its agent's other runners are fenced."""

    def failover(self, failover: Failover) -> None:
        """A role that was lost goes on."""

    def progress(self, report: RunReport) -> None:
        """Totals in the report are new; at most a few times a second."""

    def wired(self, agent: str, segments: Mapping[Role, Segment], spaces: bytes) -> bool:
        """An agent with external roles has its segments: attach now, for Go may follow at once.
        The descriptors stay the kernel's: duplicate what outlives this call. Return whether an
        external policy reads the reward ring (see `Go.policy_learns`)."""
        return False

    def disk(self, state: str, message: str) -> None:
        """What became of the recorder's writing, and why. `state` is `full` (it waits for room),
        `ok` (it had to wait and goes on), `lasting` (it has given up: the recording ends there) or
        `lost` (what was recorded isn't there any more)."""

    def note(self, event: str, **fields: Any) -> None:
        """Something for the log, such as a zygote's restart."""
