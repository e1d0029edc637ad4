"""What a report counts."""

from __future__ import annotations

from dsec.ipc.frames import AgentProgress, Finished, Role
from dsec.report import AgentReport, Death


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
