"""Gymnasium's own door: a vector of isolated environments by `gymnasium.make_vec`.

python examples/integrations/gymnasium_loop.py --steps 1000
"""

from __future__ import annotations

import argparse

import gymnasium
from gymnasium.wrappers.vector import RecordEpisodeStatistics


def main(steps: int, num_envs: int = 4) -> float:
    """Act at random; return the mean return of the episodes."""
    envs = gymnasium.make_vec(
        "dsec.vector:dsec/Vector-v0",  # the module before the colon is imported first
        num_envs,
        vectorization_mode="vector_entry_point",
        env_id="CartPole-v1",
    )
    envs = RecordEpisodeStatistics(envs)
    returns: list[float] = []
    envs.action_space.seed(1)
    envs.reset(seed=1)
    for _ in range(steps):
        *_, infos = envs.step(envs.action_space.sample())
        if "episode" in infos:
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    envs.close()
    mean = sum(returns) / max(1, len(returns))
    print(f"{len(returns)} episodes, mean return {mean:.1f}")
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    main(parser.parse_args().steps)
