"""What a sandbox survives, and what it says where it can't: G3, G4, G6, G7, G8."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dsec.errors import EnvironmentLost, SandboxFailed
from dsec.sandbox import AgentSandbox, TrackedEnv
from dsec.testing import leaks
from tests import watchdog
from tests.sandbox.worlds import Cart, Trap

CART = "tests.sandbox.worlds:Cart"
TRAP = "tests.sandbox.worlds:Trap"


def kill_runner(env: TrackedEnv, number: signal.Signals) -> None:
    os.kill(env.call("pid"), number)


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("standby", ["auto", "fork"])
def test_goes_on_bit_identical(standby: str) -> None:
    """Kills between steps and requests, in several episodes; steps, infos, resets, frames' worth of
    attribute changes and the generator are all as if nothing had been."""
    plain, dice = Cart(), np.random.default_rng(5)
    failover = {"standby": standby, "restarts": {"max": 100}}
    with AgentSandbox(CART, failover=failover, seed=1) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)
        plain.reset(seed=3)
        kills = 0
        for k in range(600):
            if k % 75 == 60:
                kill_runner(env, signal.SIGSEGV if kills % 2 else signal.SIGKILL)
                kills += 1
            if k % 50 == 20:
                env.force_mag = plain.force_mag = float(dice.uniform(5, 15))
            action = int(dice.integers(2))
            (obs, *mine), (expected, *theirs) = env.step(action), plain.step(action)
            assert obs.tobytes() == expected.tobytes() and mine == theirs, k
            if mine[1]:
                (obs, _), (expected, _) = env.reset(), plain.reset()
                assert obs.tobytes() == expected.tobytes(), k
        assert env.np_random.bit_generator.state == plain.np_random.bit_generator.state
        survived = env.failovers
        assert len(survived) == kills == 8
        assert all(each.exact and each.role == "env" for each in survived)
    assert env.failovers == survived, "they can be read when it is closed, too"


@pytest.mark.guarantee("G3")
def test_a_segfault_within_a_step_is_not_seen(tmp_path: Path) -> None:
    plain = Trap("none", -1)
    kwargs = {"what": "segv", "at": -1, "path": str(tmp_path / "sprung")}
    with AgentSandbox(TRAP, env_kwargs=kwargs) as sandbox:
        env = sandbox.get_env()
        assert env.reset(seed=1)[0].tobytes() == plain.reset(seed=1)[0].tobytes()
        env.at = 20
        for k in range(40):
            (obs, *mine), (expected, *theirs) = env.step(k % 3), plain.step(k % 3)
            assert obs.tobytes() == expected.tobytes() and mine == theirs
        assert (tmp_path / "sprung").exists() and len(env.failovers) == 1


@pytest.mark.guarantee("G4")
def test_what_can_not_be_continued_is_said() -> None:
    with AgentSandbox(CART, resource_profile="unprotected") as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)
        before = env.step(1)[0]
        kill_runner(env, signal.SIGKILL)
        obs, reward, terminated, truncated, info = env.step(1)
        assert obs.tobytes() == before.tobytes()
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert "SIGKILL" in info["dsec"]["infra_failure"]["cause"]
        plain = Cart()
        assert env.reset(seed=4)[0].tobytes() == plain.reset(seed=4)[0].tobytes()
        assert env.step(0)[0].tobytes() == plain.step(0)[0].tobytes()

        kill_runner(env, signal.SIGKILL)
        with pytest.raises(EnvironmentLost, match="SIGKILL"):
            _ = env.gravity
        assert env.step(0)[2:4] == (False, True)  # the episode ends with it, and says so, too

        kill_runner(env, signal.SIGKILL)
        _, info = env.reset(seed=5)
        assert "SIGKILL" in info["dsec"]["infra_failure"]["cause"]


@pytest.mark.guarantee("G6", "G7")
@pytest.mark.parametrize(("what", "cause"), [("hang", "hung in step"), ("segv", "SIGSEGV in step")])
def test_a_fatal_step_ends_its_episode(what: str, cause: str) -> None:
    """The successor meets the same end at the same step; the third one doesn't try."""
    kwargs = {"what": what, "at": -1}
    with AgentSandbox(TRAP, env_kwargs=kwargs, deadlines={"step_s": 0.5}) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)
        env.at = 3
        env.step(0)
        before = env.step(0)[0]
        obs, reward, _, truncated, info = env.step(0)
        assert obs.tobytes() == before.tobytes() and truncated and reward == 0.0
        assert cause in info["dsec"]["infra_failure"]["cause"]
        assert env.reset(seed=1)[0][0] == 0 and env.step(1)[0][0] == 1


