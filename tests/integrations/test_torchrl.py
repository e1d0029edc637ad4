"""TorchRL takes isolated environments for Gymnasium's own."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torchrl.envs.libs.gym import GymWrapper
from torchrl.envs.utils import check_env_specs

from dsec.integrations.torchrl import make_env
from tests.sandbox.worlds import Cart

CART = "tests.sandbox.worlds:Cart"


@pytest.fixture
def quiet() -> Iterator[None]:
    """TorchRL warns of its own ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rolled(env: Any, steps: int) -> Any:
    torch.manual_seed(3)
    return env.rollout(steps, break_when_any_done=False)


@pytest.mark.guarantee("G3")
@pytest.mark.usefixtures("quiet")
def test_rollouts_are_those_of_sync_vector_env() -> None:
    """Through several episodes, with a kill, from the same seed."""
    sync = SyncVectorEnv([Cart] * 2, autoreset_mode=AutoresetMode.DISABLED)
    plain = GymWrapper(sync, categorical_action_encoding=True)
    mine = make_env(CART, 2, categorical_action_encoding=True)
    try:
        check_env_specs(mine, seed=1)
        for env in (plain, mine):
            env.set_seed(7)
        first, same = rolled(mine, 30), rolled(plain, 30)
        assert (first == same).all() and first["next", "done"].any()
        os.kill(mine._env.call("pid")[1], signal.SIGKILL)
        assert (rolled(mine, 30) == rolled(plain, 30)).all()
        assert [each.exact for each in mine._env.failovers] == [True]
    finally:
        mine.close()
        plain.close()
