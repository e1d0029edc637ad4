"""Failover before a real supervisor: who is lost, what follows, and what is left (nothing).

Without a standby a successor has nothing to restore, and says so (G4). That is enough to see every
order in which things can happen to a seat; that what is restored is exact, other tests prove. The
leak check around each of these tests proves G8.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dsec.ipc.frames import Phase, Role
from dsec.ipc.proc import read_stat
from dsec.kernel.machine import AgentState
from dsec.kernel.reap import Reaper
from dsec.report import RunReport
from tests.kernel.helpers.stage import ENDLESS, Stage, agent, states

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G8")]

BRIEF = {Phase.STEP: 1.0, Phase.ACT: 1.0, Phase.REWARD: 1.0, Phase.CLOSE: 1.0}


async def until_failovers(stage: Stage, count: int) -> None:
    await stage.until(lambda: len(stage.hooks.failovers) >= count, f"{count} failovers")


@pytest.mark.guarantee("G1", "G4", "G6")
def test_an_env_that_dies_is_replaced_and_the_others_never_notice(tmp_path: Path) -> None:
    bad = agent("bad", steps=200, fault="segv", at=60, evidence=tmp_path, restarts=9)
    stage = Stage(tmp_path, bad, agent("good", steps=200))
    report = stage.run()
    assert (tmp_path / "bad").exists(), "the fault did not happen"
    assert states(report) == {"bad": "done", "good": "done"}
    assert report.agents["good"].steps == 200
    assert report.deaths == []
    # Each fresh environment meets the same fault at its 60th step; that step is left out, and
    # done by the next one: what is lost counts against no quota.
    assert [each.seq for each in report.failovers] == [59, 119, 179]
    assert report.agents["bad"].failovers == 3
    assert report.agents["bad"].steps == 200
    assert report.agents["bad"].lost == 0
    assert report.failovers == stage.hooks.failovers
    first = report.failovers[0]
    assert (first.agent, first.role, first.epoch) == ("bad", Role.ENV, 1)
    assert (first.exact, first.level, first.poisoned) == (False, "none", False)
    assert first.why
    assert first.tried == ()


@pytest.mark.guarantee("G6")
def test_a_crash_is_announced_and_still_tells_everything(tmp_path: Path) -> None:
    bad = agent("bad", steps=100, fault="segv", at=60, evidence=tmp_path, restarts=9)
    report = Stage(tmp_path, bad).run()
    [failover] = report.failovers
    death = failover.death
    assert death.cause == "killed by SIGSEGV in step"
    assert (death.signal_name, death.fault_address) == ("SIGSEGV", "0x8")
    assert "Fatal Python error: Segmentation fault" in death.stderr_tail
    assert "native stack" in death.stderr_tail
    assert death.rss_peak_bytes > 1 << 20
    assert failover.detect_ms is not None
    assert failover.total_ms >= failover.fence_ms


@pytest.mark.guarantee("G5", "G6")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_whatever_is_done_to_an_env_its_agent_goes_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        stage.signal("a", Role.ENV, number)
        await until_failovers(stage, 1)
        if number == signal.SIGSTOP:
            assert read_stat(first).state == "X", "it can never be continued"
        steps = stage.supervisor.report.agents["a"].steps
        await stage.until_stepping("a", steps=steps + 50)
        stage.supervisor.request_drain("enough")

    async def acting(stage: Stage) -> None:
        nonlocal first
        await stage.until_stepping("a")
        first = stage.runner("a", Role.ENV).pid
        await act(stage)

    first = 0
    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9, deadlines=BRIEF)).run(acting)
    assert states(report) == {"a": "done"}
    assert report.agents["a"].lost == 0
    [failover] = report.failovers
    named = "stopped|hung" if number == signal.SIGSTOP else number.name
    assert any(word in failover.death.cause for word in named.split("|")), failover.death.cause


@pytest.mark.guarantee("G7")
def test_a_spent_budget_quarantines_and_says_so(tmp_path: Path) -> None:
    bad = agent("bad", steps=ENDLESS, fault="exit", at=5, evidence=tmp_path, restarts=2)
    report = Stage(tmp_path, bad, agent("good", steps=300)).run()
    assert states(report) == {"bad": "quarantined", "good": "done"}
    [death] = report.deaths
    assert death.cause == (
        "left with exit code 3 in step (not replaced: all 2 restarts in 60 s are used up)"
    )
    assert len(report.failovers) == 2
    assert report.agents["bad"].lost == 0


@pytest.mark.guarantee("G7")
def test_an_env_that_dies_in_every_reset_is_given_up(tmp_path: Path) -> None:
    bad = agent("bad", fault="exit", phase="reset", at=1, evidence=tmp_path, restarts=3)
    report = Stage(tmp_path, bad, agent("good", steps=300)).run()
    assert states(report) == {"bad": "quarantined", "good": "done"}
    assert report.deaths[-1].cause.startswith("left with exit code 3 in reset (not replaced: ")
    assert report.agents["bad"].steps == 0


def test_a_kill_in_the_middle_of_a_recovery(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        stage.signal("a", Role.ENV, signal.SIGKILL)
        await stage.until(lambda: stage.agent("a").state is AgentState.RECOVERING, "recovery")
        stage.supervisor.request_kill()

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9)).run(act)
    assert states(report) == {"a": "done"}
    assert report.failovers == []
    assert [death.cause for death in report.deaths] != [], "what had happened is told"


@pytest.mark.guarantee("G5")
def test_who_crashed_is_not_waited_for_until_it_is_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is torn down beside its successor; here that takes until the successor serves."""
    reap, held = Reaper._ended, list[tuple[Reaper, int]]()
    crashing = set[int]()

    def hold(self: Reaper, pid: int) -> None:
        if pid in crashing:
            self._loop.remove_reader(self._watched[pid][0])
            held.append((self, pid))
        else:
            reap(self, pid)

    async def act(stage: Stage) -> None:
        await stage.until(lambda: stage.agent("a").runners.get(Role.ENV) is not None, "a runner")
        first = stage.runner("a", Role.ENV)
        await stage.until(lambda: bool(first.pid), "its process")
        crashing.add(first.pid)
        await stage.until(lambda: bool(held), "the crash")
        await stage.until(lambda: stage.agent("a").state is AgentState.RUNNING, "a successor")
        assert stage.runner("a", Role.ENV) is not first and stage.hooks.failovers == []
        crashing.clear()
        reap(*held[0])
        await until_failovers(stage, 1)

    monkeypatch.setattr(Reaper, "_ended", hold)
    bad = agent("a", steps=100, fault="segv", at=60, evidence=tmp_path, restarts=9)
    report = Stage(tmp_path, bad).run(act)
    assert [each.death.signal for each in report.failovers] == [signal.SIGSEGV]


