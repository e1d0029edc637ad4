"""Mutants of the kernel's shell: fences, reaping, epochs, descriptors, cells of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsec.engine.attendant import AttendantServer
from dsec.engine.recorder import Recorder
from dsec.ipc import segment
from dsec.kernel.agent import Agent
from dsec.kernel.machine import (
    AGENT,
    RUNNER,
    AgentEvent,
    AgentState,
    RunnerEvent,
    RunnerState,
)
from dsec.kernel.reap import Reaper
from dsec.kernel.recovery import Recovery
from dsec.kernel.runner import Runner
from dsec.kernel.spawn import Server, Zygote
from tests.simulation.machine import Machine
from tests.simulation.mutants import cell, instead, mutant, nothing


@mutant
def fence_missing() -> Iterator[None]:
    """Nobody is killed."""

    def act(original: Any, self: Runner, action: str) -> None:
        if action != "kill":
            original(self, action)

    with instead(Runner, "_act", act):
        yield


@mutant
def crash_counts_as_fenced() -> Iterator[None]:
    """Who says that it crashes is taken for one that writes nothing more."""
    with nothing(Reaper, "past_writing", True):
        yield


@mutant
def other_threads_forgotten() -> Iterator[None]:
    """Only the first thread of one that ends is looked at."""
    with instead(
        Reaper,
        "past_writing",
        lambda call, self, pid: pid in self._watched and self._system.read_stat(pid).exiting,
    ):
        yield


@mutant
def generation_reused() -> Iterator[None]:
    """A successor writes under the epoch of the first one."""

    def make(original: Any, self: Agent, role: Any) -> Any:
        runner = original(self, role)
        self._epochs[role] = 1
        return runner

    with instead(Agent, "make", make):
        yield


@mutant
def kept_not_handed_on() -> Iterator[None]:
    """A successor doesn't get what its predecessor had kept."""

    def take_over(original: Any, self: Recovery, role: Any, truncate: bool) -> None:
        seat = self._seats[role]
        kept, seat.kept = seat.kept, segment.Segment(-1, 0, 0, 0)
        original(self, role, truncate)
        seat.kept = seat.handed = kept

    with instead(Recovery, "_take_over", take_over):
        yield


@mutant
def rings_made_anew() -> Iterator[None]:
    """A successor gets new rings, and with them no records and no cursors."""

    def take_over(original: Any, self: Recovery, role: Any, truncate: bool) -> None:
        agent = self._agent
        old = agent.segments[role]
        new = self._run.system.create_segment(f"dsec:{agent.name}:x", role, 4096, epoch=0)
        agent.segments[role] = new
        old.close()
        original(self, role, truncate)

    with instead(Recovery, "_take_over", take_over):
        yield


@mutant
def exit_not_told() -> Iterator[None]:
    """A child is reaped, and its runner not told."""
    with nothing(Runner, "_on_exit"):
        yield


@mutant
def pidfd_leaks() -> Iterator[None]:
    """The pidfd of a dead child stays open."""

    def ended(original: Any, self: Reaper, pid: int) -> None:
        fd = self._watched[pid][0]
        close, self._system.close = self._system.close, lambda each: each == fd or close(each)
        try:
            original(self, pid)
        finally:
            del self._system.close

    with instead(Reaper, "_ended", ended):
        yield


@mutant
def segments_leak() -> Iterator[None]:
    """Those of an agent that has ended stay open."""
    with instead(Agent, "_close_segments", lambda call, self: self.segments.clear()):
        yield


@mutant
def kept_leaks() -> Iterator[None]:
    """What an agent's roles kept stays open."""
    with nothing(Recovery, "release"):
        yield


@mutant
def handed_descriptors_leak() -> Iterator[None]:
    """What was sent stays open here."""
    with nothing(Machine, "close_all"):
        yield


@mutant
def drain_lost() -> Iterator[None]:
    """Who is to drain is not told."""
    with nothing(Agent, "drain"):
        yield


@mutant
def orphans_not_reaped() -> Iterator[None]:
    """Nobody looks for what comes to a subreaper."""
    with nothing(Reaper, "sweep"):
        yield


@mutant
def orphans_not_killed() -> Iterator[None]:
    """At the end only those are killed who are watched."""

    def kill_all(original: Any, self: Reaper) -> list[int]:
        for pid in self._watched:
            self.kill(pid)
        return [*self._watched]

    with instead(Reaper, "kill_all", kill_all):
        yield


@mutant
def zygote_not_started_again() -> Iterator[None]:
    """A zygote that died is not replaced."""
    with instead(
        Server,
        "start",
        lambda call, self: None if isinstance(self, Zygote) and self.was_up else call(self),
    ):
        yield


@mutant
def forks_of_a_dead_zygote_lost() -> Iterator[None]:
    """What it had been asked for is not asked of the next one."""
    with instead(
        Zygote, "left", lambda call, self, runner: self._asked.clear() or call(self, runner)
    ):
        yield


@mutant
def recorder_not_told_again() -> Iterator[None]:
    """One that was started again is told of no agent."""
    with instead(
        AttendantServer, "serving", lambda call, self: None if self._epoch > 0 else call(self)
    ):
        yield


@mutant
def abandon_not_said() -> Iterator[None]:
    """The recorder is not told that a stream will have no end."""
    with nothing(Recorder, "settle"):
        yield


@mutant
def spares_outlive_their_agent() -> Iterator[None]:
    """An agent is over while a spare of it lives."""
    with instead(Agent, "_look_gone", lambda call, self: self._living.clear() or call(self)):
        yield


@mutant
def others_not_fenced() -> Iterator[None]:
    """A fault of one runner leaves the agent's others alone."""
    states, cells = AgentState, (AgentState.FENCING, ())
    with (
        cell(AGENT, states.RUNNING, AgentEvent.FAULT, cells),
        cell(AGENT, states.RECOVERING, AgentEvent.FAULT, cells),
    ):
        yield


@mutant
def late_fault_swapped() -> Iterator[None]:
    """A fault in close ends what the others still do, and any other doesn't."""
    row = AGENT[AgentState.RECOVERING]
    fault, late = row[AgentEvent.FAULT], row[AgentEvent.FAULT_LATE]
    with (
        cell(AGENT, AgentState.RECOVERING, AgentEvent.FAULT, late),
        cell(AGENT, AgentState.RECOVERING, AgentEvent.FAULT_LATE, fault),
    ):
        yield


@mutant
def exit_in_running_unseen() -> Iterator[None]:
    """A cell is empty: who runs and exits with 0 was never lost."""
    with cell(RUNNER, RunnerState.RUNNING, RunnerEvent.EXIT_OK, (RunnerState.GONE, ("leave",))):
        yield


@mutant
def takeover_skips_the_fence() -> Iterator[None]:
    """A cell is wrong: who takes over runs at once."""
    with cell(
        RUNNER, RunnerState.TAKING, RunnerEvent.TAKEN_OVER, (RunnerState.RUNNING, ("taken",))
    ):
        yield


@mutant
def corrupt_recording_ignored() -> Iterator[None]:
    """The recorder can't read a ring, and nothing follows."""
    with nothing(Agent, "corrupt"):
        yield
