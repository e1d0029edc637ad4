"""The example environment keeps Gymnasium's rules, and its own classes keep dsec's contracts."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dsec.runners.contract import Policy, Reward, Transitions
from examples import custom_env


@pytest.mark.filterwarnings("ignore::UserWarning")  # check_env remarks on what is optional
def test_the_warehouse_is_a_valid_environment() -> None:
    check_env(custom_env.make(size=5, puddles=3), skip_render_check=True)


def test_the_courier_delivers_and_is_rewarded_by_objective() -> None:
    n = 3
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: custom_env.StepCost(custom_env.make(), cost=0.02)] * n
    )
    spaces = {
        "observation_space": envs.single_observation_space,
        "action_space": envs.single_action_space,
    }
    policy = custom_env.Courier(**spaces, num_envs=n, seed=1, stray=0.0)
    weights = {"task": 0.7, "safety": 0.3}
    reward = custom_env.WeightedObjectives(**spaces, num_envs=n, seed=1, weights=weights)
    assert isinstance(policy, Policy)
    assert isinstance(reward, Reward)

    obs, _ = envs.reset(seed=4)
    delivered = 0
    for seq in range(40):
        action = policy.act(obs)
        assert envs.action_space.contains(action)
        following, gained, terminated, truncated, infos = envs.step(action)
        if infos:  # a step that only resets reports none
            told = [
                {"objectives": {name: float(infos["objectives"][name][i]) for name in weights}}
                for i in range(n)
            ]
            transitions = Transitions(
                seq, obs, action, gained, gained, following, terminated, truncated, told
            )
            computed = reward.compute(transitions)
            expected = [
                gained[i] + 0.7 * each["objectives"]["task"] + 0.3 * each["objectives"]["safety"]
                for i, each in enumerate(told)
            ]
            np.testing.assert_allclose(computed, expected)
        delivered += int(terminated.sum())
        obs = following
    assert delivered >= n, "a courier that never strays arrives within 11 steps"
    assert reward.metrics()["total_task"] == delivered
