"""The example environments with frames and texts keep Gymnasium's rules."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from dsec.runners.contract import Policy
from examples import image, vision_language


@pytest.mark.filterwarnings("ignore::UserWarning")  # check_env remarks on what is optional
@pytest.mark.parametrize("make", [image.Catch, vision_language.TouchInOrder])
def test_they_are_valid_environments(make: type[gymnasium.Env[object, object]]) -> None:
    check_env(make(), skip_render_check=True)


def test_the_reader_touches_what_the_instruction_names() -> None:
    n = 3
    envs = gymnasium.vector.SyncVectorEnv([lambda: vision_language.TouchInOrder(blocks=4)] * n)
    policy = vision_language.Reader(
        observation_space=envs.single_observation_space,
        action_space=envs.single_action_space,
        num_envs=n,
        seed=1,
        stray=0.0,
    )
    assert isinstance(policy, Policy)
    obs, _ = envs.reset(seed=4)
    total = 0.0
    for _ in range(4):
        obs, reward, terminated, _, _ = envs.step(policy.act(obs))
        total += float(reward.sum())
    assert terminated.all() and total == 4 * n
