"""The supervisor with real processes: how a run ends, and the other ways to run one.

The leak check around every test proves G8 for each of these ends: no process, zombie, descriptor
or segment survives `run`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsec.ipc.frames import Role
from dsec.ipc.ring import (
    FLAG_BOUNDARY,
    FLAG_END,
    KIND_ACTION,
    KIND_END,
    Outbox,
    Peer,
    Reader,
)
from dsec.ipc.segment import Segment
from dsec.kernel.machine import AgentState
from dsec.report import AgentReport, RunReport
from dsec.spec import AgentSpec
from dsec.testing import leaks
from tests.kernel.helpers.stage import ENDLESS, Recording, Stage, agent, states
from tests.subreaper import is_subreaper

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G8")]


def test_a_run_without_faults(tmp_path: Path) -> None:
    stage = Stage(tmp_path, agent("a", group="g"), agent("b", group="g", steps=40))
    report = stage.run()
    assert states(report) == {"a": "done", "b": "done"}
    assert {name: each.steps for name, each in report.agents.items()} == {"a": 60, "b": 40}
    assert report.agents["a"].episodes == 2
    assert (report.deaths, report.failure, report.drained) == ([], "", False)
    assert report.files
    assert report.seconds > 0
    assert stage.hooks.states[-1][1] == "done"
    assert {state for name, state in stage.hooks.states if name == "a"} == {"running", "done"}


# ---------------------------------------------------------------- starting in waves


def crowd(slow: str = "", **env: Any) -> list[AgentSpec]:
    """More agents than may start at a time; the environment of `slow` gets `env`."""
    count = 8
    names = [f"a{number:02}" for number in range(count)]
    return [agent(name, steps=20, **(env if name == slow else {})) for name in names]


def test_agents_that_start_in_waves_step_once_all_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.tree.starting_max", lambda cores: 4)
    began: list[list[AgentState]] = []
    told: list[list[str]] = []

    class Watching(Recording):
        def agent(self, report: AgentReport) -> None:
            super().agent(report)
            if report.state == "running":
                began.append([each.state for each in stage.supervisor.agents.values()])
                told.append([each.state for each in stage.supervisor.report.agents.values()])

    stage = Stage(tmp_path, *crowd())
    stage.hooks = Watching()
    report = stage.run()
    assert set(states(report).values()) == {"done"}
    early = {AgentState.WAITING, AgentState.STARTING}
    assert not early.intersection(began[0]), "nobody steps before everybody has started"
    assert "ready" in told[0], "and meanwhile people see who waits"


@pytest.mark.guarantee("G1")
def test_one_that_never_gets_ready_does_not_hold_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.tree.starting_max", lambda cores: 4)

    async def act(stage: Stage) -> None:
        others = [name for name in stage.supervisor.agents if name != "a03"]
        await stage.until((tmp_path / "a03").exists, "the fault")
        await stage.until(
            lambda: all(stage.agent(name).state is AgentState.DONE for name in others), "the others"
        )
        assert stage.agent("a03").state is AgentState.STARTING
        stage.supervisor.request_drain("enough")

    agents = crowd("a03", fault="hang", at=1, phase="construct", evidence=tmp_path)
    report = Stage(tmp_path, *agents).run(act)
    assert report.agents["a03"].steps == 0


# ---------------------------------------------------------------- ends


def test_draining_ends_at_a_boundary_and_loses_nothing(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        stage.supervisor.request_drain("enough")

    stage = Stage(tmp_path, agent("a", steps=ENDLESS), agent("b", steps=ENDLESS))
    report = stage.run(act)
    assert states(report) == {"a": "done", "b": "done"}
    assert report.drained
    assert report.deaths == []
    assert [each.lost for each in report.agents.values()] == [0, 0]
    assert report.files


@pytest.mark.guarantee("G6")
def test_who_does_not_drain_is_fenced(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until((tmp_path / "stuck").exists, "the fault")
        await stage.until_stepping("plain")
        stage.supervisor.request_drain("enough")

    stuck = agent("stuck", steps=ENDLESS, fault="hang", at=30, evidence=tmp_path)
    stage = Stage(tmp_path, stuck, agent("plain", steps=ENDLESS), drain_timeout_s=1.0)
    report = stage.run(act)
    assert states(report) == {"stuck": "done", "plain": "done"}
    assert report.agents["stuck"].steps == 29
    assert ("drain_timeout", {"agent": "stuck"}) in stage.hooks.notes


def test_a_kill_ends_everything_at_once(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        stage.supervisor.request_drain("enough")
        stage.supervisor.request_kill()

    stage = Stage(tmp_path, agent("a", steps=ENDLESS), agent("b", steps=ENDLESS))
    report = stage.run(act)
    assert states(report) == {"a": "done", "b": "done"}
    assert report.drained
    assert report.deaths == []
    assert report.agents["a"].steps >= 20


@pytest.mark.parametrize("act", ["request_drain", "request_kill"])
def test_an_end_before_anything_has_begun(act: str, tmp_path: Path) -> None:
    async def end(stage: Stage) -> None:
        if act == "request_drain":
            stage.supervisor.request_drain("enough")
        else:
            stage.supervisor.request_kill()

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    report = stage.run(end)
    assert states(report) == {"a": "done"}
    assert report.agents["a"].steps == 0


def test_cancelling_the_run_leaves_nothing(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        raise ZeroDivisionError

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    with pytest.raises(ExceptionGroup, match="unhandled"):
        stage.run(act)


def test_an_exception_in_a_hook_ends_the_run_and_comes_out(tmp_path: Path) -> None:
    class Raising(Recording):
        def agent(self, report: AgentReport) -> None:
            raise ZeroDivisionError("a hook of the caller")

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    stage.hooks = Raising()
    with pytest.raises(ZeroDivisionError, match="a hook of the caller"):
        stage.run()


# ---------------------------------------------------------------- other ways to run


def test_a_dry_run_constructs_everything_and_goes_nowhere(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path,
        agent("good"),
        agent("bad", fault="raise", phase="construct", at=1),
        agent("worse", env_id="CartPole-v9"),
        dry=True,
    )
    report = stage.run()
    assert states(report) == {"good": "done", "bad": "quarantined", "worse": "quarantined"}
    assert {death.agent for death in report.deaths} == {"bad", "worse"}
    assert report.seconds == 0
    assert report.files == ()


class Player(Recording):
    """Plays an agent's policy in a thread of this process: always action 1."""

    def wired(self, agent: str, segments: Mapping[Role, Segment], spaces: bytes) -> bool:
        mine = segments[Role.POLICY]
        self.outbox = Outbox(mine.fd, mine.size, Role.POLICY)
        self.peers = {
            role: Peer(each.fd, each.size, role)
            for role, each in segments.items()
            if role is not Role.POLICY
        }
        self.thread = threading.Thread(target=self.play)
        self.thread.start()
        assert spaces
        return False

    def play(self) -> None:
        for peer in self.peers.values():
            self.outbox.add_reader(peer)
        reader = Reader(self.outbox, self.peers[Role.ENV])
        self.played = 0
        while True:
            reader.next(30.0)
            ended, flags = reader.flags & FLAG_END, reader.flags & FLAG_BOUNDARY
            reader.release()
            offset = self.outbox.claim(0 if ended else 8, 30.0)
            if ended:
                self.outbox.commit(self.played, KIND_END, FLAG_END, 0)
                return
            self.outbox.buffer[offset : offset + 8] = (1).to_bytes(8, sys.byteorder)
            self.outbox.commit(self.played, KIND_ACTION, flags, 8)
            self.played += 1

    def close(self) -> None:
        self.thread.join(30)
        self.outbox.close()
        for peer in self.peers.values():
            peer.close()