def test_a_drain_in_the_middle_of_a_recovery_is_obeyed_after_it(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        stage.signal("a", Role.ENV, signal.SIGKILL)
        await stage.until(lambda: stage.agent("a").state is AgentState.RECOVERING, "recovery")
        stage.supervisor.request_drain("enough")

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9)).run(act)
    assert states(report) == {"a": "done"}
    assert len(report.failovers) == 1
    assert report.agents["a"].lost == 0


@pytest.mark.guarantee("G7")
def test_successors_that_are_killed_are_followed_by_others(tmp_path: Path) -> None:
    """SIGKILL meets each successor as soon as it exists, three times; the fourth goes on."""

    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        stage.signal("a", Role.ENV, signal.SIGKILL)
        killed = {stage.runner("a", Role.ENV).pid}
        while len(killed) < 4:
            await stage.until(lambda: living(stage) - killed, "a successor")
            for pid in living(stage) - killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        await stage.until(lambda: told(stage.supervisor.report) == 4, "four deaths survived")
        stage.supervisor.request_drain("enough")

    def told(report: RunReport) -> int:
        """A successor may serve already when it is killed: then there is another failover."""
        return sum(1 + len(each.tried) for each in report.failovers)

    def living(stage: Stage) -> set[int]:
        found = {each.pid for each in stage.agent("a")._living if each.role is Role.ENV}
        return found - {0}

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9)).run(act)
    assert states(report) == {"a": "done"}
    assert told(report) == 4
    causes = [c for each in report.failovers for c in (each.death.cause, *each.tried)]
    assert all("SIGKILL" in cause for cause in causes)


