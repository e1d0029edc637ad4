"""A policy in a process of its own: what it does, and the weights that it is given meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.errors import LayoutError, LocalError, SandboxFailed
from dsec.sandbox import AgentSandbox

LINEAR = "tests.sandbox.worlds:Linear"


def weights(w: float, b: float = 0.0) -> dict[str, Any]:
    return {"w": np.full((4,), w, np.float32), "b": np.array(b)}


@pytest.mark.guarantee("G3")
def test_acts_and_takes_weights_at_the_next_step(tmp_path: Path) -> None:
    obs, traps = np.ones(4, np.float32), [str(tmp_path / name) for name in "ab"]
    policy = {"entry": LINEAR, "kwargs": {"traps": traps}}
    with AgentSandbox("CartPole-v1", policy=policy, seed=1) as sandbox:
        env = sandbox.get_env()
        seen, _ = env.reset(seed=3)
        for _ in range(5):
            action = sandbox.act(seen)
            assert env.action_space.contains(action)
            seen = env.step(action)[0]
        assert sandbox.act(obs) == 0
        assert sandbox.update_policy(weights(1.0)) == 1
        assert sandbox.act(obs) == 1 and sandbox.act(-obs) == 0
        first, second = (np.full(4, each, np.float32) for each in (1e6, 2e6))
        assert sandbox.act(first) == 1, "its successor has them, too"
        assert sandbox.update_policy(weights(-1.0)) == 2
        assert sandbox.act(second) == 0
        assert [Path(each).exists() for each in traps] == [True, True], "it was killed twice"
        for k in range(20):
            assert sandbox.act(obs if k % 2 else -obs) == (k + 1) % 2


def test_weights_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    with AgentSandbox("CartPole-v1", policy={"entry": LINEAR, "kwargs": {"bias": 1.0}}) as sandbox:
        for wrong, message in (
            ({"w": np.zeros(4, np.float32)}, "b is missing"),
            ({**weights(0), "c": np.zeros(1)}, "the policy has no c"),
            (
                {**weights(0), "w": np.zeros(5, np.float32)},
                r"w is float32 \(4,\) there, and float32",
            ),
            ({**weights(0), "w": np.zeros(4)}, r"and float64 \(4,\) here"),
        ):
            with pytest.raises(ValueError, match=message):
                sandbox.update_policy(wrong)
        with pytest.raises(LayoutError, match="not an observation"):
            sandbox.act(np.zeros(3))
        assert sandbox.act(np.zeros(4, np.float32)) == 1, "as it was made"


def test_mistakes_are_told() -> None:
    with AgentSandbox("CartPole-v1") as sandbox:
        with pytest.raises(LocalError, match="the script itself is the policy"):
            sandbox.update_policy({})
        with pytest.raises(LocalError, match="policy='module:Class'"):
            sandbox.act(None)
    with AgentSandbox("CartPole-v1", policy="dsec.policies:RandomPolicy") as sandbox:
        assert sandbox.act(np.zeros(4, np.float32)) in (0, 1)
        with pytest.raises(LocalError, match="load_state_dict"):
            sandbox.update_policy({})
    with pytest.raises(SandboxFailed, match="Nobody"):
        AgentSandbox("CartPole-v1", policy="tests.sandbox.worlds:Nobody")
    with pytest.raises(ValueError, match="policy is"):
        AgentSandbox("CartPole-v1", policy={"class": "x"})


@pytest.mark.slow
def test_torch_modules_are_such_policies() -> None:
    torch = pytest.importorskip("torch")
    from tests.sandbox.torch_worlds import Net

    mine = Net(observation_space=None, action_space=None, num_envs=1, seed=3)
    with AgentSandbox("CartPole-v1", policy="tests.sandbox.torch_worlds:Net", seed=1) as sandbox:
        sandbox.update_policy(mine.state_dict())
        for k in range(10):
            obs = np.random.default_rng(k).normal(size=4).astype(np.float32)
            assert sandbox.act(obs) == mine.act(obs[None])[0]
        wrong = {name: value.double() for name, value in mine.state_dict().items()}
        with pytest.raises(ValueError, match=r"layer\.weight is float32"):
            sandbox.update_policy(wrong)
        assert torch.is_tensor(mine.state_dict()["layer.bias"])
