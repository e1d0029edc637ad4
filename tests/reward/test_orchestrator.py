"""RewardOrchestrator: where values come from, what they weigh, and what it says no to."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LocalError
from dsec.reward import RewardOrchestrator
from dsec.runners.contract import Transitions

TWO = {
    "task": {"weight": 0.7, "type": "dense"},
    "safety": {"weight": 0.3, "type": "sparse"},
}


def told(**values: float) -> dict[str, Any]:
    return {"objectives": values}


def step(orchestrator: RewardOrchestrator, **keywords: Any) -> float:
    value = orchestrator.compute(np.zeros(2), 0, np.zeros(2), False, **keywords)
    assert isinstance(value, float)
    return value


def test_the_calls_of_the_description() -> None:
    orchestrator = RewardOrchestrator(
        objectives={
            "task": {"weight": 0.7, "type": "dense"},
            "safety": {"weight": 0.3, "type": "sparse"},
        },
        dynamic_weighting=True,
        per_agent_normalization=False,
        min_reward_samples=100,
        trace_raw_values=True,
    )
    orchestrator.register("task", lambda obs, action, next_obs, done: float(obs[0]))
    orchestrator.register("safety", lambda obs, action, next_obs, done: -float(done))
    assert orchestrator.compute([2.0], 1, [3.0], True) == 0.7 * 2.0 - 0.3
    orchestrator.update_objectives(
        {"task": {"weight": 0.5, "type": "dense"}, "safety": {"weight": 0.5, "type": "sparse"}}
    )
    assert orchestrator.compute([2.0], 1, [3.0], True) == 0.5 * 2.0 - 0.5
    assert orchestrator.raw_values[-1] == {"agent": "", "task": 2.0, "safety": -1.0}


def test_values_come_from_functions_info_and_the_environment_in_this_order() -> None:
    orchestrator = RewardOrchestrator(TWO)
    assert step(orchestrator, reward=10.0, info=told(task=2, safety=1)) == 0.7 * 2 + 0.3
    assert step(orchestrator, reward=10.0, info=told(safety=1)) == 0.7 * 10 + 0.3
    assert step(orchestrator, reward=10.0, info=told()) == 0.7 * 10, "sparse ones may be silent"
    orchestrator.register("safety", lambda *_, info, agent, reward: (len(info), 5.0)[1])
    assert step(orchestrator, reward=10.0, info=told(safety=1)) == 0.7 * 10 + 0.3 * 5
    alone = RewardOrchestrator({"only": {"weight": 1.0, "type": "sparse"}})
    assert step(alone, reward=3.0) == 3.0


def test_without_a_value_the_first_call_says_what_to_do() -> None:
    orchestrator = RewardOrchestrator(TWO)
    with pytest.raises(LocalError, match=r'nothing tells the value of "task", "safety": let'):
        step(orchestrator)
    with pytest.raises(LocalError, match=r'value of "safety" \(the environment.s reward is that'):
        step(orchestrator, reward=1.0)
    with pytest.raises(LocalError, match="is no mapping of names"):
        step(orchestrator, reward=1.0, info={"objectives": 3})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "much", None])
def test_what_is_no_number_is_refused_and_not_counted(value: Any) -> None:
    orchestrator = RewardOrchestrator(TWO, per_agent_normalization=True)
    step(orchestrator, info=told(task=1, safety=0), agent="a")
    before = orchestrator.get_state()
    with pytest.raises(LocalError, match=r"objective 'safety'.*info\[\"objectives\"\] is"):
        step(orchestrator, info=told(task=1, safety=value), agent="a")
    assert orchestrator.get_state() == before


@pytest.mark.parametrize(
    ("given_objectives", "words"),
    [
        ({}, "no objectives: give at least one"),
        ([], "expected a mapping"),
        ({"a": 1}, "objective 'a': expected"),
        ({"a": {"type": "dense"}}, "its weight is missing"),
        ({"a": {"weight": -0.5}, "b": {"weight": 1.5}}, "from 0 to 1, not -0.5"),
        ({"a": {"weight": float("nan")}}, "from 0 to 1, not nan"),
        ({"a": {"weight": "half"}}, "must be a number"),
        ({"a": {"weight": True}}, "must be a number"),
        ({"a": {"weight": 1, "type": "often"}}, "dense or sparse"),
        ({"a": {"weight": 1, "wight": 1}}, "unknown key 'wight'"),
        ({"a": {"weight": 1, "entry": 3}}, "entry is"),
        ({"": {"weight": 1}}, "called by a text"),
        ({"a": {"weight": 0.5}, "b": {"weight": 0.3}}, r"add up to 0.8, not to 1.* a: 0.625"),
    ],
)
def test_objectives_that_can_not_be(given_objectives: Any, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        RewardOrchestrator(given_objectives)


def test_other_things_that_can_not_be() -> None:
    orchestrator = RewardOrchestrator(TWO)
    with pytest.raises(LocalError, match=r"no objective 'speed' \(there are task, safety\)"):
        orchestrator.register("speed", lambda *_: 0.0)
    with pytest.raises(LocalError, match="can't be called"):
        orchestrator.register("task", 3)  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="min_reward_samples"):
        RewardOrchestrator(TWO, min_reward_samples=0)
    before = orchestrator.get_state()
    for changes in ({"task": {"weight": 0.9}}, {"task": None}, {"x": None}, 3):
        with pytest.raises(LocalError):
            orchestrator.update_objectives(changes)  # type: ignore[arg-type]
    assert orchestrator.get_state() == before


def test_objectives_come_and_go_at_run_time() -> None:
    orchestrator = RewardOrchestrator(TWO)
    step(orchestrator, info=told(task=1, safety=1))
    orchestrator.update_objectives(
        {"safety": None, "task": {"weight": 0.4}, "speed": {"weight": 0.6}}
    )
    assert step(orchestrator, info=told(task=1, speed=10)) == 0.4 * 1 + 0.6 * 10
    assert orchestrator.raw_values == [{"agent": "", "task": 1.0, "speed": 10.0}]


# ------------------------------------------------------------------ weights that move


def sources(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Dense and sparse values whose distribution stays as it is."""
    rare = rng.random(count) < rng.choice([0.3, 0.05, 0.01, 0.002])
    return {
        "task": {
            0: rng.normal(1, 2, count),
            1: rng.exponential(1, count),
            2: np.sin(np.arange(count) / 7) + rng.normal(0, 0.1, count),
            3: np.ones(count),
        }[int(rng.integers(4))],
        "safety": np.where(rare, -rng.choice([1.0, 5.0], count), 0.0),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_weights_stay_where_nothing_changes_on_sparse_rewards_too(seed: int) -> None:
    orchestrator = RewardOrchestrator(TWO, trace_raw_values=False)
    values = sources(np.random.default_rng(seed), 8000)
    most = 0.0
    for task, safety in zip(values["task"].tolist(), values["safety"].tolist(), strict=True):
        step(orchestrator, info=told(task=task, safety=safety))
        weights = orchestrator.weights
        most = max(most, abs(weights["task"] / 0.7 - 1), abs(weights["safety"] / 0.3 - 1))
    assert most <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["task", "safety"])
