"""A reward runner that weighs objectives dies, and its successor gives the same rewards."""

from __future__ import annotations

import pytest

from dsec.ipc.frames import FailoverSettings, Role
from tests.runners.kernel import AgentPlan, Agents
from tests.runners.succession import Succession, Successions, entry

OBJECTIVES = {
    "task": {"weight": 0.6, "type": "dense"},
    "odd": {"weight": 0.4, "type": "sparse", "entry": "tests.reward.functions:odd"},
}


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G3")
@pytest.mark.parametrize("num_envs", [1, 2])
def test_weights_and_scales_survive(
    agents: Agents, successions: Successions, num_envs: int
) -> None:
    plan = AgentPlan(
        env=entry("Generated", plan=3),
        reward="dsec.reward:RewardOrchestrator",
        reward_kwargs={
            "objectives": OBJECTIVES,
            "per_agent_normalization": True,
            "min_reward_samples": 64,
        },
        num_envs=num_envs,
        steps=500 * num_envs,
        failover=FailoverSettings(standby="state"),
    )
    undisturbed = agents(plan).begin()
    Succession(undisturbed, None).drive({})
    succession = successions(plan)
    faults = {seq: lambda: succession.take_over(Role.REWARD) for seq in (37, 150, 151, 350)}
    succession.drive(faults)
    answers = succession.takeovers[Role.REWARD]
    assert [answer.exact for answer in answers] == [True] * 4, "all four died and were replaced"
    for role, records in undisturbed.records.items():
        found = succession.agent.records[role]
        assert [r.payload for r in found] == [r.payload for r in records], role
