"""A vector of isolated environments is Gymnasium's SyncVectorEnv, whatever the spaces and the
autoreset mode, and whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dsec.errors import InvalidAction, SandboxTimeout
from dsec.vector import IsolatedVectorEnv, make_vec
from tests.sandbox.worlds import Cart, Sampled, Trap

CART = "tests.sandbox.worlds:Cart"
TRAP = "tests.sandbox.worlds:Trap"
MODES = list(AutoresetMode)


def alike(mine: Any, theirs: Any) -> bool:
    """Equal in value, structure and dtype. An index may be numpy's where it was Python's."""
    if isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(alike(mine[k], theirs[k]) for k in theirs)
    if isinstance(theirs, tuple | list):
        return (
            type(mine) is type(theirs)
            and len(mine) == len(theirs)
            and all(map(alike, mine, theirs))
        )
    if isinstance(theirs, np.ndarray) and theirs.dtype == object:
        return mine.shape == theirs.shape and all(map(alike, mine.flat, theirs.flat))
    if isinstance(theirs, np.ndarray):
        return bool(mine.dtype == theirs.dtype and np.array_equal(mine, theirs))
    if isinstance(theirs, spaces.GraphInstance):
        return all(map(alike, mine, theirs))
    return bool(mine == theirs)


def compare(mine: Any, theirs: Any) -> None:
    assert alike(mine, theirs), f"\n{mine}\n{theirs}"


def walk(mine: VectorEnv[Any, Any, Any], plain: SyncVectorEnv[Any, Any], steps: int) -> None:
    """The same seeds, actions, resets of some; all results alike."""
    plain.action_space.seed(4)
    compare(mine.reset(seed=7, options={"a": 1}), plain.reset(seed=7, options={"a": 1}))
    for _ in range(steps):
        actions = plain.action_space.sample()
        results = plain.step(actions)
        compare(mine.step(actions), results)
        over = results[2] | results[3]
        if plain.autoreset_mode is AutoresetMode.DISABLED and over.any():
            compare(
                mine.reset(options={"reset_mask": over.copy()}),
                plain.reset(options={"reset_mask": over.copy()}),
            )
    seeds = [5, None, 6, *[None] * (plain.num_envs - 3)]
    compare(mine.reset(seed=seeds), plain.reset(seed=seeds))


boxes = st.builds(
    lambda dtype, shape: spaces.Box(0, 1 if dtype is np.bool_ else 9, shape, dtype),
    st.sampled_from([np.float16, np.float32, np.float64, np.uint8, np.int64]),
    st.sampled_from([(), (1,), (2, 3), (0,)]),
)
fixed = boxes | st.sampled_from(
    [
        spaces.Discrete(3),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
    ]
)
loose = st.sampled_from(
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
    ]
)


def composed(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
        ),
        max_leaves=4,
    )


@pytest.mark.slow
@settings(
    max_examples=6,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # a kernel for each: shrinking would take an hour
)
@given(
    observation_space=composed(fixed | loose),
    action_space=composed(fixed),
    mode=st.sampled_from(MODES),
    width=st.sampled_from([1, 2, 4]),
)
def test_any_spaces_in_any_mode(
    observation_space: Any, action_space: Any, mode: AutoresetMode, width: int
) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return Sampled(observation_space, action_space)

    plain: SyncVectorEnv[Any, Any] = SyncVectorEnv([make] * 4, autoreset_mode=mode)
    # They have spaces of their own there, and share them here.
    for env in plain.envs:
        env.observation_space = deepcopy(env.observation_space)
    with closing(
        make_vec(
            make,
            4,
            envs_per_process=width,
            autoreset_mode=mode,
            resource_profile="unprotected",
        )
    ) as mine:
        assert mine.observation_space == plain.observation_space
        assert mine.action_space == plain.action_space
        assert mine.metadata["autoreset_mode"] is mode
        walk(mine, plain, 12)


class closing:  # noqa: N801
    """contextlib's, for what Gymnasium gives no type that has `close`."""

    def __init__(self, envs: IsolatedVectorEnv) -> None:
        self.envs = envs

    def __enter__(self) -> IsolatedVectorEnv:
        return self.envs

    def __exit__(self, *_: object) -> None:
        self.envs.close()


