"""What goes wrong around a sandbox: tried too long, interrupted, closed in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from dsec.errors import EnvironmentLost, SandboxFailed
from dsec.sandbox import AgentSandbox
from dsec.vector import make_vec
from tests import watchdog

LONG_S = 50.0  # more than all trials may take, or each kill would begin them anew


@pytest.fixture
def alarm() -> Iterator[None]:
    """What Ctrl-C is, but in half a second."""

    def interrupt(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.soak
def test_a_long_trial_keeps_nobody_waiting_and_protects_when_it_is_over() -> None:
    """Its actions are tried, and one in three hangs; nobody waits for all these trials."""
    failover = {"restarts": {"max": 1000}}
    with AgentSandbox("tests.sandbox.worlds:Stuck", seed=1, failover=failover) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)

        killed = time.monotonic()

        def protected() -> bool:
            nonlocal killed
            env.step(0)
            if time.monotonic() - killed < LONG_S:
                return False
            os.kill(env.pid(), signal.SIGKILL)
            killed = time.monotonic()
            try:
                env.pid()
            except EnvironmentLost:
                env.reset(seed=1)
            return env.failovers[-1].level in ("state", "fork")

        watchdog.until(protected, 4 * LONG_S, "that it is known how to keep its state")
        assert env.failovers[-1].exact


def test_closed_while_it_is_tried() -> None:
    with AgentSandbox("tests.sandbox.worlds:Stuck") as sandbox:
        sandbox.get_env().reset(seed=1)
        assert sandbox.get_env().step(0)[0][0] == 1.0


@pytest.mark.guarantee("G8")
def test_an_interrupted_step_is_not_waited_for_at_the_end(alarm: None) -> None:
    """It would take longer than this test may."""
    kwargs = {"what": "hang", "at": -1}
    with AgentSandbox(
        "tests.sandbox.worlds:Trap", env_kwargs=kwargs, deadlines={"step_s": 600.0}
    ) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)
        env.at = 1
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            env.step(0)


def test_an_interrupted_step_is_taken_in_by_the_next(alarm: None) -> None:
    with AgentSandbox("tests.sandbox.worlds:Slow") as sandbox:
        env = sandbox.get_env()
        env.reset(seed=1)
        env.seconds = 1.5
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            env.step(0)
        env.seconds = 0.0
        assert env.step(0)[0][0] == 2.0


@pytest.mark.guarantee("G4")
def test_an_environment_s_own_dsec_is_in_nobody_s_way() -> None:
    with AgentSandbox("tests.sandbox.worlds:Owned", resource_profile="unprotected") as sandbox:
        env = sandbox.get_env()
        assert env.reset(seed=1)[1] == {"dsec": 5}
        env.step(0)
        *_, truncated, info = env.step(0)
        assert truncated and "SIGSEGV" in info["dsec"]["infra_failure"]["cause"]
    envs = make_vec(
        "tests.sandbox.worlds:Owned", 2, autoreset_mode="SameStep", resource_profile="unprotected"
    )
    try:
        envs.reset(seed=1)
        envs.step(np.zeros(2, np.int64))
        infos = envs.step(np.zeros(2, np.int64))[4]
        assert "SIGSEGV" in infos["dsec"]["infra_failure"]["cause"][0]
    finally:
        envs.close()


def test_what_is_no_number_of_seconds() -> None:
    with pytest.raises(ValueError, match="answer_timeout_s is a number of seconds"):
        AgentSandbox("CartPole-v1", answer_timeout_s=-1.0)
    with pytest.raises(TypeError, match="limits is a dict"):
        AgentSandbox("CartPole-v1", limits=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"failover\.standby: expected auto, state"):
        AgentSandbox("CartPole-v1", failover={"standby": "warm"})
    with pytest.raises(SandboxFailed, match="did you mean"):
        AgentSandbox("CartPole-v99")
