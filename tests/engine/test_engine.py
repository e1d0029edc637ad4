"""The kernel beside a program: both faces, what each end's death does to the other, and sharing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dsec.engine import Engine, EngineDied, EngineRefused, Event, SyncEngine, methods, rpc
from dsec.errors import ChannelTimeout, LocalError, SandboxFailed
from dsec.sandbox import AgentSandbox
from dsec.testing import leaks
from tests import watchdog

PATIENCE_S = 60.0
RUN = """\
run: {name: t, seed: 7, steps: %d}
agents:
  - {name: pole, env: {id: CartPole-v1}, policy: {entry: "dsec.policies:RandomPolicy"}}
"""


def write(folder: Path, steps: int) -> str:
    path = folder / "run.yaml"
    path.write_text(RUN % steps)
    return str(path)


def test_a_run_without_an_event_loop(tmp_path: Path) -> None:
    with Engine.spawn_sync() as engine:
        assert isinstance(engine, SyncEngine) and engine.alive
        run = engine.run_start(write(tmp_path, 300), out=str(tmp_path / "out"))
        names = []
        for event in engine.events(timeout_s=PATIENCE_S):
            names.append(event.name)
            if event.name == "event.ended":
                break
        assert {"event.agent", "event.progress", "event.ended"} <= {*names}
        assert engine.run_status(run.run).state == "ended"
        assert [each.state for each in engine.agents(run=run.run)] == ["done"]
        assert list(engine.events(timeout_s=0.0)) == []
        folder = engine.facts.folder
        assert engine.facts.guardian not in leaks.children_of(os.getpid())
    assert not Path(folder).exists()
    with pytest.raises(LocalError, match="closed"):
        engine.agents()
    engine.close()


def test_a_run_with_an_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        heard: list[Event] = []
        async with Engine.spawn(on_event=heard.append) as engine:
            with pytest.raises(LocalError, match="started before"):
                await engine.start()
            config = write(tmp_path, 10**9)
            run = await engine.run_start(config, out=str(tmp_path / "out"))
            calls = [engine.run_status(run.run) for _ in range(5)]
            assert {each.run for each in await asyncio.gather(*calls)} == {run.run}
            with pytest.raises(ChannelTimeout):
                asked = methods.RunName(run=run.run)
                await engine.call("run.status", asked, methods.RunStatus, timeout_s=0.0)
            ended = await engine.run_stop(run.run, kill=True)
            assert ended.state == "ended" and ended.exit_code is not None
            with pytest.raises(EngineRefused, match="there is no run 'x'") as refused:
                await engine.run_status("x")
            assert refused.value.code == rpc.Code.UNKNOWN and refused.value.where == "run"
            assert "event.ended" in {each.name for each in heard}
        with pytest.raises(LocalError, match="not running"):
            await engine.agents()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_events_one_by_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with Engine.spawn(events=["event.ended"]) as engine:
            await engine.run_start(write(tmp_path, 100), out=str(tmp_path / "out"))
            async for event in engine.events():
                assert event.name == "event.ended" and event.params["exit_code"] == 0
                break

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("victim", ["supervisor", "guardian"])
def test_one_clear_error_when_the_kernel_is_killed(victim: str, tmp_path: Path) -> None:
    """Everybody who waits gets it, and everybody who comes later."""

    async def main() -> None:
        async with Engine.spawn() as engine:
            run = await engine.run_start(write(tmp_path, 10**9), out=str(tmp_path / "out"))
            waiting = [asyncio.ensure_future(engine.run_stop(run.run))]
            if victim == "supervisor":  # whose guardian has the last word, and all else at once
                os.kill(engine.facts.supervisor, signal.SIGKILL)
            else:
                os.kill(engine.facts.guardian, signal.SIGKILL)
            waiting.append(asyncio.ensure_future(engine.agents()))
            found = await asyncio.gather(*waiting, return_exceptions=True)
            with pytest.raises(EngineDied) as later:
                while True:
                    await engine.agents()
            with pytest.raises(EngineDied):
                while True:
                    async for _ in engine.events():
                        pass
            died = later.value
            if victim == "supervisor":
                assert {type(each) for each in found} == {EngineDied}
                assert (died.exit_code, died.signal) == (137, signal.SIGKILL)
                assert "SIGKILL" in died.stderr_tail
            else:
                assert (died.exit_code, died.signal) == (None, 0)
                assert "guardian was killed" in str(died)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_the_same_error_without_an_event_loop() -> None:
    with SyncEngine.spawn() as engine:
        os.kill(engine.facts.supervisor, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(EngineDied, match="signal 9"):
                while True:
                    engine.agents()
        assert not engine.alive


def test_threads_share_it_and_a_fork_may_not_use_it() -> None:
    with SyncEngine.spawn() as engine:
        found: list[object] = []

        def ask() -> None:
            found.extend(engine.agents() for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE_S)
        assert found == [()] * 80
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                engine.agents()
            except LocalError as error:
                engine.close()
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert engine.agents() == (), "and it is none the worse for it"


# ---------------------------------------------------------------- sandboxes share one


def engine_of(sandbox: AgentSandbox) -> int:
    return sandbox.get_env()._lanes._kernel.guardian


def test_sandboxes_share_a_kernel_until_the_last_is_closed() -> None:
    with AgentSandbox("tests.sandbox.worlds:Cart") as first:
        guardian = engine_of(first)
        with AgentSandbox("tests.sandbox.worlds:Cart") as second:
            assert engine_of(second) == guardian
            env = second.get_env()
            env.reset(seed=1)
            os.kill(env.call("pid"), signal.SIGKILL)
            env.step(0)
            assert len(env.failovers) == 1 and first.get_env().failovers == []
        first.get_env().reset(seed=1)
        assert first.get_env().step(1)[1] == 1.0
    watchdog.until(lambda: not Path(f"/proc/{guardian}").exists(), PATIENCE_S, "its end")


def test_the_end_of_a_kernel_is_told_to_each_and_the_next_has_a_new_one() -> None:
    with AgentSandbox("CartPole-v1") as first, AgentSandbox("CartPole-v1") as second:
        lost = engine_of(first)
        os.kill(first.get_env()._lanes._kernel.supervisor, signal.SIGKILL)
        for each in (first, second):
            with pytest.raises(SandboxFailed, match="the kernel is gone"):
                each.get_env().reset(seed=1)
                while True:
                    each.get_env().step(0)
        with AgentSandbox("CartPole-v1") as third:
            assert engine_of(third) != lost
            third.get_env().reset(seed=1)
            first.close()
            assert third.get_env().step(0)[1] == 1.0
    watchdog.until(lambda: not Path(f"/proc/{lost}").exists(), PATIENCE_S, "its end")


def test_a_fork_opens_a_sandbox_of_its_own() -> None:
    script = (
        "import os\n"
        "from dsec.sandbox import AgentSandbox\n"
        "a = AgentSandbox('CartPole-v1'); a.get_env().reset(seed=1)\n"
        "pid = os.fork()\n"
        "with AgentSandbox('CartPole-v1') as b:\n"
        "    b.get_env().reset(seed=1)\n"
        "    mine = b.get_env()._lanes._kernel.guardian == a.get_env()._lanes._kernel.guardian\n"
        "    assert mine is (pid != 0)\n"
        "    assert b.get_env().step(0)[1] == 1.0\n"
        "if pid:\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "    assert a.get_env().step(0)[1] == 1.0\n"
        "    print('fine')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "fine\n", done.stderr
    mark = os.environ[leaks.MARK]
    watchdog.until(lambda: not leaks.marked(mark), PATIENCE_S, "the end of what it left open")


def test_numbers_that_json_has_not_reach_an_environment() -> None:
    with AgentSandbox("tests.engine.bounds:Bounded", env_kwargs={"low": float("-inf")}) as sandbox:
        env = sandbox.get_env()
        assert env.observation_space.low.tolist() == [float("-inf")]
