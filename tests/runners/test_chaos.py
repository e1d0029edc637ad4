"""Injected faults: as often as they are asked for, of the kind asked for, and nowhere else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from dsec.runners import chaos
from tests.ipc.rings import child


def step(action: int) -> int:
    return action + 1


def test_without_chances_the_call_is_the_same_object() -> None:
    assert chaos.with_faults(step, {}) is step


def test_with_chances_it_says_what_it_said_before() -> None:
    faulty = chaos.with_faults(step, {"segv": 1e-12})
    assert faulty is not step
    assert [faulty(n) for n in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("chance", [0.5, 0.01])
def test_the_gaps_are_those_of_dice_that_are_thrown_at_each_step(
    chance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = 0

    def count() -> None:
        nonlocal fired
        fired += 1

    monkeypatch.setitem(chaos._KINDS, "segv", count)
    steps = 0
    for _ in range(400):
        faulty, before = chaos.with_faults(step, {"segv": chance}), fired
        while fired == before:
            faulty(0)
            steps += 1
    assert 0.8 < fired / (steps * chance) < 1.25


def test_certain_faults_come_at_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fired: list[str] = []
    for kind in ("segv", "hang"):
        monkeypatch.setitem(chaos._KINDS, kind, lambda kind=kind: fired.append(kind))
    chaos.with_faults(step, {"segv": 1.0, "hang": 1.0})(0)
    assert fired == ["segv", "hang"]


def ended(run: Callable[[], object]) -> int:
    with child(run) as forked:
        return forked.wait()


def test_a_segfault_is_a_real_one() -> None:
    assert ended(lambda: chaos.with_faults(step, {"segv": 1.0})(0)) == -signal.SIGSEGV


def test_a_hang_is_busy_until_somebody_ends_it() -> None:
    def hang() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.05)  # of processor time: nobody who sleeps gets it
        chaos.with_faults(step, {"hang": 1.0})(0)
        os._exit(0)

    assert ended(hang) == -signal.SIGPROF
