"""TorchRL collects from environments that may crash.

python examples/integrations/torchrl_rollout.py --frames 2048
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import OneHotCategorical, ProbabilisticActor

from dsec.integrations.torchrl import make_env


def main(frames: int, num_envs: int = 4) -> int:
    """Roll a small policy out; return the number of steps."""
    torch.manual_seed(1)
    env = make_env("CartPole-v1", num_envs)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
    )
    env.set_seed(1)
    done, ended = 0, 0
    while done < frames:
        with torch.no_grad():
            data = env.rollout(64, policy, break_when_any_done=False)
        done += data.numel()
        ended += int(data["next", "done"].sum())
    print(f"{done} steps, {ended} episodes ended")
    env.close()
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=2048)
    main(parser.parse_args().frames)
