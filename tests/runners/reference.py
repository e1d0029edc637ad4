"""What an agent did, replayed in this process by Gymnasium's own SyncVectorEnv.

Owns the comparison, bit by bit, of a whole stream: observations, actions, rewards, flags, final
observations and infos. Knows nothing of how the agent was run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dsec.policies import RandomPolicy
from dsec.runners import seeds
from dsec.runners.construct import make_env
from tests.runners.kernel import Agent


def same(left: Any, right: Any, what: str = "") -> None:
    """Equal bit for bit, in structure, type, dtype and shape."""
    if isinstance(left, dict):
        # Not their order: a final observation is the environment's own dict there.
        assert left.keys() == right.keys(), what
        for key in left:
            same(left[key], right[key], f"{what}.{key}")
    elif isinstance(left, tuple | list):
        assert type(left) is type(right) and len(left) == len(right), (what, left, right)
        for i, (one, other) in enumerate(zip(left, right, strict=True)):
            same(one, other, f"{what}[{i}]")
    elif left is None or isinstance(left, str):
        assert type(left) is type(right) and left == right, (what, left, right)
    else:
        one, other = np.asarray(left), np.asarray(right)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), (what, left, right)
        assert one.tobytes() == other.tobytes(), (what, left, right)


def compare_with_reference(agent: Agent, *, infos: bool = True) -> int:
    """Replay in this process what the agent did; return how many episodes ended."""
    plan = agent.plan
    n = plan.num_envs
    vector = SyncVectorEnv([lambda: make_env(plan.env)] * n, autoreset_mode=AutoresetMode.SAME_STEP)
    policy = RandomPolicy(
        observation_space=vector.single_observation_space,
        action_space=vector.single_action_space,
        num_envs=n,
        seed=seeds.derive(plan.seed, "policy"),
    )
    observed, actions, rewards = agent.observed(), agent.actions(), agent.rewards()
    own_seeds = seeds.environment_seeds(plan.seed, n)
    obs, told = vector.reset(seed=list(own_seeds))
    episodes = 0
    assert len(observed) == len(actions) + 1 == len(rewards) + 1
    same(obs, observed[0].obs, "obs 0")
    if infos:
        compare_infos(told, observed[0].infos, [], "reset")
    for seq, record in enumerate(observed[1:]):
        action = policy.act(obs)
        same(action, actions[seq], f"action {seq}")
        obs, reward, terminated, truncated, told = vector.step(action)
        same(obs, record.obs, f"obs {seq + 1}")
        same(reward, record.reward, f"reward of step {seq}")
        same(rewards[seq], record.reward, f"computed reward {seq}")
        same((terminated + 2 * truncated).astype(np.uint8), record.ends, f"flags of step {seq}")
        ended = np.flatnonzero(terminated | truncated)
        assert sorted(record.finals) == list(ended)
        for i in ended:
            same(told["final_obs"][i], record.finals[int(i)], f"final {i} of step {seq}")
        if infos:
            compare_infos(told, record.infos, list(ended), f"step {seq}")
        episodes += len(ended)
    vector.close()
    return episodes


def compare_infos(
    told: dict[str, Any], infos: list[dict[str, Any]], ended: list[int], what: str
) -> None:
    """Compare Gymnasium's batched info with ours: one for each environment, where an episode
    ended that of the last step, with the reset's under `dsec`."""
    for i, info in enumerate(infos):
        info = dict(info)
        after = info.pop("dsec", {}).get("reset_info", {})
        if i in ended:
            _compare_info(told.get("final_info", {}), info, i, f"{what}, final info {i}")
            info = after
        skipped = ("final_obs", "final_info")
        rest = {key: value for key, value in told.items() if key.lstrip("_") not in skipped}
        _compare_info(rest, info, i, f"{what}, info {i}")


def _compare_info(told: dict[str, Any], info: dict[str, Any], i: int, what: str) -> None:
    there = {key for key in told if not key.startswith("_") and told[f"_{key}"][i]}
    assert there == info.keys(), (what, told, info)
    for key in there:
        if isinstance(info[key], dict):
            _compare_info(told[key], info[key], i, f"{what}.{key}")
        else:
            np.testing.assert_array_equal(told[key][i], info[key], what)
