"""Runners with spaces of no fixed size, against Gymnasium's own vector environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dsec.ipc.frames import EnvSettings, Role
from dsec.runners import seeds
from tests.runners import odd_worlds, worlds
from tests.runners.kernel import AgentPlan, Agents
from tests.runners.reference import compare_infos, compare_with_reference, same


def entry(name: str, **kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{worlds.HERE}:{name}", kwargs=kwargs)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_generated_variable_spaces_are_the_in_process_ones(agents: Agents, num_envs: int) -> None:
    for plan_seed in range(14):
        plan = AgentPlan(
            name=f"agent{plan_seed}",
            env=entry("Generated", plan=plan_seed, variable=True),
            steps=40 * num_envs,
            num_envs=num_envs,
        )
        agent = agents(plan).run()
        assert compare_with_reference(agent) > 0, plan_seed


def test_the_plans_cover_every_kind() -> None:
    text = str([worlds.Generated(plan, variable=True).observation_space for plan in range(14)])
    for kind in ("Text", "Sequence", "Graph", "OneOf", "stack=True", "stack=False", "Box"):
        assert kind in text


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("policy", ["Shouting", "ShoutingLearner"])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_records_of_megabytes_pass_rings_of_64_kib(
    agents: Agents, policy: str, num_envs: int
) -> None:
    plan = AgentPlan(
        name="huge",
        env=EnvSettings(entry=f"{odd_worlds.HERE}:Huge"),
        policy=f"{odd_worlds.HERE}:{policy}",
        reward=f"{odd_worlds.HERE}:Measured",
        steps=12 * num_envs,
        num_envs=num_envs,
        ring_slots=1,
    )
    agent = agents(plan).run()
    assert {part.size for part in agent.segments.values()} == {4096, 4096 + 65536}
    assert agent.overflows >= 12
    actor = odd_worlds.Shouting(num_envs=num_envs)
    vector = SyncVectorEnv([odd_worlds.Huge] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    obs, _ = vector.reset(seed=list(seeds.environment_seeds(plan.seed, num_envs)))
    first, *records = agent.observed()
    same(obs, first.obs, "obs 0")
    images = 0
    for seq, record in enumerate(records):
        action = actor.act(obs)
        same(action, agent.actions()[seq], f"action {seq}")
        obs, reward, ended, _, told = vector.step(action)
        same(obs, record.obs, f"obs {seq + 1}")
        same(reward, record.reward, f"reward {seq}")
        compare_infos(told, record.infos, list(np.flatnonzero(ended)), f"step {seq}")
        images += sum("image" in info for info in record.infos)
        for i in np.flatnonzero(ended):
            same(told["final_obs"][i], record.finals[int(i)], f"final {i} of step {seq}")
    assert images == 3 * num_envs, "infos of 5 MB"
    computed = np.array(agent.rewards())
    assert computed.max() >= 5_000_000 and computed.min() >= 0
    seen = agent.done[Role.POLICY].metrics
    assert int(seen["letters"]) == int(actor.metrics()["letters"])