def test_a_jump_of_the_variance_raises_a_weight_for_a_while(name: str) -> None:
    rng = np.random.default_rng(1)
    orchestrator = RewardOrchestrator(TWO)
    followed = []
    for number in range(9000):
        task, safety = rng.normal(), -float(rng.random() < 0.05)
        if number >= 3000:
            task, safety = (task * 4, safety) if name == "task" else (task, -2.0 * rng.integers(2))
        step(orchestrator, info=told(task=task, safety=safety))
        weights = orchestrator.weights
        assert abs(sum(weights.values()) - 1) < 1e-12
        followed.append(weights[name])
    base, raised = TWO[name]["weight"], np.flatnonzero(np.array(followed) > followed[0])
    assert 3000 < raised[0] < 3600, "it is noticed within some hundred steps"
    assert base < max(followed) <= 2 * base / (2 * base + 1 - base) + 1e-12
    assert followed[-1] == base, "and goes back, to the very weight"
    changes = np.diff(np.sign(np.diff(followed)))
    assert np.count_nonzero(changes) <= 4, "up once and down once: no oscillation"
    assert orchestrator.metrics()[f"jumps_{name}"] == 1


def test_nothing_moves_before_there_are_enough_samples_or_in_fixed_mode() -> None:
    rng = np.random.default_rng(0)
    for keywords in ({"min_reward_samples": 10_000}, {"dynamic_weighting": False}):
        orchestrator = RewardOrchestrator(TWO, **keywords)
        for number in range(3000):
            step(
                orchestrator, info=told(task=rng.normal() * (100 if number > 1000 else 1), safety=0)
            )
            assert orchestrator.weights == {"task": 0.7, "safety": 0.3}


