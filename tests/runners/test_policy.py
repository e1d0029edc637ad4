"""The policy runner: what a policy is given, what it may return, and when it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsec.ipc.frames import EnvSettings, Phase, Role
from tests.runners import odd_worlds, worlds
from tests.runners.kernel import AgentPlan, Agents


def line(**kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{worlds.HERE}:Line", kwargs=kwargs)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("reward", ["dsec.reward:EnvReward", f"{worlds.HERE}:Shaped"])
def test_a_policy_learns_every_transition_before_it_acts_again(
    agents: Agents, num_envs: int, reward: str
) -> None:
    """The policy itself asserts order, observations and actions, and spoils what it is given."""
    plan = AgentPlan(
        env=line(length=4, info={"weight": 1}),
        policy=f"{worlds.HERE}:Learning",
        reward=reward,
        num_envs=num_envs,
        steps=40 * num_envs,
    )
    agent = agents(plan).run()
    assert agent.learns[Role.POLICY]
    metrics = agent.done[Role.POLICY].metrics
    assert metrics["learned"] == 40
    assert metrics["ends"] == 10 * num_envs
    assert metrics["rewards"] == sum(rewards.sum() for rewards in agent.rewards())
    assert metrics["infos"] == 40 * num_envs, "one key in each environment's info"
    # Terminal observations count, not the first ones of the next episodes.
    ages = sum(1 + step % 4 for step in range(40))
    totals = sum(1 + step for step in range(40))
    assert metrics["next"] == num_envs * (ages + totals)


def test_a_policy_that_does_not_learn_says_so(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(), policy=f"{worlds.HERE}:Cycling", steps=9)).run()
    assert not agent.learns[Role.POLICY]
    assert [int(action[0]) for action in agent.actions()] == [0, 1, 2] * 3
    assert agent.done[Role.POLICY].metrics == {}


def test_zero_copy_observations_are_read_only(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(), policy=f"{worlds.HERE}:Looking", steps=5)).run()
    assert agent.done[Role.POLICY].metrics == {"writeable": 0.0}


@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        ("four values", "action: expected int64 (1,)"),
        ("nothing", "action: expected int64 (1,), got bool ()"),
    ],
)
def test_actions_that_do_not_fit_are_named(agents: Agents, misdeed: str, words: str) -> None:
    plan = AgentPlan(
        env=line(),
        policy=f"{worlds.HERE}:Cycling",
        policy_kwargs={"misdeed": misdeed, "phase": "act", "at": 3},
    )
    agent = agents(plan).begin()
    failed = agent.policy.failure()
    assert words in failed.error.message
    assert (failed.phase, failed.seq) == (Phase.ACT, 3)
    assert agent.policy.wait() == 70


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("None", "action: expected int64 ({n},), got None. act() must return one action for each"),
        ("object()", "action: expected int64 ({n},), got object. "),
        ("{'a': 1}", "action: expected int64 ({n},), got dict. "),
        ("'left'", "action: expected int64 ({n},), got <U4 (). "),
        ("0", "action: expected int64 ({n},), got int64 (). "),
        ("[0.5] * self._n", "action: expected int64 ({n},), got float64 ({n},)"),
        ("[0] * 7", "got int64 (7,). "),
        ("[3] * self._n", "action: 3 is outside its space, which is 0 to 2. "),
        ("np.full(self._n, -1)", "action: -1 is outside its space, which is 0 to 2. "),
    ],
)
def test_what_is_no_action_is_told_in_words_of_the_contract(
    agents: Agents, answer: str, words: str, num_envs: int
) -> None:
    plan = AgentPlan(
        env=line(),
        policy=f"{odd_worlds.HERE}:Answering",
        policy_kwargs={"answer": answer},
        num_envs=num_envs,
    )
    failed = agents(plan).begin().policy.failure()
    assert words.format(n=num_envs) in failed.error.message
    assert f"here its first axis is {num_envs}, and all of it is in the action space" in (
        failed.error.message
    )
    assert failed.error.type == "UserCodeError"
    assert not failed.error.traceback, "no line of the policy's is in it"
    assert (failed.phase, failed.seq) == (Phase.ACT, 3)


def test_metrics_must_be_numbers(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(), policy=f"{worlds.HERE}:BadMetrics", steps=5))
    agent.begin().take_all()
    failed = agent.policy.failure()
    assert "metrics() must return a dict of numbers, and returned ['no', 'dict']" in (
        failed.error.message
    )
    assert failed.phase == Phase.CLOSE


def test_seeds_of_policies_are_their_own(agents: Agents) -> None:
    streams = []
    for i in range(3):
        plan = AgentPlan(name=f"random{i}", env=line(), seed=f"{i // 2:032x}", steps=60)
        agent = agents(plan).run()
        streams.append(np.concatenate(agent.actions()).tolist())
    same, again, other = streams
    assert same == again
    assert same != other
