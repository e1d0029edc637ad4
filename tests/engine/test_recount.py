"""What the journal holds is counted where the recorder could not say it any more."""

from __future__ import annotations

from pathlib import Path

from gymnasium import spaces as gs

from dsec.engine.recount import recount
from dsec.report import AgentReport, RunReport
from tests.runners.recorders import write_journal
from tests.runners.scripted import ScriptedAgent


def test_steps_that_were_lost_with_an_environment_are_none(tmp_path: Path) -> None:
    agents = [
        ScriptedAgent("a", gs.Discrete(3), gs.Discrete(2), 2, losses=frozenset({3, 40, 41})),
        ScriptedAgent("b", gs.Discrete(3), gs.Discrete(2)),
        ScriptedAgent("c", gs.Discrete(3), gs.Discrete(2)),
    ]
    write_journal(tmp_path, agents, [50, 20, 0], step=7)
    reports = {name: AgentReport(name, "g") for name in ("a", "b", "c")}
    reports["b"].steps = 30
    recount(RunReport(reports), tmp_path)
    assert [each.steps for each in reports.values()] == [2 * (50 - 3), 30, 0], "never lowered"
    for agent in agents:
        agent.close()
