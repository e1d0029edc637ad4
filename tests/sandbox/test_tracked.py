"""An environment in a sandbox is used, and behaves, as the plain one does."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence

from dsec.errors import InvalidAction, LocalError, SandboxFailed
from dsec.sandbox import AgentSandbox, TrackedEnv
from tests.sandbox.worlds import Cart

CART = "tests.sandbox.worlds:Cart"


@pytest.fixture(scope="module")
def cart() -> Iterator[TrackedEnv]:
    with AgentSandbox(CART, seed=3) as sandbox:
        yield sandbox.get_env()


def same(mine: Any, theirs: Any) -> None:
    assert data_equivalence(mine, theirs, exact=True), (mine, theirs)


def walk(mine: Any, plain: gymnasium.Env[Any, Any], steps: int, seed: int) -> None:
    """Both from the same seeds, by the same actions, through several episodes."""
    plain.action_space.seed(seed)
    same(mine.reset(seed=seed), plain.reset(seed=seed))
    for _ in range(steps):
        action = plain.action_space.sample()
        mines, theirs = mine.step(action), plain.step(action)
        same((mines[0], float(mines[1]), *mines[2:]), (theirs[0], float(theirs[1]), *theirs[2:]))
        if mines[2] or mines[3]:
            same(mine.reset(), plain.reset())


def test_is_the_plain_environment(cart: TrackedEnv) -> None:
    walk(cart, Cart(), 300, 11)
    walk(cart, Cart(), 30, 12)  # in the middle of an episode, with a seed
    assert cart.observation_space == Cart().observation_space
    assert cart.metadata["render_modes"] == Cart.metadata["render_modes"]
    assert isinstance(cart, gymnasium.Env)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "wrappers"),
    [
        ("Pendulum-v1", {}, [{"entry": "TimeLimit", "kwargs": {"max_episode_steps": 7}}]),
        ("Blackjack-v1", {"natural": True}, ["FlattenObservation"]),
    ],
)
def test_registered_environments(env_id: str, kwargs: Any, wrappers: list[Any]) -> None:
    plain = gymnasium.make(env_id, **kwargs)
    for each in wrappers:
        entry = each if isinstance(each, str) else each["entry"]
        own = {} if isinstance(each, str) else each["kwargs"]
        plain = getattr(gymnasium.wrappers, entry)(plain, **own)
    with AgentSandbox(env_id, env_kwargs=kwargs, wrappers=wrappers) as sandbox:
        walk(sandbox.get_env(), plain, 60, 4)
        assert sandbox.get_env().spec == gymnasium.spec(env_id)


def test_passes_the_checker() -> None:
    with (
        AgentSandbox("CartPole-v1", env_kwargs={"render_mode": "rgb_array"}) as sandbox,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # it advises on spaces that are CartPole's own
        check_env(sandbox.get_env(), skip_render_check=True, skip_close_check=True)
        frame = sandbox.get_env().render()
        assert frame.shape == (400, 600, 3) and frame.dtype == np.uint8


def test_options_and_the_old_interface() -> None:
    kwargs = {"what": "none", "at": -1}
    with AgentSandbox(
        "tests.sandbox.worlds:Trap",
        env_kwargs=kwargs,
        wrappers=[{"entry": "TimeLimit", "kwargs": {"max_episode_steps": 3}}],
        step_api="gym",
        reward_window_size=2,
        resource_profile="unprotected",
    ) as sandbox:
        env = sandbox.get_env()
        _, info = env.reset(seed=1, options={"level": (3, "x"), "map": np.arange(3)})
        assert info["options"]["level"] == (3, "x")
        assert env.step(1)[2:] == (False, {"steps": 1})
        env.step(1)
        obs, reward, done, info = env.step(2)
        assert done and info == {"steps": 3, "TimeLimit.truncated": True}
        assert obs[0] == 3 and env.reward_window[-1] == reward and len(env.reward_window) == 2
        with pytest.raises(TypeError, match=r'can\'t be carried.*options\["x"\]'):
            env.reset(options={"x": object()})


def test_attributes_cross_to_its_process(cart: TrackedEnv) -> None:
    cart.reset(seed=5)
    assert cart.gravity == 9.8 and cart.unwrapped.gravity == 9.8
    cart.gravity = 3.5
    assert cart.get_wrapper_attr("gravity") == 3.5
    cart.gravity = 9.8
    cart.set_wrapper_attr("gauge", {"a": (1, np.float32(2.5))})
    assert cart.gauge == {"a": (1, np.float32(2.5))} and type(cart.gauge["a"][1]) is np.float32
    assert cart.add(2, b=3.5) == 5.5 and cart.add.__doc__ == "Add."
    assert cart.call("pid") != os.getpid()
    assert cart.has_wrapper_attr("odd") and not cart.has_wrapper_attr("gone")
    with pytest.raises(AttributeError, match="gone"):
        _ = cart.gone
    with pytest.raises(TypeError, match=r"can't be carried.*builtins.object"):
        cart.odd()
    with pytest.raises(TypeError, match="can't be carried"):
        cart.gauge = object()
    with pytest.raises(ValueError, match="no!") as raised:
        cart.refuse("no", loud=True)
    assert "worlds.py" in raised.value.__notes__[0]


def test_its_generator_is_looked_at_and_replaced(cart: TrackedEnv) -> None:
    plain = Cart()
    cart.reset(seed=8)
    plain.reset(seed=8)
    assert cart.np_random.bit_generator.state == plain.np_random.bit_generator.state
    assert cart.np_random_seed == 8
    cart.np_random = np.random.Generator(np.random.Philox(4))
    plain.np_random = np.random.Generator(np.random.Philox(4))
    same(cart.reset(), plain.reset())


def test_what_it_raises_is_raised_here() -> None:
    with AgentSandbox("CartPole-v1", resource_profile="unprotected") as sandbox:
        env = sandbox.get_env()
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            env.step(0)
        obs, _ = env.reset(seed=1)
        assert obs in env.observation_space
        assert env.failovers == []


@pytest.mark.parametrize("action", [2, -1, 0.5, "up", None, [0, 1], np.array([0])])
def test_a_wrong_action_is_refused_before_it_is_sent(cart: TrackedEnv, action: Any) -> None:
    plain = Cart()
    same(cart.reset(seed=2), plain.reset(seed=2))
    with pytest.raises(InvalidAction, match="action"):
        cart.step(action)
    same(cart.step(1)[0], plain.step(1)[0])


def test_no_number_is_no_action() -> None:
    with AgentSandbox("Pendulum-v1", resource_profile="unprotected") as sandbox:
        env = sandbox.get_env()
        env.reset(seed=0)
        with pytest.raises(InvalidAction, match="NaN"):
            env.step(np.array([np.nan], np.float32))
        with pytest.raises(InvalidAction, match=r"expected float32 \(1,\)"):
            env.step(np.zeros(2, np.float32))


def test_closing() -> None:
    sandbox = AgentSandbox(CART)
    env = sandbox.get_env()
    env.reset()
    env.close()
    env.close()
    sandbox.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.step(0)
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.reset()


def test_a_function_of_the_script_itself() -> None:
    length = 0.7

    def make(gravity: float) -> gymnasium.Env[Any, Any]:
        made = Cart()
        made.length, made.gravity = length, gravity
        return made

    with AgentSandbox(make, env_kwargs={"gravity": 2.0}) as sandbox:
        assert sandbox.get_env().length == 0.7 and sandbox.get_env().gravity == 2.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env_id": "CartPole-v9"}, SandboxFailed, "did you mean CartPole-v1"),
        ({"env_id": "tests.sandbox.worlds:Nobody"}, SandboxFailed, "Nobody"),
        ({"env_id": None}, LocalError, "an environment is"),
        ({"env_id": "CartPole-v1", "env_kwargs": {"x": 1}}, SandboxFailed, "x"),
        ({"env_id": "CartPole-v1", "step_api": "jax"}, ValueError, "gymnasium, gym"),
        ({"env_id": "CartPole-v1", "resource_profile": "huge"}, ValueError, "rl_default"),
        ({"env_id": "CartPole-v1", "failover": {"stand": 1}}, ValueError, "failover.stand"),
        ({"env_id": "CartPole-v1", "deadlines": {"step_s": 0}}, ValueError, "deadlines.step_s"),
        ({"env_id": "CartPole-v1", "seed": -1}, ValueError, "seed"),
        ({"env_id": "CartPole-v1", "reward_window_size": 0}, ValueError, "reward_window_size"),
        ({"env_id": "CartPole-v1", "sync_interval": 3}, ValueError, "no multiple of 3"),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AgentSandbox(**arguments)


def test_one_thread_at_a_time(cart: TrackedEnv) -> None:
    cart.reset(seed=1)
    cart._lanes.enter()
    caught: list[Exception] = []

    def use() -> None:
        try:
            cart.step(0)
        except LocalError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(10)
    cart._lanes.leave()
    assert caught and "another thread" in str(caught[0])
    cart.step(0)


def test_a_fork_has_no_part_in_it(cart: TrackedEnv) -> None:
    cart.reset(seed=1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            cart.step(0)
        except LocalError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    plain = Cart()
    same(cart.reset(seed=1), plain.reset(seed=1))
    same(cart.step(0)[0], plain.step(0)[0])
