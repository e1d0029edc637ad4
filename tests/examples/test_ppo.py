"""The example PPO: it learns, a seed fixes it, and it tells a termination from a truncation."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dsec.runners.contract import Policy, Transitions  # noqa: E402
from examples.ppo import PPO  # noqa: E402
from tests.examples.plain_loop import drive  # noqa: E402


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """PPO sets torch's threads and seed for its own process, which here is the test's."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def small(**kwargs: object) -> PPO:
    return PPO(
        observation_space=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        action_space=gymnasium.spaces.Discrete(2),
        num_envs=2,
        seed=3,
        **kwargs,
    )


@pytest.mark.slow
def test_it_learns_and_a_seed_fixes_everything() -> None:
    """A short training is enough to show learning; examples/ppo_cartpole.yaml does the whole."""
    policies = [
        drive(
            lambda **spec: PPO(**spec, train_steps=8_000),
            "CartPole-v1",
            steps=10_000,
            num_envs=8,
            seed=5,
        )
        for _ in range(2)
    ]
    first, second = policies
    assert isinstance(first, Policy)
    assert first.metrics() == second.metrics()
    for mine, other in zip(first.parameters, second.parameters, strict=True):
        assert torch.equal(mine, other)
    early = float(np.mean(first.train_returns[:20]))
    assert first.metrics()["eval_return"] > 2 * early
    assert first.steps == 8_000


def test_advantages_bootstrap_after_a_truncation_and_not_after_a_termination() -> None:
    policy = small(rollout=3, epochs=0, discount=0.9, gae_lambda=0.5, train_steps=1000)
    torch.nn.init.constant_(policy.critic[4].weight, 0.0)
    torch.nn.init.constant_(policy.critic[4].bias, 2.0)  # every observation is worth 2
    ends = [(False, False), (True, False), (False, False)]
    cuts = [(False, False), (False, True), (False, False)]
    for seq, (terminated, truncated) in enumerate(zip(ends, cuts, strict=True)):
        obs = np.zeros((2, 2), np.float32)
        ones = np.ones(2)
        policy.learn(
            Transitions(
                seq,
                obs,
                np.zeros(2, np.int64),
                ones,
                ones,
                obs,
                np.array(terminated),
                np.array(truncated),
                [{}, {}],
            )
        )
    advantages, targets = policy._advantages()
    error = 1 + 0.9 * 2 - 2  # a step within an episode
    by_hand = [
        [error + 0.45 * (1 - 2), error + 0.45 * error],
        [1 - 2, error],  # terminated: nothing follows; truncated: the value of what was seen last
        [error, error],
    ]
    np.testing.assert_allclose(advantages.numpy(), by_hand, rtol=1e-6)
    np.testing.assert_allclose(targets.numpy(), np.array(by_hand) + 2, rtol=1e-6)


def test_only_episodes_that_were_greedy_from_their_first_step_count_as_evaluated() -> None:
    policy = small(rollout=4, train_steps=4)
    obs, none = np.zeros((2, 2), np.float32), np.zeros(2, bool)
    ends = [(False, False), (True, False), (True, True), (True, True)]
    for seq, ended in enumerate(ends):
        policy.act(obs)
        policy.learn(
            Transitions(
                seq,
                obs,
                np.zeros(2, np.int64),
                np.ones(2),
                np.ones(2),
                obs,
                np.array(ended),
                none,
                [{}, {}],
            )
        )
    # Step 1 ends the training: what begins after it is greedy, what ran across it is not.
    assert policy.train_returns == [2.0, 3.0]
    assert policy.eval_returns == [1.0, 1.0, 1.0]
