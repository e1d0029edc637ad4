"""One run in which nine agents die nine deaths, and two don't: G1, G5, G6, G7 on real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import watchdog
from tests.crash import runs

QUOTA = 600
AT = 60


def faulty_agents(evidence: Path) -> list[dict[str, Any]]:
    def walker(name: str, **changes: Any) -> dict[str, Any]:
        return runs.walker(name, evidence=evidence, at=AT, **changes)

    def other(name: str, role: str, cls: str, fault: str) -> dict[str, Any]:
        keywords = {"fault": fault, "at": AT, "evidence": str(evidence), "name": name}
        return runs.walker(
            name, **{role: {"entry": f"tests.crash.faulty:{cls}", "kwargs": keywords}}
        )

    return [
        runs.walker("steady-a"),
        walker("segv", fault="segv"),
        walker("abort", fault="abort"),
        walker("exit", fault="exit"),
        walker("sysexit", fault="sysexit"),
        walker("unpicklable", fault="unpicklable"),
        walker("hang", fault="hang", deadlines={"step_s": 1.0}),
        walker("outside", fault="pause", deadlines={"step_s": 100.0}),
        other("policy-kill", "policy", "FaultyPolicy", "kill"),
        other("reward-raise", "reward", "FaultyReward", "raise"),
        runs.walker("steady-b"),
    ]


CAUSES = {
    "segv": ("SIGSEGV", "step"),
    "abort": ("SIGABRT", "step"),
    "exit": ("exit code 3", "step"),
    "sysexit": ("SystemExit", "step"),
    "unpicklable": ("UnpicklableError", "step"),
    "hang": ("hung", "step"),
    "outside": ("SIGKILL", "step"),
    "policy-kill": ("SIGKILL", "act"),
    "reward-raise": ("KeyError", "reward"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[runs.Finished, Path]:
    """The run, and the folder of the evidence that each fault left before it fired."""
    folder = tmp_path_factory.mktemp("faults")
    evidence = folder / "evidence"
    evidence.mkdir()
    agents = faulty_agents(evidence)
    config = runs.write_config(folder / "config.yaml", agents, steps=QUOTA * len(agents))
    out = folder / "run"
    with watchdog.Watched(runs.argv(config, out), folder / "streams") as program:
        program.until((evidence / "outside").exists, 60, "the agent to be killed from outside")
        os.kill(int((evidence / "outside").read_text()), signal.SIGKILL)
        code = program.wait(90)
        summary = runs.summary_of(program.stdout)
        return runs.Finished(code, summary, program.stdout, program.stderr, out), evidence


def death_of(name: str, run: runs.Finished) -> dict[str, Any]:
    """The one death of that agent that nobody of ours had a part in."""
    found = [each for each in run.details["deaths_in_order"] if each["agent"] == name]
    (own,) = [each for each in found if each["kind"] != "peer"]
    return own


@pytest.mark.slow
@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("name", CAUSES)
def test_every_death_has_a_cause(name: str, finished: tuple[runs.Finished, Path]) -> None:
    run, evidence = finished
    assert (evidence / name).exists(), "the fault didn't happen"
    death = death_of(name, run)
    cause, phase = CAUSES[name]
    assert cause in death["cause"], death
    assert death["phase"] == phase
    assert str(death["pid"]) == (evidence / name).read_text()
    assert death["seq_last"] >= AT - 1, "the step that it died in, or what was published since"
    assert death["action_last"]
    assert death["rss_peak_bytes"] > 1 << 20


@pytest.mark.slow
@pytest.mark.guarantee("G6")
def test_a_death_keeps_what_was_last_said(finished: tuple[runs.Finished, Path]) -> None:
    run, _ = finished
    segv = death_of("segv", run)
    assert segv["fault_address"] == "0x8"
    assert "tests/crash/faulty.py" in segv["stderr_tail"], "the Python stack of the crash"
    assert "KeyError" in death_of("reward-raise", run)["traceback"]
    assert "in spin" in death_of("hang", run)["stderr_tail"], "where it hung"


@pytest.mark.slow
@pytest.mark.guarantee("G1", "G2", "G7")
def test_the_others_do_their_exact_quota(finished: tuple[runs.Finished, Path]) -> None:
    run, _ = finished
    assert run.code == 1, run.stderr
    agents = run.details["agents_by_name"]
    for name in ("steady-a", "steady-b"):
        assert agents[name]["state"] == "done"
        assert agents[name]["steps"] == QUOTA
    for name in CAUSES:
        assert agents[name]["state"] == "quarantined"
        assert agents[name]["steps"] == AT - 1, f"{name}: all that was done is kept"
        assert agents[name]["lost"] == 0
    assert run.summary["quarantined"] == len(CAUSES)
    assert run.summary["steps"] == sum(each["steps"] for each in agents.values())


@pytest.mark.slow
@pytest.mark.guarantee("G5", "G7")
def test_what_the_dead_left_is_whole(finished: tuple[runs.Finished, Path]) -> None:
    """Everybody's recording runs from 0 without a hole to the last transition counted."""
    run, _ = finished
    parquet = pytest.importorskip("pyarrow.parquet")
    seqs: dict[str, list[int]] = {}
    for name in run.details["files"]:
        if name.endswith(".parquet"):
            table = parquet.read_table(run.run_dir / name, columns=["agent", "seq"])
            for agent, seq in zip(*(each.to_pylist() for each in table.columns), strict=True):
                seqs.setdefault(agent, []).append(seq)
    agents = run.details["agents_by_name"]
    assert set(seqs) == set(agents)
    for name, found in seqs.items():
        assert found == list(range(agents[name]["steps"])), name