def test_the_zygote_dies_while_a_successor_is_wanted(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        zygote = stage.supervisor.zygotes["base"].runner
        assert zygote is not None
        os.kill(zygote.pid, signal.SIGKILL)
        stage.signal("a", Role.ENV, signal.SIGKILL)
        await until_failovers(stage, 1)
        stage.supervisor.request_drain("enough")

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9)).run(act)
    assert states(report) == {"a": "done"}
    assert len(report.failovers) == 1


@pytest.mark.guarantee("G2")
def test_the_recorder_dies_together_with_an_env(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("a")
        recorder = stage.recorder
        assert recorder.runner is not None
        os.kill(recorder.runner.pid, signal.SIGKILL)
        stage.signal("a", Role.ENV, signal.SIGKILL)
        await until_failovers(stage, 1)
        steps = stage.supervisor.report.agents["a"].steps
        await stage.until_stepping("a", steps=steps + 50)
        stage.supervisor.request_drain("enough")

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9)).run(act)
    assert states(report) == {"a": "done"}
    assert report.agents["a"].lost == 0
    assert [death.agent for death in report.deaths] == ["recorder"]


def test_exit_code_125_asks_for_no_successor(tmp_path: Path) -> None:
    bad = agent("bad", steps=ENDLESS, fault="permanent", at=60, evidence=tmp_path, restarts=9)
    report = Stage(tmp_path, bad).run()
    assert states(report) == {"bad": "quarantined"}
    assert report.failovers == []
    assert report.deaths[0].cause == (
        "left with exit code 125 in step (not replaced: exit code 125 asks for no restart)"
    )


# ---------------------------------------------------------------- spares


def spare_of(stage: Stage) -> int:
    """The process id of the spare that waits beside the incumbent, 0 if there is none."""
    recovery = stage.agent("a")._recovery
    seat = None if recovery is None else recovery._seats[Role.ENV]
    return 0 if seat is None or seat.standby is None else seat.standby.pid


async def until_spare(stage: Stage, other_than: int = 0) -> int:
    await stage.until_stepping("a")
    await stage.until(lambda: spare_of(stage) not in (0, other_than), "a spare")
    return spare_of(stage)


@pytest.mark.guarantee("G3")
def test_a_spare_takes_over_and_another_one_is_made(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        for count in (1, 2, 3):
            pid = await until_spare(stage)
            stage.signal("a", Role.ENV, signal.SIGKILL)
            await until_failovers(stage, count)
            took_over.append(pid == stage.runner("a", Role.ENV).pid)
            await until_spare(stage, pid)
        stage.supervisor.request_drain("enough")

    took_over: list[bool] = []
    stage = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9, standby="state"))
    report = stage.run(act)
    assert states(report) == {"a": "done"}
    assert took_over == [True] * 3
    assert all(each.exact and each.level == "state" for each in report.failovers), report.failovers
    assert report.agents["a"].lost == 0
    assert report.agents["a"].protection[Role.ENV].level == "state"


def test_a_spare_that_dies_is_replaced_without_disturbing_its_agent(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        pid = await until_spare(stage)
        os.kill(pid, signal.SIGKILL)
        await until_spare(stage, pid)
        stage.supervisor.request_drain("enough")

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9, standby="state")).run(act)
    assert states(report) == {"a": "done"}
    assert report.failovers == []
    assert report.deaths == []


def test_a_clone_that_dies_is_missed_at_once(tmp_path: Path) -> None:
    """It is its runner's child, so there is only its channel to tell."""

    async def act(stage: Stage) -> None:
        pid = await until_spare(stage)
        os.kill(pid, signal.SIGKILL)
        await stage.until(lambda: spare_of(stage) != pid, "the clone's end")
        stage.supervisor.request_drain("enough")

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9, standby="fork")).run(act)
    assert states(report) == {"a": "done"}
    assert report.failovers == []
    assert report.deaths == []


def test_a_spare_that_dies_together_with_its_incumbent(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        pid = await until_spare(stage)
        stage.signal("a", Role.ENV, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        await until_failovers(stage, 1)
        stage.supervisor.request_drain("enough")

    report = Stage(tmp_path, agent("a", steps=ENDLESS, restarts=9, standby="state")).run(act)
    assert states(report) == {"a": "done"}
    [failover] = report.failovers
    assert failover.exact, failover
