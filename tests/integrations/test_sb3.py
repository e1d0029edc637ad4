"""Stable-Baselines3 can't tell isolated environments from its own DummyVecEnv."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env as theirs
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from dsec.errors import InvalidAction, SandboxFailed
from dsec.integrations.sb3 import IsolatedVecEnv, make_vec_env
from dsec.vector import make_vec
from tests.integrations.worlds import small
from tests.sandbox.worlds import Cart

CART = "tests.sandbox.worlds:Cart"


@pytest.fixture
def own() -> Iterator[list[IsolatedVecEnv]]:
    """What is put in here is closed."""
    opened: list[IsolatedVecEnv] = []
    yield opened
    for each in opened:
        each.close()


def timeless(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without how long an episode took."""
    return [
        {**info, "episode": {**info["episode"], "t": 0.0}} if "episode" in info else info
        for info in infos
    ]


def same(mine: Any, theirs: Any) -> None:
    """SB3's dicts of observations are ordered ones."""
    theirs = dict(theirs) if isinstance(theirs, dict) else theirs
    assert data_equivalence(mine, theirs, exact=True), (mine, theirs)


def compare(mine: Any, theirs: Any) -> None:
    for my, their in zip(mine[:3], theirs[:3], strict=True):
        same(my, their)
    assert data_equivalence(timeless(mine[3]), timeless(theirs[3]), exact=True)


@pytest.mark.parametrize(("maker", "width"), [(CART, 2), (small, 1)])
def test_steps_are_those_of_dummy_vec_env(
    own: list[IsolatedVecEnv], maker: Any, width: int
) -> None:
    """Observations, float32 rewards, ends, infos, terminal observations, seeds, options."""
    mine = make_vec_env(maker, 4, seed=3, envs_per_process=width, resource_profile="unprotected")
    own.append(mine)
    plain = theirs(Cart if maker == CART else maker, 4, seed=3)
    same(mine.reset(), plain.reset())
    assert mine.reset_infos == plain.reset_infos
    for k in range(30):
        actions = np.array([mine.action_space.sample() for _ in range(4)])
        if k % 2:
            compare(mine.step(actions), plain.step(actions))
        else:
            mine.step_async(actions)
            compare(mine.step_wait(), plain.step(actions))
        assert data_equivalence(mine.reset_infos, plain.reset_infos, exact=True)
    for envs in (mine, plain):
        envs.seed(9)
        envs.set_options([{"low": -0.1}, {"low": -0.2}, {}, {"low": -0.1}])
    mine.step_async(actions)
    same(mine.reset(), plain.reset())
    assert mine.action_space == plain.action_space and mine.metadata == plain.metadata


class Killing(BaseCallback):
    """Kills an environment's process at some steps."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.at, self.killed = at, 0

    def _on_step(self) -> bool:
        if self.n_calls in self.at:
            pids = self.training_env.env_method("pid")
            os.kill(pids[self.killed % len(pids)], signal.SIGKILL)
            self.killed += 1
        return True


def learned(envs: Any, callback: BaseCallback | None = None) -> tuple[PPO, list[float]]:
    """What PPO has learned in there, and the returns of the episodes it has seen."""
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=2, seed=1, device="cpu")
    model.learn(3 * 64 * envs.num_envs, callback=callback)
    assert model.ep_info_buffer is not None
    return model, [episode["r"] for episode in model.ep_info_buffer]


@pytest.mark.slow
@pytest.mark.guarantee("G3")
def test_a_kill_in_learn_changes_nothing(own: list[IsolatedVecEnv]) -> None:
    """The weights are, bit for bit, those that DummyVecEnv leads to, where nobody was killed."""
    plain, returns = learned(theirs(Cart, 2, seed=5))
    mine = make_vec_env(CART, 2, seed=5)
    own.append(mine)
    callback = Killing({40, 100, 150})
    model, same = learned(mine, callback)
    assert callback.killed == 3 and len(mine.failovers) == 3
    assert all(each.exact for each in mine.failovers), mine.failovers
    assert same == returns and len(returns) > 5
    for name, weights in plain.policy.state_dict().items():
        assert torch.equal(weights, model.policy.state_dict()[name]), name


def test_what_a_vec_env_has_besides(own: list[IsolatedVecEnv], tmp_path: Path) -> None:
    mine = make_vec_env(
        CART,
        4,
        seed=1,
        start_index=2,
        envs_per_process=2,
        env_kwargs={"render_mode": "rgb_array"},
        wrapper_class="TimeLimit",
        wrapper_kwargs={"max_episode_steps": 12},
        monitor_dir=str(tmp_path / "logs"),
        resource_profile="unprotected",
    )
    own.append(mine)
    mine.reset()
    assert mine.env_is_wrapped(Monitor) == [True] * 4
    assert mine.env_is_wrapped(VecNormalize, indices=[1]) == [False]
    assert mine.env_method("add", 1, b=2.5, indices=[3, 0]) == [3.5, 3.5]
    mine.set_attr("gauge", (7,), indices=[1, 2])
    assert mine.get_attr("gauge") == [1, (7,), (7,), 1] and mine.has_attr("gauge")
    assert mine.get_attr("add", 2)[0](1, 1) == 2 and not mine.has_attr("nothing")
    pids = mine.env_method("pid")
    assert len(set(pids)) == 2 and os.getpid() not in pids
    frame = mine.render("rgb_array")
    assert frame is not None and frame.shape == (800, 1200, 3)
    with pytest.raises(InvalidAction):
        mine.step(np.full(4, 7))
    stacked = VecFrameStack(VecNormalize(mine), 2)
    assert stacked.reset().shape == (4, 8)
    ended: dict[int, dict[str, Any]] = {}
    for _ in range(13):
        _, _, dones, infos = stacked.step(np.zeros(4, np.int64))
        ended |= {i: infos[i] for i in np.flatnonzero(dones) if i not in ended}
    assert all(not ended[i]["TimeLimit.truncated"] for i in range(4))
    lengths = [ended[i]["episode"]["l"] for i in range(4)]
    stacked.close()
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == [f"{i}.monitor.csv" for i in (2, 3, 4, 5)]
    with (tmp_path / "logs" / names[0]).open() as file:
        assert file.readline().startswith('#{"t_start"')
        assert next(csv.DictReader(file))["l"] == str(lengths[0])


def test_a_loss_ends_the_episode(own: list[IsolatedVecEnv]) -> None:
    mine = make_vec_env(CART, 2, seed=1, resource_profile="unprotected")
    own.append(mine)
    mine.reset()
    before = mine.step(np.zeros(2, np.int64))[0]
    os.kill(mine.env_method("pid")[1], signal.SIGKILL)
    _, rewards, dones, infos = mine.step(np.zeros(2, np.int64))
    assert dones.tolist() == [False, True] and rewards.tolist() == [1.0, 0.0]
    assert infos[1]["TimeLimit.truncated"]
    assert infos[1]["terminal_observation"].tobytes() == before[1].tobytes()
    assert "SIGKILL" in infos[1]["dsec"]["infra_failure"]["cause"]
    assert not mine.step(np.zeros(2, np.int64))[2].any()


def test_mistakes_are_told() -> None:
    with pytest.raises(SandboxFailed, match="CartPole-v1"):
        make_vec_env("CartPole-v9")
    envs = make_vec(CART, 1)
    try:
        with pytest.raises(ValueError, match="SameStep"):
            IsolatedVecEnv(envs)
    finally:
        envs.close()
