"""Faults of the kernel that the simulation has found, each as a short history of its own.

A seed means something else when the simulation changes, so none is pinned: a watcher does what the
seed once did, at the moment at which it mattered.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from dsec.ipc import frames
from dsec.ipc.frames import Role
from tests.simulation.env import EnvRunner
from tests.simulation.recorder import RecorderProcess
from tests.simulation.run import Outcome, simulate
from tests.simulation.runners import Runner
from tests.simulation.world import World


class Watcher:
    """Does something once, when the world is as it should be for that."""

    def __init__(self, world: World) -> None:
        self.world, self.done = world, False
        world.machine.watched_by(self)

    def once(self) -> bool:
        """Whether this is the first time."""
        first, self.done = not self.done, True
        return first


def played(watcher: type[Watcher]) -> tuple[Outcome, World]:
    """A run in which this watcher has its moment; of those that the seeds describe, the first."""
    worlds: list[Watcher] = []
    for seed in range(200):
        outcome = simulate(seed, kinds=(), watch=lambda world: worlds.append(watcher(world)))
        if worlds[-1].done:
            return outcome, worlds[-1].world
    raise AssertionError("no world in which that could happen")


class SaysPrepared(Watcher):
    """A runner that is being wired says what only a zygote may."""

    def on_got(self, process: Any, frame: Any, things: list[Any]) -> None:
        if isinstance(frame, frames.Wire) and isinstance(process, EnvRunner) and self.once():
            self.world.touch(process)
            process.send(frames.Prepared("base"))


@pytest.mark.guarantee("G9")
def test_a_runner_can_not_pass_for_a_zygote() -> None:
    """It was taken for ready, without a Ready; that was an exception in the supervisor."""
    outcome, _ = played(SaysPrepared)
    assert not outcome.violations
    assert outcome.report is not None
    causes = [death.cause for death in outcome.report.deaths]
    assert "broke the protocol: sent Prepared out of turn, killed" in causes


class NoDescriptor(Watcher):
    """The moment at which a successor is to take over finds no descriptor left."""

    def on_sent(self, process: Any, frame: Any) -> None:
        if isinstance(frame, frames.Kept) and process.role is Role.ENV and self.once():
            self.world.machine.loop.after(0.5, self.strike, process)

    def strike(self, process: EnvRunner) -> None:
        self.world.whole = False
        self.world.touch(process)
        process.signal(signal.SIGKILL)
        self.world.machine.refuse["reopen"] = 1


@pytest.mark.guarantee("G6", "G8")
def test_a_takeover_without_descriptors_ends_the_run_and_leaks_nothing() -> None:
    """The lost one's death was not complete for ever, and what had been opened stayed open."""
    outcome, world = played(NoDescriptor)
    assert not outcome.violations
    assert not world.machine.refuse["reopen"], "it was refused"
    assert outcome.report is not None and outcome.report.failure_kind == "machine"
    assert outcome.virtual_s < 30


class CorruptAfterTheEnd(Watcher):
    """The recorder finds that it can't read a ring when its writer has left already."""

    def on_died(self, process: Any) -> None:
        recorders = self.world.living(RecorderProcess)
        if not (isinstance(process, Runner) and process.ended and recorders) or self.done:
            return
        alive = [each for each in self.world.living(Runner) if each.agent is process.agent]  # type: ignore[attr-defined]
        if not alive and recorders[0].see_corrupt(process.agent.name, process.role):  # type: ignore[attr-defined]
            self.done = True
            self.world.touch(process)


@pytest.mark.guarantee("G6", "G9")
def test_a_ring_that_is_found_corrupt_when_its_writer_is_gone_quarantines_the_agent() -> None:
    """The kernel waited for an end of the stream that the recorder would never see."""
    outcome, world = played(CorruptAfterTheEnd)
    assert not outcome.violations
    assert outcome.report is not None
    (name,) = world.touched
    assert outcome.report.agents[name].state == "quarantined"
    death = outcome.report.agents[name].death
    assert death is not None and death.kind == "corrupt"
    assert outcome.virtual_s < 60
