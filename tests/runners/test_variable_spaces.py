"""Runners with spaces of no fixed size, against Gymnasium's own vector environment."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.ipc.frames import EnvSettings
from tests.runners import worlds
from tests.runners.kernel import AgentPlan, Agents
from tests.runners.reference import compare_with_reference


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
