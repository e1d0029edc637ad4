"""Injected faults: as often as they are asked for, of the kind asked for, and nowhere else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.ipc.frames import Harm, Phase, PlannedFault
from dsec.runners import chaos
from tests.ipc.rings import child


class Where:
    """The record that is worked on, as an outbox tells it."""

    at = 0


def step(action: int) -> int:
    return action + 1


def faulty(harm: Harm, phase: Phase = Phase.STEP, where: Where | None = None) -> Callable[..., int]:
    return chaos.with_faults(step, harm, phase, where or Where())


def by_chance(**chances: float) -> Callable[..., int]:
    return faulty(Harm(chances))


def test_without_chances_the_call_is_the_same_object() -> None:
    assert faulty(Harm()) is step
    assert chaos.with_resets(step, Harm({"segv": 1.0})) is step  # type: ignore[comparison-overlap, arg-type]


def test_with_chances_it_says_what_it_said_before() -> None:
    call = by_chance(segv=1e-12)
    assert call is not step
    assert [call(n) for n in range(3)] == [1, 2, 3]


def test_chance_has_no_part_in_what_is_no_step() -> None:
    assert faulty(Harm({"segv": 1.0}), Phase.LEARN) is step


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
        call, before = by_chance(segv=chance), fired
        while fired == before:
            call(0)
            steps += 1
    assert 0.8 < fired / (steps * chance) < 1.25


def test_certain_faults_come_at_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fired: list[str] = []
    for kind in ("segv", "hang"):
        monkeypatch.setitem(chaos._KINDS, kind, lambda kind=kind: fired.append(kind))
    by_chance(segv=1.0, hang=1.0)(0)
    assert fired == ["segv", "hang"]


def ended(run: Callable[[], object]) -> int:
    with child(run) as forked:
        return forked.wait()


def test_a_segfault_is_a_real_one() -> None:
    assert ended(lambda: by_chance(segv=1.0)(0)) == -signal.SIGSEGV


def test_a_hang_is_busy_until_somebody_ends_it() -> None:
    def hang() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.05)  # of processor time: nobody who sleeps gets it
        by_chance(hang=1.0)(0)
        os._exit(0)

    assert ended(hang) == -signal.SIGPROF


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("segv", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
        ("kill", -signal.SIGKILL),
        ("exit", chaos.EXIT_CODE),
    ],
)
def test_what_is_planned_happens_and_leaves_word(kind: str, code: int, tmp_path: Path) -> None:
    fault = PlannedFault(kind, Phase.STEP, 0)
    assert ended(lambda: faulty(Harm({}, (fault,), str(tmp_path)))(0)) == code
    said = json.loads((tmp_path / chaos.evidence_name(fault)).read_text())
    assert said["seq"] == 0


def test_each_planned_fault_happens_once_at_its_record_or_the_next_one(tmp_path: Path) -> None:
    where = Where()
    plan = tuple(
        PlannedFault("exception", Phase.STEP, at, after)
        for at, after in ((3, False), (3, True), (7, True))
    )
    harm = Harm({}, plan, str(tmp_path / "new" / "folder"))
    happened = []
    call = faulty(harm, where=where)
    for seq in (0, 1, 2, 3, 3, 3, 5, 8, 8, 9):
        where.at = seq
        try:
            assert call(seq) == seq + 1
        except chaos.InjectedFault:
            happened.append(seq)
            call = faulty(harm, where=where)  # a successor comes to the same record
    assert happened == [3, 3, 8]
    assert faulty(harm, where=where) is step, "nothing is left"


def test_another_phase_has_none_of_it(tmp_path: Path) -> None:
    fault = PlannedFault("exception", Phase.RESET, 2)
    harm = Harm({}, (fault,), str(tmp_path))
    assert faulty(harm) is step
    entered: list[tuple[int, int]] = []
    enter = chaos.with_resets(lambda phase, n: entered.append((phase, n)), harm)
    enter(Phase.RESET, 0)
    enter(Phase.STEP, 2)
    with pytest.raises(chaos.InjectedFault):
        enter(Phase.RESET, 5)
    assert entered == [(Phase.RESET, 0), (Phase.STEP, 2), (Phase.RESET, 5)]


def test_who_cant_leave_word_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    harm = Harm({}, (PlannedFault("kill", Phase.STEP, 0),), str(tmp_path / "file" / "in"))
    assert faulty(harm)(1) == 2
