"""Isolated environments as a TorchRL environment.

    from dsec.integrations.torchrl import make_env

    env = make_env("CartPole-v1", 8)  # batch size (8,); CartPole's own actions, one-hot
    data = env.rollout(100)

Owns which of TorchRL's ways is taken: its GymWrapper around a vector without autoreset, so that
TorchRL itself resets what has ended, and the last observations are where it wants them.
"""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AutoresetMode
from torchrl.envs.libs.gym import GymWrapper

from dsec.vector import make_vec


def make_env(
    env_id: Any,
    num_envs: int = 1,
    *,
    categorical_action_encoding: bool = False,
    device: Any = "cpu",
    **isolation: Any,
) -> GymWrapper:
    """A TorchRL environment of batch size `(num_envs,)`, each in a process of its own.

    If a process dies its successor goes on in the same episode. Where that is impossible the
    episode is `truncated` there, with reward 0.0 and the last observation, and TorchRL resets it.

    Args:
        env_id, num_envs: as for `dsec.vector.make_vec`.
        categorical_action_encoding: discrete actions as numbers; else one-hot.
        device: where the tensors are.
        isolation: what `make_vec` takes besides: `envs_per_process`, `seed`, `failover`, ….

    Raises:
        What `make_vec` does; RuntimeError of TorchRL for spaces that it has no spec for.
    """
    envs = make_vec(env_id, num_envs, autoreset_mode=AutoresetMode.DISABLED, **isolation)
    try:
        return GymWrapper(
            envs, categorical_action_encoding=categorical_action_encoding, device=device
        )
    except BaseException:
        envs.close()
        raise