@pytest.mark.parametrize("steps", [60, ENDLESS])
def test_the_caller_plays_a_role_itself(steps: int, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        if steps == ENDLESS:
            await stage.until_stepping()
            stage.supervisor.request_drain("enough")

    stage = Stage(tmp_path, agent("a", steps=steps, external=True))
    stage.hooks = player = Player()
    report = stage.run(act)
    player.close()
    assert states(report) == {"a": "done"}
    assert report.agents["a"].steps == player.played >= 20
    assert report.agents["a"].lost == 0
    assert report.deaths == []


def test_without_a_recorder_nothing_is_counted(tmp_path: Path) -> None:
    report = Stage(tmp_path, agent("a"), recorder=False).run()
    assert states(report) == {"a": "done"}
    assert report.agents["a"].steps == 0


def test_a_supervisor_in_a_thread_of_somebodys_program(tmp_path: Path) -> None:
    """Its host's children are neither reaped nor killed, and its host is as it was before."""
    with (
        subprocess.Popen([sys.executable, "-c", "pass"]) as brief,
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as lasting,
    ):
        os.waitid(os.P_PID, brief.pid, os.WEXITED | os.WNOWAIT)
        stage = Stage(tmp_path, agent("a", fault="grandchildren", at=10))
        reports: list[RunReport] = []
        thread = threading.Thread(target=lambda: reports.append(stage.run(shared_process=True)))
        thread.start()
        thread.join(60)
        assert states(reports[0]) == {"a": "done"}
        assert brief.wait(1) == 0, "its status is still there for its parent"
        assert lasting.poll() is None
        lasting.kill()
    assert not is_subreaper()


def test_at_rest_an_agent_takes_few_descriptors(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        counted.append(len(leaks.open_descriptors()))
        stage.supervisor.request_drain("enough")

    counted: list[int] = []
    for number in (1, 4):
        (folder := tmp_path / str(number)).mkdir()
        stage = Stage(folder, *(agent(f"a{n}", steps=ENDLESS) for n in range(number)))
        stage.run(act)
    assert (counted[1] - counted[0]) / 3 <= 13


def test_names_of_any_script_have_logs(tmp_path: Path) -> None:
    name = "агент/№ 1 " + "長" * 100
    stage = Stage(tmp_path, agent(name, every=1, group="g"))
    report = stage.run()
    assert states(report) == {name: "done"}
    logs = [path.name for path in (stage.run_dir / "logs").iterdir()]
    assert sum(path.startswith("агент%2F%E2%84%96%201") for path in logs) == 6
    assert any((stage.run_dir / "logs" / path).stat().st_size > 2000 for path in logs)


@pytest.mark.guarantee("G11")
def test_logs_are_cut_when_they_grow(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cut = stage.run_dir / "logs" / "a.env.out.1"
        await stage.until(cut.exists, "a log that is cut")
        stage.supervisor.request_drain("enough")
        assert cut.stat().st_size <= 50_000

    report = Stage(tmp_path, agent("a", steps=ENDLESS, every=1), log_bytes_max=50_000).run(act)
    assert states(report) == {"a": "done"}
