"""PPO of Stable-Baselines3 on environments that may crash: only the import of make_vec_env differs.

python examples/integrations/sb3_ppo.py --steps 50000
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO

from dsec.integrations.sb3 import make_vec_env


def main(steps: int, n_envs: int = 8) -> PPO:
    """Train, and say what was survived meanwhile."""
    envs = make_vec_env("CartPole-v1", n_envs, seed=1)
    model = PPO("MlpPolicy", envs, n_steps=128, seed=1, device="cpu")
    model.learn(steps)
    print(f"{model.num_timesteps} steps, {len(envs.failovers)} failovers")
    envs.close()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    main(parser.parse_args().steps)
