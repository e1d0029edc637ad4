"""Policies and rewards: weights, optimizers, rollouts and generators go on bit for bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dsec.failover.codecs import find_object_codec, object_codec_named
from examples.ppo import PPO
from tests.failover.worlds import exactly

torch.set_num_threads(1)  # as in runners; a pool of threads doesn't survive a fork
OBSERVATIONS = spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = spaces.Discrete(2)


class Learner:
    """A network, Adam, a schedule, a rollout as a list, and draws from three generators."""

    def __init__(self, seed: int = 3) -> None:
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2))
        self.tied = [self.net[0].weight]
        self.head = torch.nn.Linear(8, 2)
        parameters = [*self.net.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.5)
        self.rollout: list[torch.Tensor] = []
        self.memory = torch.zeros(6)
        self.half = self.memory[3:]
        self.random = np.random.default_rng(seed)

    def use(self, number: int) -> Any:
        x = torch.from_numpy(np.random.default_rng(number).random(4, np.float32))
        out = self.head(self.net(x))
        self.half += 0.5
        self.rollout.append(out.detach() + self.memory[4])
        if len(self.rollout) == 4:
            loss = (out - float(self.random.random())).pow(2).sum() + self.tied[0].abs().sum()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            if number % 2:
                self.optimizer.zero_grad()
            self.rollout.clear()
        noise = np.random.randn()
        return [out.detach().numpy().copy(), noise, [t.numpy().copy() for t in self.rollout]]


class Telling(Learner):
    """The same, telling of itself by the contract's pair."""

    def get_state(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "grads": [p.grad for p in self.optimizer.param_groups[0]["params"]],
            "rollout": self.rollout,
            "memory": self.memory,
            "random": self.random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        parameters = self.optimizer.param_groups[0]["params"]
        for parameter, grad in zip(parameters, state["grads"], strict=True):
            parameter.grad = grad
        self.rollout = state["rollout"]
        self.memory.copy_(state["memory"])
        self.random.bit_generator.state = state["random"]


class Forgetful(Telling):
    """Forgets its optimizer."""

    def set_state(self, state: dict[str, Any]) -> None:
        before = self.optimizer.state_dict()
        super().set_state(state)
        self.optimizer.load_state_dict(before)


def use(actor: Learner, number: int) -> Any:
    return actor.use(number)


@pytest.mark.parametrize(("kind", "name"), [(Learner, "attributes"), (Telling, "state")])
def test_a_learner_goes_on_in_its_successor(kind: type[Learner], name: str) -> None:
    first = kind()
    codec, notes = find_object_codec(first, exercise=use, make=kind, limit_s=60)
    assert codec is not None and codec.name == name, notes
    for number in range(30):
        first.use(number)
    data = codec.capture()
    expected = [exactly(first.use(number)) for number in range(40)]
    second = kind(seed=8)
    object_codec_named(name, second).restore(data)
    assert [exactly(second.use(number)) for number in range(40)] == expected
    assert second.tied[0] is second.net[0].weight
    assert second.half.untyped_storage().data_ptr() == second.memory.untyped_storage().data_ptr()
    assert second.optimizer.param_groups[0]["params"][0] is second.net[0].weight


def test_a_state_that_forgets_is_found_out_and_the_plan_taken() -> None:
    codec, notes = find_object_codec(Forgetful(), exercise=use, limit_s=60)
    assert codec is not None and codec.name == "attributes"
    assert "codec state: restored in place, it goes on differently" in notes[0]


def test_a_tensor_within_a_computation_is_refused_by_name() -> None:
    actor = SimpleNamespace(loss=torch.ones(2, requires_grad=True) * 2)
    codec, notes = find_object_codec(actor)
    assert codec is None
    assert "SimpleNamespace" in notes[0] or "computation" in notes[0]


def transitions(policy: PPO, number: int) -> Any:
    rng = np.random.default_rng(number)
    n = 2
    return SimpleNamespace(
        seq=number,
        obs=rng.random((n, 4), np.float32),
        next_obs=rng.random((n, 4), np.float32),
        action=rng.integers(0, 2, n),
        reward=rng.random(n),
        env_reward=rng.random(n),
        terminated=rng.random(n) < 0.1,
        truncated=rng.random(n) < 0.1,
        infra=np.zeros(n, bool),
        infos=[{}, {}],
    )


def play(policy: PPO, number: int) -> Any:
    batch = transitions(policy, number)
    action = policy.act(batch.obs)
    policy.learn(batch)
    return [action, policy.steps, policy.filled]


def test_the_ppo_of_the_examples_resumes_with_everything_it_had() -> None:
    def make() -> PPO:
        return PPO(
            observation_space=OBSERVATIONS, action_space=ACTIONS, num_envs=2, seed=5, rollout=16
        )

    first = make()
    codec, notes = find_object_codec(first, exercise=play, make=make, limit_s=60)
    assert codec is not None and codec.name == "attributes", notes
    for number in range(50):
        play(first, number)
    data = codec.capture()
    expected = [exactly(play(first, number)) for number in range(60)]
    second = make()
    object_codec_named("attributes", second).restore(data)
    assert [exactly(play(second, number)) for number in range(60)] == expected
    for one, other in zip(first.parameters, second.parameters, strict=True):
        assert torch.equal(one, other)