def test_an_agent_of_large_rewards_does_not_drown_one_of_small_ones() -> None:
    rng = np.random.default_rng(0)
    mixed = RewardOrchestrator({"task": {"weight": 1.0}}, per_agent_normalization=True)
    alone = RewardOrchestrator({"task": {"weight": 1.0}}, per_agent_normalization=True)
    large, small, by_itself = [], [], []
    for value in rng.random(2000).tolist():
        large.append(step(mixed, reward=1000 * value, agent="large"))
        small.append(step(mixed, reward=value, agent="small"))
        by_itself.append(step(alone, reward=value, agent="small"))
    assert small == by_itself, "bit for bit what it is without the other"
    assert np.allclose(large, small) and 0.5 < np.mean(small) < 1.5
    assert step(mixed, reward=1e9, agent="small") == 10.0, "and no value counts more than tenfold"


# ------------------------------------------------------------------ in a runner, and its state


def transitions(seq: int, n: int, rng: random.Random) -> Transitions:
    return Transitions(
        seq=seq,
        obs=np.full((n, 3), seq, np.float32),
        action=np.arange(n),
        reward=np.zeros(n),
        env_reward=np.array([rng.gauss(0, 1) for _ in range(n)]),
        next_obs=np.full((n, 3), seq + 1, np.float32),
        terminated=np.zeros(n, np.bool_),
        truncated=np.array([seq % 7 == 6] * n),
        infos=[told(safety=-float(rng.random() < 0.1)) for _ in range(n)],
    )


def in_runner(n: int, **keywords: Any) -> RewardOrchestrator:
    return RewardOrchestrator(
        TWO,
        **keywords,
        observation_space=spaces.Box(-9, 9, (3,)),
        action_space=spaces.Discrete(9),
        num_envs=n,
        seed=1,
    )


def test_each_environment_of_a_runner_is_an_agent() -> None:
    orchestrator, t = in_runner(3), transitions(0, 3, random.Random(0))
    seen: list[Any] = []
    orchestrator.register("safety", lambda *args, agent: seen.append((*args, agent)) or -1.0)
    t.infra = np.array([False, True, False])
    rewards = orchestrator.compute(t)
    assert rewards.dtype == np.float64 and rewards.shape == (3,)
    assert rewards.tolist() == [0.7 * t.env_reward[0] - 0.3, 0.0, 0.7 * t.env_reward[2] - 0.3]
    assert [(each[0].tolist(), int(each[1]), each[3], each[4]) for each in seen] == [
        ([0.0] * 3, 0, False, "0"),
        ([0.0] * 3, 2, False, "2"),
    ]


@given(
    st.integers(1, 250), st.integers(0, 120), st.booleans(), st.sampled_from(["json", "msgpack"])
)
def test_a_restored_one_goes_on_bit_for_bit(
    before: int, after: int, normalized: bool, how: str
) -> None:
    rng = random.Random(before)
    steps = [transitions(seq, 2, rng) for seq in range(before + after)]
    for t in steps[before // 2 :]:
        t.env_reward *= 9
    keywords: Any = {"per_agent_normalization": normalized, "min_reward_samples": 40}
    lived = in_runner(2, **keywords)
    for t in steps[:before]:
        lived.compute(t)
    coder = msgspec.json if how == "json" else msgspec.msgpack
    other = in_runner(2, **keywords)
    other.set_state(coder.decode(coder.encode(lived.get_state())))
    assert json.dumps(other.get_state()) == json.dumps(lived.get_state())
    for t in steps[before:]:
        assert other.compute(t).tobytes() == lived.compute(t).tobytes()
    assert json.dumps(other.get_state()) == json.dumps(lived.get_state())


@pytest.mark.parametrize("state", [{}, {"version": 99}, {"version": 1, "objectives": 3}, 7, None])
def test_what_is_no_state_is_refused(state: Any) -> None:
    orchestrator = RewardOrchestrator(TWO)
    before = orchestrator.get_state()
    with pytest.raises(LocalError):
        orchestrator.set_state(state)
    assert orchestrator.get_state() == before
