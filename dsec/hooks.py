"""What the kernel tells to whoever uses it, the callbacks of a run; and what it asks of the servers
that are handed to it. Types only."""

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

    def away(self, agent: str, role: Role) -> None:
        """A role was lost, and is about to be replaced; `failover` follows when that is done."""
        return

    def failover(self, failover: Failover) -> None:
        """A role that was lost goes on."""

    def kept(self, agent: str, role: Role, kept: Segment) -> None:
        """A role keeps its state in this memory file from now on, the kernel's to close."""
        return

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


class Attendant(Protocol):
    """A server that reads the rings of every agent, in a process of its own: the recorder, say. The
    kernel knows when it is to do what, and nothing of what it is good for. An agent goes only when
    all of them have taken up its rings (`Agent.wired`), and is closed when all have had what they
    want of it (`Agent.served`)."""

    name: str
    role: Role

    @property
    def holds_back(self) -> bool:
        """Agents may have to wait for it at the moment, and are not to blame."""

    @property
    def alive(self) -> bool:
        """There is a process of it."""

    def start(self) -> None:
        """Begin; the images are about to be."""

    def wire(self, agent: str) -> None:
        """An agent has its segments. Where the server isn't up yet it takes them when it is."""

    def kept(self, agent: str, role: Role, kept: Segment) -> None:
        """A role keeps its state in this memory file from now on, the kernel's to close."""

    def settle(self, agent: str) -> None:
        """All runners of an agent are gone: take what there is (see `Agent.abandoned`)."""

    def finish(self) -> None:
        """All agents have ended: come to an end, too, and call `leave` then. May be said again."""

    def tick(self) -> None:
        """A few times a second."""

    def hang_up(self) -> None:
        """Nobody waits for it any more: end its channel."""

    def close(self, reason: str) -> None:
        """Kill it."""

    def release(self) -> None:
        """Close every descriptor; a second time does nothing."""
