"""The policies that come with dsec: inside the action space, spread over it, repeatable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, iterate

from dsec.policies import RandomPolicy

SPACES: list[Space[Any]] = [
    spaces.Discrete(5, start=-2),
    spaces.Discrete(3),
    spaces.MultiDiscrete([3, 1, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Box(-1.5, 2.5, (3,), np.float32),
    spaces.Box(np.array([0.0, -5.0]), np.array([0.5, 5.0]), dtype=np.float64),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(-1, 1, (40, 40), np.float32),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.MultiBinary(2)])}),
]


def act(space: Space[Any], n: int, seed: int, steps: int) -> list[Any]:
    policy = RandomPolicy(
        observation_space=spaces.Discrete(1), action_space=space, num_envs=n, seed=seed
    )
    return [policy.act(None) for _ in range(steps)]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_random_actions_are_in_the_space(space: Space[Any], n: int) -> None:
    batched = batch_space(space, n)
    for actions in act(space, n, seed=3, steps=20):
        assert batched.contains(actions), actions
        for action in iterate(batched, actions):
            assert space.contains(action)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_random_actions_depend_on_the_seed_alone(space: Space[Any]) -> None:
    first, again, other = (str(act(space, 2, seed, 300)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_action_is_drawn() -> None:
    space = spaces.Discrete(5, start=-2)
    drawn = np.stack(act(space, 4, seed=1, steps=500))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2]
    assert counts.min() > 300, "each has 400 of 2000 to expect"
    assert not (drawn[:, 0] == drawn[:, 1]).all(), "environments are apart"


def test_a_box_is_covered_to_its_bounds() -> None:
    space = spaces.Box(np.array([0.0, -5.0]), np.array([0.5, 5.0]), dtype=np.float64)
    drawn = np.concatenate(act(space, 1, seed=1, steps=2000))
    assert drawn.min(0) == pytest.approx([0.0, -5.0], abs=0.05)
    assert drawn.max(0) == pytest.approx([0.5, 5.0], abs=0.05)


@pytest.mark.slow
class TestTorch:
    """Policies with torch, where there is torch."""

    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("n", [1, 4])
    @pytest.mark.parametrize(
        "action_space",
        [
            spaces.Discrete(3),
            spaces.Discrete(4, start=-7),
            spaces.Box(-1, 1, (2, 3), np.float32),
            spaces.Box(-0.1, 0.1, (2,), np.float64),
        ],
        ids=str,
    )
    def test_actions_fit_and_repeat(self, action_space: Space[Any], n: int) -> None:
        from dsec.torch_policies import TorchMLPPolicy

        observations = np.random.default_rng(1).normal(size=(50, n, 2, 2))
        runs = []
        for seed in (5, 5, 6):
            policy = TorchMLPPolicy(
                observation_space=spaces.Box(-9, 9, (2, 2), np.float64),
                action_space=action_space,
                num_envs=n,
                seed=seed,
            )
            runs.append([policy.act(obs) for obs in observations])
        batched = batch_space(action_space, n)
        assert all(batched.contains(actions) for actions in runs[0])
        same, again, other = (np.stack(run).tobytes() for run in runs)
        assert same == again
        assert same != other

    def test_discrete_actions_follow_the_logits(self, torch: Any) -> None:
        from dsec.torch_policies import TorchMLPPolicy

        policy = TorchMLPPolicy(
            observation_space=spaces.Box(-1, 1, (1,)),
            action_space=spaces.Discrete(3),
            num_envs=1000,
            seed=1,
            hidden=(),
        )
        policy._layers = [(torch.zeros(1, 3), torch.log(torch.tensor([0.7, 0.2, 0.1])))]
        drawn = np.concatenate([policy.act(np.zeros((1000, 1), np.float32)) for _ in range(20)])
        shares = np.bincount(drawn, minlength=3) / drawn.size
        assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.02)

    @pytest.mark.parametrize(
        ("observation_space", "action_space"),
        [
            (spaces.Discrete(2), spaces.Discrete(2)),
            (spaces.Box(0, 1), spaces.MultiBinary(2)),
            (spaces.Box(0, 1), spaces.Box(0, 3, (1,), np.int64)),
        ],
    )
    def test_other_spaces_are_refused(
        self, observation_space: Space[Any], action_space: Space[Any]
    ) -> None:
        from dsec.torch_policies import TorchMLPPolicy

        with pytest.raises(TypeError, match="of a "):
            TorchMLPPolicy(
                observation_space=observation_space,
                action_space=action_space,
                num_envs=1,
                seed=1,
            )
