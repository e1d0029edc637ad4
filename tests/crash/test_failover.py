"""Whole runs in which environments, policies and rewards die and go on, compared with runs in which
nothing happened: the real command, the real recordings.

`standby: auto` is what is tested, as a user has it. A fault that happens `once` comes from outside,
so to speak; one that doesn't is in the code, and meets every successor at the same step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dsec.recording import Recording
from tests.crash import runs

pytestmark = pytest.mark.slow

QUOTA = 1000
AT = 700
GO_ON = {"failover": {"restarts": {"max": 10}}}
KINDS = {
    "segv": "killed by SIGSEGV in step",
    "abort": "killed by SIGABRT in step",
    "kill": "killed by SIGKILL in step",
    "exit": "left with exit code 3 in step",
    "raise": "raised KeyError in step",
    "sysexit": "raised SystemExit in step",
    "unpicklable": "raised tests.crash.faulty.UnpicklableError in step",
    "hang": "hung in step for",
    "pause": "hung in step for",
}

ACTORS = {
    "policy-segv": ("policy", "FaultyPolicy", "segv", AT, "killed by SIGSEGV in act"),
    "policy-raise": ("policy", "FaultyPolicy", "raise", AT, "raised KeyError in act"),
    "reward-kill": ("reward", "FaultyReward", "kill", 12, "killed by SIGKILL in reward"),
}  # a reward is called for many records at a time
FORKED = "forked"  # by a sleeping copy of the process, and not by a codec
ALL = (*KINDS, *ACTORS, FORKED)


def walkers(evidence: Path | None) -> list[dict[str, Any]]:
    """An agent for each kind of fault; without `evidence` nothing happens to any of them."""
    agents = []
    for kind in KINDS:
        fault = {"fault": kind, "at": AT, "once": True} if evidence is not None else {}
        brief = {"deadlines": {"step_s": 1.0}} if kind in ("hang", "pause") else {}
        agents.append(runs.walker(kind, evidence=evidence, **fault, **GO_ON, **brief))
    for name, (role, cls, kind, at, _) in ACTORS.items():
        kind = kind if evidence is not None else "none"
        keywords = {"fault": kind, "at": at, "name": name, "evidence": str(evidence or "")}
        entry = {"entry": f"tests.crash.faulty:{cls}", "kwargs": keywords | {"once": True}}
        agents.append(runs.walker(name, **GO_ON, **{role: entry}))
    fault = {"fault": "segv", "at": AT, "once": True} if evidence is not None else {}
    by_fork = {"failover": {"standby": "fork", "restarts": {"max": 10}}}
    agents.append(runs.walker(FORKED, evidence=evidence, **fault, **by_fork))
    agents.append(runs.walker("steady"))
    return agents


def run(folder: Path, agents: list[dict[str, Any]], quota: int = QUOTA) -> runs.Finished:
    folder.mkdir()
    config = runs.write_config(folder / "config.yaml", agents, steps=quota * len(agents))
    return runs.run(config, folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[runs.Finished, runs.Finished, Path]:
    """The run with the faults, the run without them, and the faults' evidence."""
    folder = tmp_path_factory.mktemp("failover")
    evidence = folder / "evidence"
    evidence.mkdir()
    return run(folder / "hit", walkers(evidence)), run(folder / "plain", walkers(None)), evidence


@pytest.mark.guarantee("G1", "G7")
def test_every_agent_goes_on_to_its_quota(both: tuple[runs.Finished, runs.Finished, Path]) -> None:
    hit, _, evidence = both
    for name in ALL:
        assert (evidence / name).exists(), f"{name} did not happen"
    assert hit.code == 0, hit.stderr
    assert hit.summary["failovers"] == len(ALL)
    assert hit.summary["steps"] == QUOTA * (len(ALL) + 1)
    assert (hit.summary["lost"], hit.summary["quarantined"]) == (0, 0)
    assert hit.summary["failover_ms"]["p50"] > 0
    assert hit.stderr.count("FAILOVER ") == len(ALL)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("kind", KINDS)
def test_each_failover_is_one_event_with_its_cause(
    kind: str, both: tuple[runs.Finished, runs.Finished, Path]
) -> None:
    hit, _, evidence = both
    [event] = [each for each in hit.details["failovers_in_order"] if each["agent"] == kind]
    assert event["death"]["cause"].startswith(KINDS[kind])
    assert str(event["death"]["pid"]) == (evidence / kind).read_text()
    assert event["death"]["phase"] == "step"
    assert (event["role"], event["epoch"], event["exact"]) == ("env", 1, True)
    assert event["seq"] >= AT - 1
    assert event["ms"]["total"] >= event["ms"]["fence"]
    assert hit.details["agents_by_name"][kind]["failovers"] == 1