@pytest.mark.guarantee("G3", "G1")
@pytest.mark.parametrize("mode", MODES)
def test_goes_on_bit_identical(mode: AutoresetMode) -> None:
    """Kills of single processes, in every mode; in next-step mode ends fall between them."""
    plain: SyncVectorEnv[Any, Any] = SyncVectorEnv([Cart] * 4, autoreset_mode=mode)
    failover = {"restarts": {"max": 100}}
    with closing(
        make_vec(CART, 4, envs_per_process=2, autoreset_mode=mode, failover=failover)
    ) as mine:
        compare(mine.reset(seed=3), plain.reset(seed=3))
        dice, kills = np.random.default_rng(2), 0
        for k in range(240):
            if k % 40 == 30:
                pids = mine.call("pid")
                os.kill(pids[(k // 40 % 2) * 2], signal.SIGKILL)
                kills += 1
            actions = dice.integers(0, 2, 4)
            results = plain.step(actions)
            compare(mine.step(actions), results)
            over = results[2] | results[3]
            if mode is AutoresetMode.DISABLED and over.any():
                mask = {"reset_mask": over}
                compare(mine.reset(options=dict(mask)), plain.reset(options=dict(mask)))
        assert len(mine.failovers) == kills == 6
        assert all(each.exact for each in mine.failovers)


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("mode", MODES)
def test_a_loss_is_said_and_concerns_nobody_else(mode: AutoresetMode) -> None:
    plain: SyncVectorEnv[Any, Any] = SyncVectorEnv([Cart] * 2, autoreset_mode=mode)
    with closing(make_vec(CART, 2, autoreset_mode=mode, resource_profile="unprotected")) as mine:
        compare(mine.reset(seed=3), plain.reset(seed=3))
        before, *_ = mine.step([1, 0])
        plain.step([1, 0])
        os.kill(mine.call("pid")[0], signal.SIGKILL)
        obs, rewards, terminated, truncated, infos = mine.step([1, 0])
        expected = plain.step([1, 0])
        assert alike(obs[1], expected[0][1]) and rewards[1] == 1.0 and not truncated[1]
        assert truncated[0] and not terminated[0] and rewards[0] == 0.0
        assert infos["_dsec"].tolist() == [True, False]
        assert "SIGKILL" in infos["dsec"]["infra_failure"]["cause"][0]
        same_step = mode is AutoresetMode.SAME_STEP
        last = infos["final_obs"][0] if same_step else obs[0]
        assert last.tobytes() == before[0].tobytes()
        if mode is AutoresetMode.DISABLED:
            with pytest.raises(ResetNeeded, match=r"\[0\]"):
                mine.step([0, 0])
            mine.reset(options={"reset_mask": np.array([True, False])})
        obs, rewards, *_ = mine.step([0, 0])
        expected = plain.step([0, 0])
        assert alike(obs[1], expected[0][1])
        assert rewards[0] == (0.0 if mode is AutoresetMode.NEXT_STEP else 1.0)
        assert obs[0] in mine.single_observation_space


def test_what_gymnasium_has_besides() -> None:
    """Attributes, masks of any lane, asynchronous steps, wrong use; by Gymnasium's own door."""
    mine: Any = gymnasium.make_vec(
        "dsec.vector:dsec/Vector-v0",
        4,
        env_id=CART,
        envs_per_process=2,
        autoreset_mode="Disabled",
        env_kwargs={"render_mode": "rgb_array"},
        resource_profile="unprotected",
    )
    with closing(mine):
        assert len(set(mine.call("pid"))) == 2
        assert mine.call("add", 1, b=2.5) == (3.5,) * 4
        mine.set_attr("gauge", [1, (2,), None, "x"])
        assert mine.get_attr("gauge") == (1, (2,), None, "x")
        mine.reset(seed=1)
        assert mine.np_random_seed == (1, 2, 3, 4) and len(mine.render()) == 4
        with pytest.raises(ValueError, match="3 values"):
            mine.set_attr("gauge", [1, 2, 3])
        with pytest.raises(ValueError, match="no!"):
            mine.call("refuse", "no", loud=True)
        with pytest.raises(NoAsyncCallError):
            mine.step_wait()
        first = mine.step(np.ones(4, np.int64))
        mine.reset(seed=1)
        mine.step_async(np.ones(4, np.int64))
        for pending in (lambda: mine.step_async([0] * 4), mine.reset, mine.render):
            with pytest.raises(AlreadyPendingCallError):
                pending()
        assert data_equivalence(mine.step_wait(timeout=20), first, exact=True)
        for wrong in ([0, 1], [0, 1, 2, 0], np.zeros(4), [[0]] * 4, None):
            with pytest.raises(InvalidAction):
                mine.step(wrong)
        for mask in (np.zeros(4, np.bool_), np.ones(3, np.bool_), [True] * 4):
            with pytest.raises((TypeError, ValueError), match="reset_mask"):
                mine.reset(options={"reset_mask": mask})
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        mine.step([0] * 4)


@pytest.mark.guarantee("G6")
def test_waiting_has_a_limit() -> None:
    deadlines = {"step_s": 1.0}
    kwargs = {"what": "hang", "at": -1}
    with closing(make_vec(TRAP, 2, env_kwargs=kwargs, deadlines=deadlines)) as mine:
        plain: SyncVectorEnv[Any, Any] = SyncVectorEnv([lambda: Trap("none", -1)] * 2)
        compare(mine.reset(seed=1), plain.reset(seed=1))
        mine.set_attr("at", [1, -1])
        mine.step_async([0, 2])
        with pytest.raises(SandboxTimeout, match="vector-000"):
            mine.step_wait(timeout=0.3)
        obs, _, _, truncated, infos = mine.step_wait()
        assert truncated.tolist() == [True, False]
        assert "hung in step" in infos["dsec"]["infra_failure"]["cause"][0]
        compare(obs[1], plain.step([0, 2])[0][1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: make_vec(CART, 0), "num_envs"),
        (lambda: make_vec(CART, 4, envs_per_process=3), "3 to a process"),
        (lambda: make_vec(CART, 2, autoreset_mode="sometimes"), "sometimes"),
        (lambda: make_vec(CART, 2, envs_per_process=2, record="x"), "next-step"),
    ],
)
def test_mistakes_are_told(change: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change()


@pytest.mark.parametrize("autoreset", MODES)
def test_what_one_can_not_tell_is_raised_and_all_go_on(autoreset: AutoresetMode) -> None:
    told: dict[str, Any] = {"env_kwargs": {"at": 9}, "autoreset_mode": autoreset}
    envs = make_vec("tests.sandbox.worlds:Telling", 4, envs_per_process=2, **told)
    try:
        envs.reset(seed=1)
        envs.set_attr("at", [9, 9, 9, 2])
        none = np.zeros(4, np.int64)
        envs.step(none)
        with pytest.raises(TypeError, match=r'infos\[1\]\["lock"\]'):
            envs.step(none)
        obs, rewards, _, _, infos = envs.step(none)
        assert obs.ravel().tolist() == rewards.tolist() == [3.0] * 4
        assert infos["dsec"].tolist() == [0, 0, 0, 5] and envs.failovers == []
    finally:
        envs.close()
