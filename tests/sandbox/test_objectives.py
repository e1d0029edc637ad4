"""The objectives of a sandbox's reward, changed while it steps."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from dsec.errors import LocalError
from dsec.runners.failure import UserCodeError
from dsec.sandbox import AgentSandbox

CART = "tests.sandbox.worlds:Cart"
WHOSE = {"type": "dense", "entry": "tests.sandbox.worlds:whose"}


def weighed(task: float, whose: float) -> dict[str, Any]:
    return {"task": {"weight": task, "type": "dense"}, "whose": {"weight": whose, **WHOSE}}


def test_a_change_is_in_force_at_the_next_step_and_in_a_successor() -> None:
    reward = {"objectives": weighed(0.5, 0.5), "kwargs": {"dynamic_weighting": False}}
    with AgentSandbox(CART, seed=1, reward=reward) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)
        pid = int((env.step(0)[1] - 0.5) / 0.5)
        atom = sandbox.snapshot()
        obs = env.step(1)[0]
        sandbox.update_objectives(weighed(0.25, 0.75))
        again, value, *_ = env.step(0)
        assert value == 0.25 + 0.75 * pid
        assert obs.shape == again.shape
        os.kill(pid, signal.SIGKILL)
        successor = (env.step(1)[1] - 0.25) / 0.75
        assert successor == int(successor) and successor not in (0, pid), "another process"
        sandbox.update_objectives({"whose": None, "task": {"weight": 1.0, "type": "dense"}})
        assert env.step(0)[1] == 1.0
        sandbox.restore(atom)
        assert env.step(0)[1] == 0.5 + 0.5 * successor, "objectives are part of the state"


def test_what_does_not_add_up_is_refused_and_changes_nothing() -> None:
    reward = {"objectives": weighed(0.5, 0.5), "kwargs": {"dynamic_weighting": False}}
    with AgentSandbox(CART, seed=1, reward=reward) as sandbox:
        env = sandbox.get_env()
        env.reset(seed=3)
        value = env.step(0)[1]
        more = {"other": {"weight": 0.0, "type": "sparse", "entry": "tests.sandbox.nowhere:x"}}
        for changes, kind, words in (
            ({"task": {"weight": 0.9, "type": "dense"}}, LocalError, "add up to 1.4"),
            ({"nobody": None}, LocalError, "no objective 'nobody'"),
            ([], LocalError, "expected a mapping"),
            (more, UserCodeError, "nowhere"),
        ):
            with pytest.raises(kind, match=words):
                sandbox.update_objectives(changes)  # type: ignore[arg-type]
            assert env.step(0)[1] == value


def test_a_reward_without_objectives_has_none_to_change() -> None:
    for reward in (None, "tests.sandbox.worlds:Counted"):
        with AgentSandbox(CART, seed=1, reward=reward) as sandbox:
            sandbox.get_env().reset(seed=3)
            with pytest.raises(LocalError, match="no reward of several objectives"):
                sandbox.update_objectives({})
