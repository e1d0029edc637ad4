"""What a report counts."""

from __future__ import annotations

import pytest

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


@pytest.mark.guarantee("G6")
def test_each_death_keeps_the_sequence_number_that_it_was_at() -> None:
    """The recorder knows of observation 1,030; a reward that died at 49 was not there yet."""
    last = Finished("a", False, 49, 0, 0.0, 1030, 48, "1", 0)
    told = [
        Death("a", role, 0, 1, "killed", "signal", seq_last=seq)
        for role, seq in [(Role.ENV, 1029), (Role.REWARD, 49), (Role.POLICY, -1)]
    ]
    closed = AgentReport("a", "g").close(last, told)
    assert [death.seq_last for death in closed] == [1030, 49, 1030]
    assert {death.action_last for death in closed} == {"1"}
