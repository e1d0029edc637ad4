"""The reward runner: that a computed reward has seen the whole transition, and exact numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from dsec.errors import DsecError
from dsec.ipc.frames import EnvSettings, Phase, Role
from dsec.reward import EnvReward, FunctionReward
from dsec.runners.failure import UserCodeError
from dsec.runners.reward import as_rewards
from tests.runners import worlds
from tests.runners.kernel import Agent, AgentPlan, Agents


def expected(agent: Agent) -> list[np.ndarray[Any, Any]]:
    """What worlds.Shaped must have computed, from what the rings say."""
    observed, found = agent.observed(), []
    for seq, action in enumerate(agent.actions()):
        before, after = observed[seq], observed[seq + 1]
        rewards = []
        for i in range(agent.plan.num_envs):
            led_to = after.finals.get(i, worlds.pick(after.obs, i))
            rewards.append(
                after.reward[i]
                + 10 * worlds.checksum(worlds.pick(before.obs, i))
                + 100 * worlds.checksum(led_to)
                + 1000 * worlds.checksum(worlds.pick(action, i))
                + int(after.ends[i])
                + len(after.infos[i])
            )
        found.append(np.array(rewards))
    return found


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("plan_seed", [1, 4, 6])
def test_a_reward_sees_the_whole_transition(agents: Agents, num_envs: int, plan_seed: int) -> None:
    plan = AgentPlan(
        env=EnvSettings(entry=f"{worlds.HERE}:Generated", kwargs={"plan": plan_seed}),
        reward=f"{worlds.HERE}:Shaped",
        num_envs=num_envs,
        steps=70 * num_envs,
    )
    agent = agents(plan).run()
    assert any(record.finals for record in agent.observed()), "the example must have ends"
    for seq, (got, wanted) in enumerate(zip(agent.rewards(), expected(agent), strict=True)):
        assert got.tobytes() == wanted.tobytes(), seq


def test_a_function_can_be_the_reward(agents: Agents) -> None:
    plan = AgentPlan(
        reward="dsec.reward:FunctionReward",
        reward_kwargs={"entry": f"{worlds.HERE}:doubled"},
        steps=30,
    )
    agent = agents(plan).run()
    assert [float(r[0]) for r in agent.rewards()] == [2.0] * 30


def given() -> dict[str, Any]:
    """What every reward is constructed with."""
    space = spaces.Discrete(2)
    return {"observation_space": space, "action_space": space, "num_envs": 1, "seed": 1}


def test_a_function_that_is_none_is_refused(agents: Agents) -> None:
    plan = AgentPlan(
        reward="dsec.reward:FunctionReward", reward_kwargs={"entry": f"{worlds.HERE}:dubled"}
    )
    agent = agents(plan).wire()
    error = agent.reward.failure().error
    assert (error.where, error.lookup) == ("reward.kwargs.entry", True)
    assert "did you mean doubled?" in error.message
    with pytest.raises(TypeError, match="is an int, not a function"):
        FunctionReward(entry=f"{worlds.HERE}:A_NUMBER", **given())


def test_a_keyword_without_effect_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'scale'"):
        EnvReward(scale=2, **given())
    with pytest.raises(TypeError, match="unexpected keyword argument 'entri'"):
        FunctionReward(entry=f"{worlds.HERE}:doubled", entri=1, **given())


def test_the_default_passes_on_by_both_ways(agents: Agents) -> None:
    """Copied by the runner, or computed for a policy that learns: the same numbers."""
    assert EnvReward.passthrough
    env = EnvSettings(entry=f"{worlds.HERE}:Generated", kwargs={"plan": 1})
    agent = agents(AgentPlan(env=env, steps=200)).run()
    rewards = [record.reward for record in agent.observed()[1:]]
    assert [r.tobytes() for r in agent.rewards()] == [r.tobytes() for r in rewards]


@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        ("nothing", "compute() must return float64 (2,), and returned bool ()"),
        ("four values", "compute() returned a tuple of 4 values"),
    ],
)
def test_a_result_that_is_no_reward_is_named(agents: Agents, misdeed: str, words: str) -> None:
    plan = AgentPlan(
        reward=f"{worlds.HERE}:Shaped",
        reward_kwargs={"misdeed": misdeed, "phase": "compute", "at": 2},
        num_envs=2,
    )
    agent = agents(plan).begin()
    failed = agent.reward.failure()
    assert words in failed.error.message
    assert (failed.phase, failed.seq) == (Phase.REWARD, 2)
    assert agent.runners[Role.REWARD].wait() == 70


@pytest.mark.parametrize(
    ("value", "n"),
    [
        (np.array([1.5, -2]), 2),
        (np.array([1.5, -2], np.float32), 2),
        ([1, 2, 3], 3),
        ([True], 1),
        (7, 1),
        (np.float32(0.1), 1),
        (np.array([float("nan"), float("inf")]), 2),
    ],
)
def test_rewards_are_taken_exactly(value: Any, n: int) -> None:
    got = as_rewards(value, n)
    assert (got.dtype, got.shape) == (np.float64, (n,))
    assert got.tobytes() == np.asarray(value, np.float64).reshape(n).tobytes()


@pytest.mark.parametrize(
    ("value", "n"),
    [
        (None, 1),
        ("1", 1),
        ([1.0, 2.0], 3),
        ([[1.0, 2.0]], 2),
        (1.0, 2),
        ([1j], 1),
        ([2**60 + 1], 1),
        ([[1], [2, 3]], 2),
        ([object()], 1),
    ],
)
def test_rewards_that_are_none_are_refused(value: Any, n: int) -> None:
    with pytest.raises(UserCodeError, match=r"compute\(\)") as caught:
        as_rewards(value, n)
    assert isinstance(caught.value, DsecError)
