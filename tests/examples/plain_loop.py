"""One process that drives a learning policy by the contract, over Gymnasium's SyncVectorEnv.

Owns the reference for what a policy gets to see: same-step autoreset, terminal observations as
`next_obs`, `learn` before the next `act`. Knows nothing of processes: it is what a run of the
kernel is compared with, and how an algorithm is tried before it goes into a run.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from dsec.runners.contract import Transitions


def drive(policy_class: Any, env_id: str, *, steps: int, num_envs: int, seed: int) -> Any:
    """Run `steps` environment steps and return the policy."""
    envs = gymnasium.make_vec(
        env_id,
        num_envs=num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    policy = policy_class(
        observation_space=envs.single_observation_space,
        action_space=envs.single_action_space,
        num_envs=num_envs,
        seed=seed,
    )
    obs, _ = envs.reset(seed=seed)
    for seq in range(-(-steps // num_envs)):
        obs = obs.copy()
        action = policy.act(obs)
        following, reward, terminated, truncated, infos = envs.step(action)
        next_obs = following.copy()
        for i in np.flatnonzero(terminated | truncated):
            next_obs[i] = infos["final_obs"][i]
        policy.learn(
            Transitions(
                seq, obs, action, reward, reward.copy(), next_obs, terminated, truncated, []
            )
        )
        obs = following
    envs.close()
    return policy
