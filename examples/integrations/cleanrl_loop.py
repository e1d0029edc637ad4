"""A PPO in one file, in the style of CleanRL: numpy arrays and torch, nothing hidden.

    python examples/integrations/cleanrl_loop.py --updates 60

The loop is written for `gymnasium.vector` with next-step autoreset: where an episode has ended, the
next action is ignored, and so is that step when it is learned from. With an isolated vector
nothing else is needed: an episode that was lost to a crash is a truncated one.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

from dsec.vector import make_vec

GAMMA, LAMBDA, CLIP, EPOCHS = 0.99, 0.95, 0.2, 4


class Agent(nn.Module):
    """A policy and a value for CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        return torch.distributions.Categorical(logits=self.actor(obs)), self.critic(obs)[..., 0]


def rollout(envs: Any, agent: Agent, obs: np.ndarray, over: np.ndarray, steps: int) -> Any:
    """Step all environments; return what is learned from, and where they are now."""
    n = envs.num_envs
    seen = np.zeros((steps + 1, n, 4), np.float32)
    actions = np.zeros((steps, n), np.int64)
    rewards, ends, ignored = np.zeros((3, steps, n), np.float32)
    for t in range(steps):
        seen[t], ignored[t] = obs, over
        with torch.no_grad():
            actions[t] = agent(torch.from_numpy(obs))[0].sample().numpy()
        obs, rewards[t], terminated, truncated, _ = envs.step(actions[t])
        ends[t], over = terminated, terminated | truncated
    seen[steps] = obs
    return seen, actions, rewards, ends, ignored, obs, over


def learn(agent: Agent, optimizer: torch.optim.Optimizer, data: Any) -> None:
    """PPO's clipped objective on one rollout."""
    seen, actions, rewards, ends, ignored = map(torch.from_numpy, data)
    with torch.no_grad():
        policy, values = agent(seen)
        old = torch.distributions.Categorical(logits=policy.logits[:-1]).log_prob(actions)
        advantages, last = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + GAMMA * values[t + 1] * (1 - ends[t]) - values[t]
            last = delta + GAMMA * LAMBDA * (1 - ends[t]) * last
            last = last * (1 - ignored[t])  # a reset in the place of a step
            advantages[t] = last
        returns = advantages + values[:-1]
    kept = ignored == 0
    for _ in range(EPOCHS):
        policy, values = agent(seen[:-1][kept])
        ratio = (policy.log_prob(actions[kept]) - old[kept]).exp()
        gain = advantages[kept]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        clipped = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
        loss = -clipped.mean() + 0.5 * (values - returns[kept]).pow(2).mean()
        loss = loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(updates: int, num_envs: int = 8, steps: int = 128) -> Agent:
    """Train; print how long episodes have become."""
    torch.manual_seed(1)
    envs = make_vec("CartPole-v1", num_envs)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3)
    obs, _ = envs.reset(seed=1)
    over = np.zeros(num_envs, np.bool_)
    for update in range(updates):
        *data, obs, over = rollout(envs, agent, obs, over, steps)
        learn(agent, optimizer, data)
        length = data[2].sum() / max(1.0, data[3].sum())
        print(f"update {update}: {length:.0f} steps for each fall")
    print(f"{len(envs.failovers)} failovers")
    envs.close()
    return agent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=60)
    main(parser.parse_args().updates)
