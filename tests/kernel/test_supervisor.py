"""The supervisor with real processes: what ends, what goes on, what is said and what is left.

The leak check around every test proves G8 for each of these ends: no process, zombie, descriptor
or segment survives `run`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsec.ipc.frames import Phase, Role
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
from dsec.kernel import reap, recorder, spawn
from dsec.kernel.machine import AgentState
from dsec.kernel.report import AgentReport, RunReport
from dsec.kernel.spec import ImageSpec
from tests import leaks
from tests.kernel.helpers.stage import BASE, ENDLESS, WORLDS, Recording, Stage, agent

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G8")]


def states(report: RunReport) -> dict[str, str]:
    return {name: each.state for name, each in report.agents.items()}


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


# ---------------------------------------------------------------- deaths


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
    "hang": ("hang", r"hung in step for 1\.\d s \(deadline 1 s\), killed"),
    "reset": ("hang", r"hung in reset for 1\.\d s \(deadline 1 s\), killed"),
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
        ("pause", "hang", r"hung in close for 1\.\d s \(deadline 1 s\), killed"),
    ],
)
def test_who_fails_in_close_has_done_its_work(
    last: str, kind: str, cause: str, tmp_path: Path
) -> None:
    bad = agent("a", entry=f"{WORLDS}:FaultyClose", last=last, deadlines={Phase.CLOSE: 1.0})
    report = Stage(tmp_path, bad).run()
    assert states(report) == {"a": "quarantined"}
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
    assert re.fullmatch(r"hung in construct for 2\.\d s \(deadline 2 s\), killed", death.cause)
    assert "faulty.py" in death.stderr_tail


# ---------------------------------------------------------------- zygotes

IMPORTS = {
    "raise": (
        "raise RuntimeError('not today')",
        "import",
        "raised RuntimeError while it was imported: not today",
    ),
    "missing": ("import no_such_module_at_all", "import", "no_such_module_at_all"),
    "segv": ("import ctypes; ctypes.string_at(8)", "import", "killed by SIGSEGV in import"),
    "exit": ("import os; os._exit(3)", "import", "left with exit code 3 in import"),
    "hang": ("import signal; signal.pause()", "import", "hung in import for"),
}


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("name", IMPORTS)
def test_an_image_that_can_not_be_imported_fails_its_agents(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, kind, said = IMPORTS[name]
    (tmp_path / "broken_world.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    images = (BASE, ImageSpec("bad", ("broken_world",), import_timeout_s=3.0))
    stage = Stage(tmp_path, agent("good", steps=200), agent("bad", image="bad"), images=images)
    report = stage.run()
    assert report.agents["bad"].state == "quarantined"
    assert (report.failure_kind, report.failure_group) == ("config", "bad")
    [death] = report.deaths
    assert (death.agent, death.kind) == ("bad", kind)
    assert said in death.cause
    assert said in report.failure
    assert "broken_world" in report.failure or "image bad" in report.failure
    assert report.failure_error is not None


def test_rings_larger_than_the_memory_are_more_than_the_machine_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.ipc.segment._RESERVE_BYTES", 1 << 50)
    report = Stage(tmp_path, agent("a")).run()
    assert states(report) == {"a": "done"}
    assert report.failure_kind == "machine"
    assert re.search(r"needs [\d,]+ bytes of shared memory; [\d,]+ are available", report.failure)
    assert "ring_slots" in report.failure


@pytest.mark.guarantee("G7")
def test_a_zygote_that_does_not_answer_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "FORK_TIMEOUT_S", 1.0)

    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        zygote, server = stage.supervisor.zygotes["base"], stage.supervisor.recorder
        assert zygote.runner and server and server.runner
        first = zygote.runner.pid
        os.kill(first, signal.SIGSTOP)
        os.kill(server.runner.pid, signal.SIGKILL)
        await stage.until(lambda: zygote.runner and zygote.runner.pid != first, "another zygote")
        await stage.until(lambda: server.up, "another recorder")
        stage.supervisor.request_drain("enough")

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    report = stage.run(act)
    assert states(report) == {"a": "done"}
    assert report.agents["a"].lost == 0
    assert any("hung" in fields.get("cause", "") for _, fields in stage.hooks.notes)


@pytest.mark.guarantee("G7")
def test_a_zygote_that_dies_is_started_again_and_its_runners_go_on(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.until_stepping("old")
        zygote = stage.supervisor.zygotes["base"]
        assert zygote.runner is not None
        first = zygote.runner.pid
        os.kill(first, signal.SIGKILL)
        await stage.until(lambda: not zygote.up, "the zygote's death")
        recorder_runner = stage.supervisor.recorder and stage.supervisor.recorder.runner
        assert recorder_runner is not None
        os.kill(recorder_runner.pid, signal.SIGKILL)  # which has to be forked anew
        await stage.until(lambda: zygote.up, "another zygote")
        assert zygote.runner.pid != first
        steps = stage.supervisor.report.agents["old"].steps
        await stage.until_stepping("old", steps=steps + 2000)
        stage.supervisor.request_drain("enough")

    stage = Stage(tmp_path, agent("old", steps=ENDLESS))
    report = stage.run(act)
    assert states(report) == {"old": "done"}
    assert [event for event, _ in stage.hooks.notes].count("server_restart") == 2
    assert [death.role for death in report.deaths] == [Role.RECORDER]


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


@pytest.mark.guarantee("G6")
def test_a_stopped_recorder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "SILENCE_MAX_S", 1.0)

    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        server = stage.supervisor.recorder
        assert server is not None
        assert server.runner is not None
        first = server.runner.pid
        os.kill(first, signal.SIGSTOP)
        await stage.until(lambda: server.runner and server.runner.pid not in (0, first), "another")
        steps = stage.supervisor.report.agents["a"].steps
        await stage.until_stepping("a", steps=steps + 2000)
        stage.supervisor.request_drain("enough")

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    report = stage.run(act)
    assert states(report) == {"a": "done"}
    assert report.agents["a"].lost == 0
    [death] = report.deaths
    assert (death.role, death.kind) == (Role.RECORDER, "hang")


def test_a_recorder_that_dies_again_and_again_ends_the_run(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        server = stage.supervisor.recorder
        assert server is not None
        while not server.over:
            if server.up and server.runner is not None:
                os.kill(server.runner.pid, signal.SIGKILL)
            await asyncio.sleep(0.02)

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    report = stage.run(act)
    assert report.failure_kind == "internal"
    assert "recorder" in report.failure
    assert [death.role for death in report.deaths] == [Role.RECORDER] * 6


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
    reap.set_subreaper(False)
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
    assert not reap.set_subreaper(False)


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


def test_many_agents_start_in_waves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More agents than slots: never more than the slots start at a time, and all are served."""
    monkeypatch.setattr("dsec.kernel.supervisor.SLOT_S", 1000.0)
    monkeypatch.setattr("dsec.kernel.tree.starting_max", lambda cores: 2)
    most = 0

    class Counting(Recording):
        def agent(self, report: AgentReport) -> None:
            nonlocal most
            starting = (AgentState.STARTING, AgentState.WIRING)
            agents = stage.supervisor.agents.values()
            most = max(most, sum(each.state in starting for each in agents))

    stage = Stage(tmp_path, *(agent(f"a{n}", steps=10) for n in range(6)))
    stage.hooks = Counting()
    report = stage.run()
    assert set(states(report).values()) == {"done"}
    assert 1 <= most <= 2