def test_a_clone_goes_on_where_its_parent_died(
    both: tuple[runs.Finished, runs.Finished, Path],
) -> None:
    hit, _, _ = both
    [event] = [each for each in hit.details["failovers_in_order"] if each["agent"] == FORKED]
    assert (event["level"], event["exact"], event["why"]) == ("fork", True, None)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("name", ACTORS)
def test_policies_and_rewards_go_on_as_environments_do(
    name: str, both: tuple[runs.Finished, runs.Finished, Path]
) -> None:
    hit, _, evidence = both
    role, *_, cause = ACTORS[name]
    [event] = [each for each in hit.details["failovers_in_order"] if each["agent"] == name]
    assert event["death"]["cause"].startswith(cause)
    assert str(event["death"]["pid"]) == (evidence / name).read_text()
    assert (event["role"], event["exact"]) == (role, True)


def recorded(run: runs.Finished, agent: str) -> list[np.ndarray]:
    with Recording.open(run.run_dir) as recording:
        data = recording.transitions(agent, env=0)
        return [data.seq, data.obs, data.action, data.reward, data.end]


@pytest.mark.guarantee("G2", "G3", "G12")
@pytest.mark.parametrize("agent", [*ALL, "steady"])
def test_the_recording_is_that_of_a_run_to_which_nothing_happened(
    agent: str, both: tuple[runs.Finished, runs.Finished, Path]
) -> None:
    hit, plain, _ = both
    for found, expected in zip(recorded(hit, agent), recorded(plain, agent), strict=True):
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()


@pytest.mark.guarantee("G4", "G7")
def test_a_step_that_is_fatal_in_itself_is_poison(tmp_path: Path) -> None:
    """It is tried once more; then that episode ends, and a fresh one begins."""
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    bad = runs.walker("bad", evidence=evidence, fault="segv", at=AT, **GO_ON)
    hit = run(tmp_path / "run", [bad], quota=900)
    assert hit.code == 0, hit.stderr
    first, second = hit.details["failovers_in_order"]
    assert (first["exact"], first["poisoned"]) == (True, False)
    assert (second["exact"], second["poisoned"]) == (False, True)
    assert second["seq"] == first["seq"] == AT - 1
    assert second["action_last"]
    seqs, *_, ends = recorded(hit, "bad")
    assert hit.summary["steps"] == len(seqs) == 900, "one more was made for the fatal step"
    assert AT - 1 not in seqs
    assert ends[list(seqs).index(AT - 2)], "the episode ended before it"
    assert hit.summary["lost"] == 0


@pytest.mark.guarantee("G4")
def test_what_is_lost_with_an_environment_counts_against_no_quota(tmp_path: Path) -> None:
    """Of nothing that was kept: its successors go on with the count of its episodes, as well."""
    unkept = {"failover": {"standby": "none", "restarts": {"max": 10}}}
    for quota in ({"steps": 500}, {"episodes": 30}):
        [(key, value)] = quota.items()
        evidence = tmp_path / f"evidence-{key}"
        evidence.mkdir()
        bad = runs.walker("bad", evidence=evidence, fault="segv", at=200, **unkept)
        document = {"run": {"name": "crash", "seed": 5, **quota}, "agents": [bad]}
        config = tmp_path / f"{key}.yaml"
        config.write_text(yaml.safe_dump(document))
        (tmp_path / key).mkdir()
        hit = runs.run(config, tmp_path / key)
        assert hit.code == 0, hit.stderr
        assert hit.summary[key] == value
        assert hit.summary["failovers"] == (2 if key == "steps" else 4)


@pytest.mark.guarantee("G7")
def test_nothing_is_replaced_where_nothing_may_be(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    bad = runs.walker("bad", evidence=evidence, fault="segv", at=AT)
    hit = run(tmp_path / "run", [bad, runs.walker("good")])
    assert hit.code == 1
    assert (hit.summary["failovers"], hit.summary["quarantined"]) == (0, 1)
    assert hit.details["agents_by_name"]["good"]["steps"] == QUOTA


@pytest.mark.guarantee("G4")
def test_a_policy_that_answers_otherwise_when_it_repeats_is_not_called_exact(
    tmp_path: Path,
) -> None:
    keywords = {"fault": "segv", "at": 50, "name": "segv", "evidence": str(tmp_path), "once": True}
    entry = {"entry": "tests.crash.faulty:ForgetfulPolicy", "kwargs": keywords}
    hit = run(tmp_path / "run", [runs.walker("forgetful", **GO_ON, policy=entry)], 200)
    assert (tmp_path / "segv").exists()
    assert hit.code == 0, hit.stderr
    [event] = hit.details["failovers_in_order"]
    assert (event["role"], event["exact"]) == ("policy", False)
    assert "came out differently when it was repeated" in event["why"]
    assert hit.stderr.count("not_exact") == 1
    assert "went on exactly" not in hit.stderr
