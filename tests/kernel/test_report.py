"""How ends are put into words, and what a report counts."""

from __future__ import annotations

import signal

import pytest

from dsec.ipc.frames import AgentProgress, Finished, Phase, Role
from dsec.kernel.report import (
    AgentReport,
    Death,
    how_it_ended,
    in_phase,
    signal_name,
)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGSEGV, -1, "killed by SIGSEGV in step"),
        (0, 3, "left with exit code 3 in step"),
        (64, -1, "killed by SIGRTMAX in step"),
        (40, -1, "killed by signal 40 in step"),
    ],
)
def test_an_end_in_words(number: int, code: int, said: str) -> None:
    assert how_it_ended(number, code, in_phase(Phase.STEP)) == said


def test_where_nothing_was_going_on() -> None:
    assert in_phase(Phase.IDLE) == "while idle"
    assert signal_name(0) == ""


def test_a_death_names_its_signal() -> None:
    death = Death("a", Role.ENV, 0, 1, "killed", "signal", signal=11)
    assert death.signal_name == "SIGSEGV"


def test_a_report_takes_the_recorders_totals() -> None:
    report = AgentReport("a", "g")
    report.count(AgentProgress("a", 10, 2, 3.5, 1.25))
    assert (report.steps, report.episodes, report.return_sum) == (10, 2, 3.5)
    assert report.returns_last == 1.25
    report.count(Finished("a", True, 12, 3, 4.5, 12, 11, "1", 0))
    assert (report.steps, report.episodes, report.return_sum) == (12, 3, 4.5)
    assert report.returns_last == 1.25
