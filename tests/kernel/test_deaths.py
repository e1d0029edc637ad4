"""How runners die before a real supervisor: every cause told, and the others going on.

The leak check around every test proves G8 for each of these ends: no process, zombie, descriptor
or segment survives `run`.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from dsec.ipc.frames import Phase, Role
from dsec.report import RunReport
from tests.kernel.helpers.stage import ENDLESS, WORLDS, Stage, agent, states

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G8")]


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, RunReport]:
    """One run in which everybody but `plain` dies, each in another way."""
    folder = tmp_path_factory.mktemp("deaths")
    brief = {Phase.STEP: 1.0, Phase.ACT: 1.0, Phase.RESET: 1.0}

    def faulty(name: str, fault: str, **changes: Any) -> Any:
        return agent(
            name, **{"steps": 1000, "at": 30, "fault": fault, "evidence": folder} | changes
        )

    stage = Stage(
        folder,
        agent("plain", steps=1000),
        faulty("segv", "segv", memory_mb=4096),
        faulty("exit3", "exit"),
        faulty("kill", "kill"),
        faulty("raise", "raise"),
        faulty("sysexit", "sysexit"),
        faulty("hang", "hang", deadlines=brief),
        faulty("reset", "pause", phase="reset", at=2, deadlines=brief),
        agent(
            "policy",
            steps=1000,
            policy="tests.crash.faulty:FaultyPolicy",
            policy_kwargs={"fault": "abort", "at": 30, "evidence": str(folder), "name": "policy"},
        ),
    )
    return stage, stage.run()


CAUSES = {
    "segv": ("signal", r"killed by SIGSEGV in step"),
    "exit3": ("exit", r"left with exit code 3 in step"),
    "kill": ("signal", r"killed by SIGKILL in step"),
    "raise": ("exception", r"raised KeyError in step: 'no such key'"),
    "sysexit": ("exception", r"raised SystemExit in step: .*"),
    "hang": ("hang", r"hung in step for \d+\.\d s \(deadline 1 s\), killed"),
    "reset": ("hang", r"hung in reset for \d+\.\d s \(deadline 1 s\), killed"),
    "policy": ("signal", r"killed by SIGABRT in act"),
}


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("name", CAUSES)
def test_each_death_has_its_cause(name: str, deaths: tuple[Stage, RunReport]) -> None:
    stage, report = deaths
    [death] = [each for each in report.deaths if each.agent == name]
    kind, cause = CAUSES[name]
    assert (stage.run_dir.parent / name).exists(), "the fault did not happen"
    assert death.kind == kind
    assert re.fullmatch(cause, death.cause)
    assert death is report.agents[name].death
    assert report.agents[name].state == "quarantined"
    assert death.role is (Role.POLICY if name == "policy" else Role.ENV)
    assert death.pid > 0
    assert death.rss_peak_bytes > 1 << 20
    assert death.seq_last >= (0 if name == "reset" else 28)
    assert death.action_last
    assert death in stage.hooks.deaths


@pytest.mark.guarantee("G6")
def test_a_crash_tells_its_address_limit_and_last_words(deaths: tuple[Stage, RunReport]) -> None:
    _, report = deaths
    death = next(each for each in report.deaths if each.agent == "segv")
    assert (death.signal_name, death.exit_code) == ("SIGSEGV", -1)
    assert death.fault_address == "0x8"
    assert death.memory_limit_bytes == 4096 << 20
    assert "Fatal Python error: Segmentation fault" in death.stderr_tail
    assert "string_at" in death.stderr_tail


@pytest.mark.guarantee("G6")
def test_who_hangs_leaves_its_python_stack(deaths: tuple[Stage, RunReport]) -> None:
    stage, report = deaths
    death = next(each for each in report.deaths if each.agent == "hang")
    assert "in spin" in stage.log("hang.env.err")
    assert "in spin" in death.stderr_tail


@pytest.mark.guarantee("G1")
def test_the_others_go_on(deaths: tuple[Stage, RunReport]) -> None:
    _, report = deaths
    assert report.agents["plain"].state == "done"
    assert report.agents["plain"].steps == 1000
    assert report.failure == ""
    assert len(report.deaths) == len(CAUSES), "who is fenced for another's fault died no death"


@pytest.mark.guarantee("G6")
def test_exit_0_in_the_middle_is_a_death(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        stage.signal("a", Role.REWARD, signal.SIGTERM)

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    report = stage.run(act)
    [death] = report.deaths
    assert (death.role, death.kind, death.cause) == (
        Role.REWARD,
        "signal",
        "killed by SIGTERM while idle",
    )
    assert report.agents["a"].lost >= 0


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("last", "kind", "cause"),
    [
        ("segv", "signal", r"killed by SIGSEGV in close"),
        ("exit", "exit", r"left with exit code 3 in close"),
        ("raise", "exception", r"raised KeyError in close: .*"),
        ("pause", "hang", r"hung in close for \d+\.\d s \(deadline 1 s\), killed"),
    ],
)
def test_who_fails_in_close_has_done_its_work(
    last: str, kind: str, cause: str, tmp_path: Path
) -> None:
    bad = agent("a", entry=f"{WORLDS}:FaultyClose", last=last, deadlines={Phase.CLOSE: 1.0})
    report = Stage(tmp_path, bad).run()
    assert states(report) == {"a": "done"}, "its death is told, and that is all"
    assert (report.agents["a"].steps, report.agents["a"].lost) == (60, 0)
    [death] = report.deaths
    assert (death.kind, death.phase) == (kind, Phase.CLOSE)
    assert re.fullmatch(cause, death.cause)


@pytest.mark.guarantee("G6")
def test_who_closes_its_descriptors_is_cut_off(tmp_path: Path) -> None:
    bad = agent("bad", entry=f"{WORLDS}:Detached", steps=ENDLESS)
    report = Stage(tmp_path, bad, agent("good", steps=2000)).run()
    assert states(report) == {"bad": "quarantined", "good": "done"}
    [death] = report.deaths
    assert (death.agent, death.kind) == ("bad", "protocol")
    assert death.cause == "closed its control channel and lived on, killed"


# ---------------------------------------------------------------- construction


def test_one_of_several_that_raises_in_its_constructor_is_quarantined(tmp_path: Path) -> None:
    bad = agent("g-1", group="g", fault="raise", phase="construct", at=1)
    report = Stage(tmp_path, agent("g-0", group="g"), bad).run()
    assert states(report) == {"g-0": "done", "g-1": "quarantined"}
    assert report.failure == ""
    [death] = report.deaths
    assert death.phase is Phase.CONSTRUCT
    assert death.error is not None
    assert (death.error.type, death.error.where) == ("KeyError", "env")


def test_a_group_that_can_not_be_constructed_is_a_mistake_of_the_config(tmp_path: Path) -> None:
    bad = [agent(f"bad-{n}", group="bad", fault="raise", phase="construct", at=1) for n in range(2)]
    stage = Stage(tmp_path, agent("good", steps=ENDLESS), *bad)
    report = stage.run()
    assert states(report) == {"good": "done", "bad-0": "quarantined", "bad-1": "quarantined"}
    assert (report.failure_kind, report.failure_group) == ("config", "bad")
    assert report.failure_error is not None
    assert "no such key" in report.failure_error.message
    assert not report.drained


def test_a_name_that_leads_nowhere_ends_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, agent("good", steps=ENDLESS), agent("bad", env_id="CartPole-v9"))
    report = stage.run()
    assert states(report) == {"good": "done", "bad": "quarantined"}
    assert (report.failure_kind, report.failure_group) == ("config", "bad")
    error = report.failure_error
    assert error is not None
    assert (error.lookup, error.where) == (True, "env.id")
    assert "CartPole-v1" in error.message


def test_a_constructor_that_hangs_is_killed_at_its_deadline(tmp_path: Path) -> None:
    bad = agent("bad", fault="pause", phase="construct", at=1, deadlines={Phase.CONSTRUCT: 2.0})
    report = Stage(tmp_path, agent("good"), bad).run()
    assert states(report) == {"good": "done", "bad": "quarantined"}
    [death] = report.deaths
    assert death.kind == "hang"
    assert re.fullmatch(r"hung in construct for \d+\.\d s \(deadline 2 s\), killed", death.cause)
    assert "faulty.py" in death.stderr_tail


# ---------------------------------------------------------------- who is stopped


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("role", [Role.ENV, Role.POLICY, Role.REWARD], ids=lambda r: r.name)
def test_a_stopped_runner_is_found_wherever_it_was_stopped(role: Role, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        stage.signal("a", role, signal.SIGSTOP)
        await stage.until(lambda: stage.hooks.deaths, "its death")
        stage.supervisor.request_drain("enough")

    brief = {Phase.STEP: 0.5, Phase.ACT: 0.5, Phase.REWARD: 0.5, Phase.CLOSE: 0.5}
    stage = Stage(tmp_path, agent("a", steps=ENDLESS, deadlines=brief), agent("b", steps=ENDLESS))
    report = stage.run(act)
    assert states(report) == {"a": "quarantined", "b": "done"}
    [death] = report.deaths
    assert (death.role, death.kind) == (role, "hang")
    assert re.match(r"stopped \(SIGSTOP\) while idle|hung in (step|act|reward)", death.cause)
