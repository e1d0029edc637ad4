"""What environments return against the rules: as Gymnasium's vector environments take it, or named.

Each case is stepped by gymnasium's own SyncVectorEnv, too: where that gives a stream, ours is the
same; where ours refuses, the message says which environment, which field and what came.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dsec.ipc.frames import EnvSettings, Phase
from dsec.runners import seeds
from tests.runners import odd_worlds, worlds
from tests.runners.kernel import AgentPlan, Agents
from tests.runners.reference import same


def entry(name: str, **kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{worlds.HERE}:{name}", kwargs=kwargs)


def odd(name: str, **kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{odd_worlds.HERE}:{name}", kwargs=kwargs)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    "deed", ["nan", "out of bounds", "float64", "list", "int", "bool", "one buffer", "long text"]
)
def test_what_gymnasium_takes_is_taken_the_same_way(
    agents: Agents, deed: str, num_envs: int
) -> None:
    plan = AgentPlan(
        env=odd("Sloppy", deed=deed),
        policy=f"{worlds.HERE}:Cycling",
        steps=8 * num_envs,
        num_envs=num_envs,
    )
    agent = agents(plan).run()
    vector = SyncVectorEnv(
        [lambda: odd_worlds.Sloppy(deed)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )
    obs, _ = vector.reset(seed=list(seeds.environment_seeds(plan.seed, num_envs)))
    for seq, record in enumerate(agent.observed()):
        same(obs, record.obs, f"obs {seq}")
        obs, reward, *_ = vector.step(np.full(num_envs, seq % 3))
        if seq < 8:
            same(reward, agent.observed()[seq + 1].reward, f"reward {seq}")


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("shape", 'observation["at"]: expected float32 (2,), got float32 (3,)'),
        ("complex", 'observation["at"]: expected float32 (2,), got complex128 (2,)'),
        ("text for numbers", 'observation["at"]: expected float32 (2,), got <U1 (2,)'),
        ("none", 'observation["at"]: expected float32 (2,), got None'),
        ("missing", "observation: expected a dict with keys ['at', 'say']"),
        ("missing", "missing: ['say']"),
        ("unknown", "unknown: ['more']"),
        ("no dict", "observation: expected a dict with keys ['at', 'say'], got ndarray"),
        ("number for text", 'observation["say"]: expected text, got int'),
        ("reward none", "reward: expected a number, got None"),
        ("reward text", "reward: expected a number, got 'much'"),
        ("reward pair", "reward: expected a number, got array([1., 2.])"),
        ("info object", 'infos[1]["deep"][0]: a builtins.object has no place here'),
        ("info key", "infos[1]: key (1, 2) is a tuple; use str or int"),
        ("info lambda", 'infos[1]["f"]: a builtins.function has no place here'),
    ],
)
def test_what_it_refuses_or_breaks_is_refused_by_name(
    agents: Agents, deed: str, words: str
) -> None:
    env = odd("Sloppy", deed=deed, which=1)
    agent = agents(AgentPlan(env=env, policy=f"{worlds.HERE}:Cycling", num_envs=2)).begin()
    failed = agent.env.failure()
    assert words in failed.error.message
    if "infos" not in words:
        assert "environment 1: " in failed.error.message
    assert (failed.phase, failed.seq) == (Phase.STEP, odd_worlds.Sloppy.AT)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.float32(0.1), float(np.float32(0.1))),
        (np.array([0.5]), 0.5),
        (3, 3.0),
        (True, 1.0),
        (math.nan, math.nan),
        (-math.inf, -math.inf),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_odd_rewards_are_the_numbers_that_they_are(
    agents: Agents, value: Any, wanted: float, num_envs: int
) -> None:
    plan = AgentPlan(
        env=entry("Line", reward=value if isinstance(value, float | int) else "numpy"),
        steps=3 * num_envs,
        num_envs=num_envs,
    )
    if plan.env.kwargs["reward"] == "numpy":
        plan.env = odd("OddReward", value=value.tolist(), dtype=str(value.dtype))
    agent = agents(plan).run()
    for record in agent.observed()[1:]:
        same(record.reward, np.full(num_envs, wanted))
