"""While its process is away an environment answers with what was seen last, if that is wanted: how
often, what is said of it, and that nothing comes out differently for it (decision 0021)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.errors import InvalidAction
from dsec.recording import Recording
from dsec.sandbox import AgentSandbox, TrackedEnv
from dsec.vector import make_vec
from tests.sandbox.worlds import Cart, Trap

TRAP = "tests.sandbox.worlds:Trap"
HANGS = {"what": "hang", "at": -1}


def hanging(folder: Path, **more: Any) -> AgentSandbox:
    """It hangs once, for its deadline and the time in which its stack is written."""
    kwargs = {**HANGS, "path": str(folder / "sprung")}
    failover = {"cached_steps": 3, "restarts": {"max": 100}}
    return AgentSandbox(
        TRAP, env_kwargs=kwargs, failover=failover, deadlines={"step_s": 0.2}, seed=1, **more
    )


def begun(env: TrackedEnv, hang_at: int) -> Trap:
    plain = Trap("none", -1)
    assert env.reset(seed=3)[0].tobytes() == plain.reset(seed=3)[0].tobytes()
    env.at = hang_at
    return plain


def same_step(mine: Any, theirs: Any) -> None:
    assert mine[0].tobytes() == theirs[0].tobytes() and mine[1:4] == theirs[1:4]
    assert {**theirs[4]}.items() <= mine[4].items()


@pytest.mark.guarantee("G3")
def test_at_most_so_many_and_then_the_answer(tmp_path: Path) -> None:
    with hanging(tmp_path, record=tmp_path / "run") as sandbox:
        env = sandbox.get_env()
        plain = begun(env, 2)
        same_step(env.step(1), plain.step(1))
        before = env.step(0)
        seen = [before, *(env.step(k % 3) for k in (1, 2, 1))]
        assert (tmp_path / "sprung").exists(), "it hung"
        window = env.reward_window
        told = [each[4]["dsec"] for each in seen[:3]]
        assert [each["stale"] for each in told] == [True] * 3
        assert [each["coasted"] for each in told] == [1, 2, 3]
        assert [each["action_pending"] for each in told] == [True, False, False]
        for obs, reward, terminated, truncated, _ in seen[:3]:
            assert obs[0] == 1.0 and (reward, terminated, truncated) == (0.0, False, False)
        same_step(seen[3], plain.step(0))
        assert seen[3][4]["dsec"] == {"coasted": 3, "action": 0}
        assert window.tolist() == [env.reward_window[0], seen[3][1]], "stale rewards are none"
        for k in range(10):
            same_step(env.step(k % 3), plain.step(k % 3))
        assert len(env.failovers) == 1 and env.failovers[0].exact
    with Recording.open(tmp_path / "run") as recording:
        rows = recording.transitions("sandbox-000", env=0)
        assert rows.action.tolist() == [1, 0, *(k % 3 for k in range(10))], "no stale one is there"


def test_what_is_due_comes_after_what_else_is_asked(tmp_path: Path) -> None:
    with hanging(tmp_path, step_api="gym") as sandbox:
        env = sandbox.get_env()
        begun(env, 1)
        obs, reward, done, info = env.step(2)
        assert info["dsec"]["stale"] and (obs[0], reward, done) == (0.0, 0.0, False)
        with pytest.raises(InvalidAction):
            env.step(7)
        assert env.steps == 1, "the answer was waited for, and the question asked after it"
        obs, _, _, info = env.step(1)
        assert obs[0] == 1.0 and info["dsec"] == {"coasted": 1, "action": 2}
        assert env.step(1)[0][0] == 2.0
        assert len(env.failovers) == 1


def test_an_episode_that_begins_owes_nothing(tmp_path: Path) -> None:
    with hanging(tmp_path) as sandbox:
        env = sandbox.get_env()
        begun(env, 1)
        assert env.step(2)[4]["dsec"]["stale"]
        assert env.reset(seed=5)[0][0] == 0.0
        obs, *_, info = env.step(1)
        assert obs[0] == 1.0 and "dsec" not in info
        assert len(env.failovers) == 1


def test_what_it_raised_is_raised_by_the_step_that_gets_it(tmp_path: Path) -> None:
    """Its successor meets an exception in place of the hang."""
    kwargs = {"what": "hang then raise", "at": -1, "path": str(tmp_path / "sprung")}
    limits = {"failover": {"cached_steps": 1}, "deadlines": {"step_s": 0.2}}
    with AgentSandbox(TRAP, env_kwargs=kwargs, **limits) as sandbox:  # type: ignore[arg-type]
        env = sandbox.get_env()
        begun(env, 1)
        assert env.step(2)[4]["dsec"]["stale"]
        with pytest.raises(ValueError, match="trapped"):
            env.step(1)
        assert env.step(1)[0][0] == 2.0
        assert len(env.failovers) == 1


@pytest.mark.guarantee("G4")
def test_a_loss_is_told_when_it_comes(tmp_path: Path) -> None:
    """Nothing was kept: the answer to the action that was sent says so."""
    kwargs = {**HANGS, "path": str(tmp_path / "sprung")}
    failover = {"cached_steps": 2, "standby": "none"}
    with AgentSandbox(
        TRAP, env_kwargs=kwargs, failover=failover, deadlines={"step_s": 0.2}
    ) as sandbox:
        env = sandbox.get_env()
        begun(env, 1)
        assert env.step(2)[4]["dsec"]["stale"] and env.step(1)[4]["dsec"]["stale"]
        *_, truncated, info = env.step(0)
        assert truncated and "hung" in info["dsec"]["infra_failure"]["cause"]
        assert (info["dsec"]["coasted"], info["dsec"]["action"]) == (2, 2)


@pytest.mark.guarantee("G3", "G12")
def test_who_ignores_it_sees_no_difference() -> None:
    """Killed at random, and the action given again until it counts."""
    plain, dice = Cart(), np.random.default_rng(5)
    failover = {"cached_steps": 3, "restarts": {"max": 1000}}
    with AgentSandbox("tests.sandbox.worlds:Cart", failover=failover, seed=1) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)
        plain.reset(seed=3)
        kills = 0
        for k in range(400):
            if k % 40 == 30:
                os.kill(env.call("pid"), signal.SIGKILL)
                kills += 1
            action = int(dice.integers(2))
            mine = env.step(action)
            while mine[4].get("dsec", {}).get("stale"):
                mine = env.step(1 - action)  # which is not done
            expected = plain.step(action)
            assert mine[0].tobytes() == expected[0].tobytes() and mine[1:4] == expected[1:4], k
            if mine[2]:
                assert env.reset()[0].tobytes() == plain.reset()[0].tobytes()
        assert len(env.failovers) == kills == 10


def test_where_it_has_no_effect_it_is_refused() -> None:
    with pytest.raises(ValueError, match="cached_steps is for an AgentSandbox"):
        make_vec("CartPole-v1", 2, failover={"cached_steps": 3})
    with pytest.raises(ValueError, match="cached_steps"):
        AgentSandbox("CartPole-v1", failover={"cached_steps": -1})