@pytest.mark.guarantee("G7")
def test_a_spent_budget_is_the_end() -> None:
    kwargs = {"what": "reset", "at": 0}
    with AgentSandbox(TRAP, env_kwargs=kwargs, failover={"restarts": {"max": 1}}) as sandbox:
        env = sandbox.get_env()
        for _ in range(2):
            with pytest.raises(SandboxFailed, match="SIGSEGV in reset") as raised:
                env.reset(seed=1)
            assert "worlds.py" in raised.value.report
        with pytest.raises(SandboxFailed):
            env.step(0)


def test_an_exception_is_the_caller_s() -> None:
    with AgentSandbox(TRAP, env_kwargs={"what": "raise", "at": 2}) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)
        env.step(0)
        with pytest.raises(ValueError, match="trapped"):
            env.step(0)
        assert env.step(0)[4] == {"steps": 3}
        assert env.failovers == []


@pytest.mark.guarantee("G6", "G8")
def test_the_end_of_its_kernel_is_told() -> None:
    with AgentSandbox(CART) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)
        os.kill(env._lanes._kernel.supervisor, signal.SIGKILL)
        with pytest.raises(SandboxFailed, match="kernel"):
            while True:
                env.step(0)


def test_children_of_the_program_are_its_own() -> None:
    """They are neither killed nor reaped, and it has no child that it doesn't know of."""
    own = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        with AgentSandbox(CART) as sandbox:
            before = leaks.children_of(os.getpid())
            sandbox.get_env().reset(seed=1)
            kill_runner(sandbox.get_env(), signal.SIGKILL)
            sandbox.get_env().step(0)
            quick = subprocess.Popen(["/bin/sh", "-c", "exit 7"])
            assert quick.wait(20) == 7
            assert before == {own.pid}
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


SCRIPT = """
import multiprocessing, os, sys
from dsec.sandbox import AgentSandbox

def child(queue):
    queue.get()

sandbox = AgentSandbox("CartPole-v1")
env = sandbox.get_env()
env.reset(seed=1)
queue = multiprocessing.get_context("fork").Queue()
fork = multiprocessing.get_context("fork").Process(target=child, args=(queue,), daemon=True)
fork.start()
print(env._lanes._kernel.guardian, env._lanes._kernel.folder, fork.pid, flush=True)
{end}
"""


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(
    "end", ["while True: env.step(0); env.reset()", "fork.kill(); sys.exit(3)"]
)
def test_nothing_is_left_of_a_program_s_sandbox(end: str) -> None:
    """However the program ends, and although a fork of it lives on."""
    program = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("{end}", end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    with program.stdout:
        guardian, folder, fork = program.stdout.readline().split()
    if "while" in end:
        program.kill()
    assert program.wait(30) in (-signal.SIGKILL, 3)
    gone = Path(f"/proc/{guardian}")
    watchdog.until(lambda: not gone.exists(), 20, "the end of the guardian")
    assert not Path(folder).exists()
    if Path(f"/proc/{fork}").exists():
        os.kill(int(fork), signal.SIGKILL)


@pytest.mark.guarantee("G3")
def test_what_can_not_be_told_is_an_exception_and_no_death() -> None:
    with AgentSandbox("tests.sandbox.worlds:Telling", env_kwargs={"at": 2}) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)
        env.step(0)
        with pytest.raises(TypeError, match=r'infos\[0\]\["lock"\]: .*object has no place'):
            env.step(0)
        done = env.get_wrapper_attr("steps")
        obs, reward, _, _, info = env.step(0)  # it has done the step before, too
        assert (done, obs[0], reward, info) == (2, 3.0, 3.0, {"dsec": 5})
        env.at = 0
        with pytest.raises(TypeError, match="lock"):
            env.reset(seed=1)
        assert env.step(0)[0][0] == 1.0
        assert env.failovers == []
