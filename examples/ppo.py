"""Proximal policy optimisation (PPO) as a policy that learns inside its own process.

Owns one algorithm for discrete actions, short enough to read in one sitting. It knows nothing of
processes, rings or files: `act` and `learn` are all that a learning policy needs (the contract is
in dsec/runners/contract.py). Use it as `policy: {entry: "examples.ppo:PPO"}` from the folder that
holds `examples/`, or copy the file and name yours.

It trains for `train_steps` environment steps; after that it acts greedily, learns no more, and
reports as `eval_return` the mean return of the episodes that were greedy from their first step.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn

from dsec.runners.contract import Transitions


def network(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    """Two tanh layers; orthogonal weights, the last ones scaled by `gain`."""
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class PPO:
    """PPO with clipped objective and generalised advantage estimation.

    Args:
        train_steps: environment steps (of all num_envs together) to learn from.
        rollout: steps of each environment between two updates.
        epochs: passes over a rollout in each update; the whole rollout is one batch.
        learning_rate, clip: both fall linearly to zero while training.
        save: a file for the weights, written when the run ends; empty: none.
    """

    def __init__(
        self,
        *,
        observation_space: gymnasium.spaces.Box,
        action_space: gymnasium.spaces.Discrete,
        num_envs: int,
        seed: int,
        train_steps: int = 100_000,
        rollout: int = 32,
        epochs: int = 20,
        learning_rate: float = 1e-3,
        clip: float = 0.2,
        discount: float = 0.98,
        gae_lambda: float = 0.8,
        gradient_max: float = 0.5,
        hidden: int = 64,
        save: str = "",
    ) -> None:
        torch.set_num_threads(1)  # a policy shares the machine with every other runner
        torch.manual_seed(seed)  # for the initial weights; actions have a generator of their own
        self.generator = torch.Generator().manual_seed(seed)
        inputs = int(np.prod(observation_space.shape))
        self.actor = network(inputs, hidden, int(action_space.n), gain=0.01)
        self.critic = network(inputs, hidden, 1, gain=1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate, eps=1e-5)
        self.first_action = int(action_space.start)
        self.train_steps, self.epochs, self.save = train_steps, epochs, save
        self.learning_rate, self.clip, self.gradient_max = learning_rate, clip, gradient_max
        self.discount, self.gae_lambda = discount, gae_lambda

        # One rollout: [time, environment, ...].
        self.obs = torch.zeros(rollout, num_envs, inputs)
        self.next_obs = torch.zeros(rollout, num_envs, inputs)
        self.actions = torch.zeros(rollout, num_envs, dtype=torch.int64)
        self.rewards = torch.zeros(rollout, num_envs)
        self.terminated = torch.zeros(rollout, num_envs)
        self.ended = torch.zeros(rollout, num_envs)
        self.filled = 0
        self.steps = 0

        self.returns = np.zeros(num_envs)  # of the episodes going on
        self.greedy = np.zeros(num_envs, dtype=bool)  # began after the training had ended
        self.train_returns: list[float] = []
        self.eval_returns: list[float] = []

    @property
    def training(self) -> bool:
        """Whether it still learns."""
        return self.steps < self.train_steps

    @torch.no_grad()
    def act(self, obs: np.ndarray) -> np.ndarray:
        """Sample while training, choose the best action afterwards. (n, ...) -> int64 (n,)."""
        logits = self.actor(self._flat(obs))
        if self.training:
            chances = torch.softmax(logits, dim=-1)
            action = torch.multinomial(chances, 1, generator=self.generator).squeeze(-1)
        else:
            action = logits.argmax(dim=-1)
        return action.numpy() + self.first_action

    def learn(self, transitions: Transitions) -> None:
        """Take one transition of each environment; update when a rollout is full.

        Where the environments were lost (`infra`) nothing is learned: the episodes ended with the
        step before, for whatever they were worth then.
        """
        if transitions.infra.any():
            self.ended[: self.filled][-1:] = 1.0
            self.returns[:] = 0.0
            return
        ended = transitions.terminated | transitions.truncated
        self._count(transitions.env_reward, ended)
        if not self.training:
            self.greedy |= ended
            return
        now = self.filled
        self.obs[now] = self._flat(transitions.obs)
        self.next_obs[now] = self._flat(transitions.next_obs)
        self.actions[now] = torch.as_tensor(transitions.action - self.first_action)
        self.rewards[now] = torch.as_tensor(transitions.reward)
        self.terminated[now] = torch.as_tensor(transitions.terminated)
        self.ended[now] = torch.as_tensor(ended)
        self.filled += 1
        if self.filled == len(self.obs):
            self._update(1.0 - self.steps / self.train_steps)
            self.filled = 0
        self.steps += len(ended)
        if not self.training:
            self.greedy |= ended

    def metrics(self) -> dict[str, float]:
        """What the run's summary shows for this policy."""
        found = {"train_steps": float(self.steps), "eval_episodes": float(len(self.eval_returns))}
        if self.train_returns:
            found["train_return"] = float(np.mean(self.train_returns[-100:]))
        if self.eval_returns:
            found["eval_return"] = float(np.mean(self.eval_returns))
        return found

    def close(self) -> None:
        """Save the weights, whole or not at all."""
        if not self.save:
            return
        weights = {
            f"{name}.{key}": tensor
            for name, network in (("actor", self.actor), ("critic", self.critic))
            for key, tensor in network.state_dict().items()
        }
        unfinished = Path(f"{self.save}.unfinished")
        torch.save(weights, unfinished)
        unfinished.replace(self.save)

    def _flat(self, obs: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(obs, dtype=torch.float32).reshape(len(obs), -1)

    def _count(self, reward: np.ndarray, ended: np.ndarray) -> None:
        self.returns += reward
        for i in np.flatnonzero(ended):
            kept = self.eval_returns if self.greedy[i] else self.train_returns
            kept.append(float(self.returns[i]))
        self.returns[ended] = 0.0

    @torch.no_grad()
    def _advantages(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Generalised advantages and the values' targets, both [time, environment].

        An episode that *terminated* is worth nothing afterwards. One that was *truncated* was cut
        by a clock and would have gone on: the value of its last observation counts, which is why
        `next_obs` is that observation and not the first one of the next episode.
        """
        values = self.critic(self.obs).squeeze(-1)
        after = self.critic(self.next_obs).squeeze(-1) * (1.0 - self.terminated)
        errors = self.rewards + self.discount * after - values
        advantages = torch.zeros_like(errors)
        following = torch.zeros(errors.shape[1])
        for t in reversed(range(len(errors))):
            goes_on = 1.0 - self.ended[t]
            following = errors[t] + self.discount * self.gae_lambda * goes_on * following
            advantages[t] = following
        return advantages, advantages + values

    def _update(self, remaining: float) -> None:
        advantages, targets = (each.flatten() for each in self._advantages())
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        obs, actions = self.obs.flatten(0, 1), self.actions.flatten().unsqueeze(-1)
        with torch.no_grad():
            before = torch.log_softmax(self.actor(obs), -1).gather(-1, actions).squeeze(-1)
        clip = self.clip * remaining
        self.optimizer.param_groups[0]["lr"] = self.learning_rate * remaining
        for _ in range(self.epochs):
            now = torch.log_softmax(self.actor(obs), -1).gather(-1, actions).squeeze(-1)
            ratio = torch.exp(now - before)
            clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
            policy_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            value_loss = nn.functional.mse_loss(self.critic(obs).squeeze(-1), targets)
            self.optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(self.parameters, self.gradient_max)
            self.optimizer.step()
