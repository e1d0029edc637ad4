"""Zygotes and the recorder, real ones: what can not begin, and what is started again.

The leak check around every test proves G8 for each of these ends: no process, zombie, descriptor
or segment survives `run`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from dsec.engine import attendant
from dsec.ipc.frames import Role
from dsec.kernel import spawn
from dsec.spec import ImageSpec
from tests.kernel.helpers.stage import BASE, ENDLESS, Stage, agent, states

pytestmark = [pytest.mark.slow, pytest.mark.guarantee("G8")]


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


NO_MEMORY = {
    "python": "raise MemoryError",
    "loader": "raise ImportError('libx.so: failed to map segment from shared object')",
    "library": (
        "import os\n"
        "os.write(2, b'OpenBLAS error: Memory allocation still failed after 10 retries\\n')\n"
        "os._exit(1)"
    ),
}


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("name", NO_MEMORY)
def test_an_image_without_memory_is_the_machines_fault(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_world.py").write_text(NO_MEMORY[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    images = (BASE, ImageSpec("large", ("large_world",)))
    report = Stage(tmp_path, agent("a", image="large"), images=images).run()
    assert report.failure_kind == "machine"
    assert "image large: " in report.failure
    [death] = report.deaths
    assert (death.agent, death.kind) == ("a", "spawn")
    assert death.short_of_memory


@pytest.mark.guarantee("G6")
def test_what_no_configuration_named_is_not_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a recorder that never was, for want of its image, has not died."""
    (tmp_path / "broken_library.py").write_text("raise ImportError('not installed right')")
    monkeypatch.syspath_prepend(str(tmp_path))
    images = (ImageSpec("base", ("broken_library",), own=True),)
    report = Stage(tmp_path, agent("a"), images=images).run()
    assert report.failure_kind == "machine"
    assert "not installed right" in report.failure
    assert [death.agent for death in report.deaths] == ["a"]


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("image", ["base", "other"])
def test_another_dsec_is_refused_before_it_reads_a_frame(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.ipc.launch.origin", lambda: "9.9 in /elsewhere/dsec")
    images = (BASE, ImageSpec("other", ("json",)))
    report = Stage(tmp_path, agent("a", image=image), images=images).run()
    assert report.failure_kind == "machine"
    assert "the supervisor is dsec-kernel 9.9 in /elsewhere/dsec, and what it starts is 0." in (
        report.failure
    )
    # Both images refuse. If the one that the agent doesn't need is the first, it never starts.
    assert len(report.deaths) == 1 or (image == "other" and not report.deaths)
    assert {death.agent for death in report.deaths} <= {"a"}


@pytest.mark.guarantee("G7")
def test_servers_killed_before_they_are_up_are_started_again(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        run = stage.supervisor
        for server in (run.zygotes["base"], stage.recorder):
            await stage.until(lambda s=server: s.runner and s.runner.pid, "its process")
            assert server.runner is not None
            assert not server.was_up, "it is still on its way"
            os.kill(server.runner.pid, signal.SIGKILL)

    stage = Stage(tmp_path, agent("a"))
    report = stage.run(act)
    assert states(report) == {"a": "done"}
    assert not report.failure
    restarted = [fields["name"] for event, fields in stage.hooks.notes if event == "restart"]
    assert sorted(restarted) == ["recorder", "zygote-base"]


@pytest.mark.guarantee("G7")
def test_an_image_whose_import_is_killed_each_time_is_no_mistake_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "killed_world.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    images = (BASE, ImageSpec("bad", ("killed_world",), import_timeout_s=30.0))
    stage = Stage(tmp_path, agent("good"), agent("bad", image="bad"), images=images)
    report = stage.run()
    assert states(report) == {"good": "done", "bad": "quarantined"}
    assert report.failure_kind == "machine"
    assert report.failure == "image bad: killed by SIGKILL in import"
    assert [event for event, _ in stage.hooks.notes].count("restart") == spawn.RESTARTS_MAX


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
        zygote, server = stage.supervisor.zygotes["base"], stage.recorder
        assert zygote.runner and server.runner
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
        recorder_runner = stage.recorder.runner
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
    assert [event for event, _ in stage.hooks.notes].count("restart") == 2
    assert [death.role for death in report.deaths] == [Role.RECORDER]


# ---------------------------------------------------------------- the recorder


@pytest.mark.guarantee("G6")
def test_a_stopped_recorder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendant, "SILENCE_MAX_S", 1.0)

    async def act(stage: Stage) -> None:
        await stage.until_stepping()
        server = stage.recorder
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
        server = stage.recorder
        while not server.over:
            if server.up and server.runner is not None:
                os.kill(server.runner.pid, signal.SIGKILL)
            await asyncio.sleep(0.02)

    stage = Stage(tmp_path, agent("a", steps=ENDLESS))
    report = stage.run(act)
    assert report.failure_kind == "machine", "SIGKILL comes from outside"
    assert "recorder" in report.failure
    assert [death.role for death in report.deaths] == [Role.RECORDER] * 7, "the last life, too"
