"""The environments that people have: each runs isolated bit for bit as in SyncVectorEnv.

Owns one representative of each family that is in the extra `envs`, and of each way to name one in a
configuration. What they need is part of the extra `dev`; where it is missing, a test says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from dsec.ipc.frames import EnvSettings
from tests.runners.kernel import AgentPlan, Agents
from tests.runners.reference import compare_with_reference

STACK: tuple[Mapping[str, Any], ...] = (
    {"entry": "AtariPreprocessing", "kwargs": {"screen_size": 84, "noop_max": 5}},
    {"entry": "FrameStackObservation", "kwargs": {"stack_size": 4}},
)
VIEW: tuple[Mapping[str, Any], ...] = ({"entry": "minigrid.wrappers:ImgObsWrapper"},)
NORMAL: tuple[Mapping[str, Any], ...] = (
    {"entry": "TimeLimit", "kwargs": {"max_episode_steps": 20}},
    {"entry": "NormalizeObservation"},
    {"entry": "RecordEpisodeStatistics"},
)
ATARI = {"frameskip": 1}
# What makes it -> modules that it needs, environments, steps in all.
FAMILIES: dict[str, tuple[EnvSettings, tuple[str, ...], int, int]] = {
    "classic control": (EnvSettings(id="Acrobot-v1"), (), 2, 40),
    "continuous actions": (EnvSettings(id="Pendulum-v1"), (), 1, 210),
    "toy text": (EnvSettings(id="FrozenLake-v1"), (), 3, 120),
    "a tuple of numbers": (EnvSettings(id="Blackjack-v1"), (), 2, 60),
    "Box2D": (EnvSettings(id="LunarLander-v3"), ("Box2D",), 2, 240),
    "Box2D with frames": (
        EnvSettings(id="CarRacing-v3", wrappers=({"entry": "GrayscaleObservation"},)),
        ("Box2D", "pygame", "cv2"),
        1,
        3,
    ),
    "MuJoCo": (EnvSettings(id="HalfCheetah-v5"), ("mujoco",), 2, 60),
    "MuJoCo in wrappers": (
        EnvSettings(id="Hopper-v5", wrappers=NORMAL),
        ("mujoco",),
        2,
        100,
    ),
    "ALE": (EnvSettings(id="ale_py:ALE/Breakout-v5"), ("ale_py",), 1, 40),
    "ALE, preprocessed and stacked": (
        EnvSettings(id="ale_py:ALE/Pong-v5", kwargs=ATARI, wrappers=STACK),
        ("ale_py", "cv2"),
        2,
        30,
    ),
    "MiniGrid with missions": (
        EnvSettings(id="minigrid:BabyAI-GoToLocal-v0"),
        ("minigrid",),
        2,
        150,
    ),
    "MiniGrid through its own wrapper": (
        EnvSettings(id="minigrid:MiniGrid-Empty-5x5-v0", wrappers=VIEW),
        ("minigrid",),
        3,
        330,
    ),
}
# Gymnasium's vector infos have one dtype for a key (there a probability of 1/3 becomes 0), and the
# statistics hold the time that passed.
INFOS_DIFFER = ("toy text", "MuJoCo in wrappers")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_it_runs_isolated_as_in_one_process(agents: Agents, family: str) -> None:
    env, needs, num_envs, steps = FAMILIES[family]
    for module in needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f'{family} needs {module}: pip install "dsec-kernel[envs]"')
    agent = agents(AgentPlan(env=env, num_envs=num_envs, steps=steps)).run()
    episodes = compare_with_reference(agent, infos=family not in INFOS_DIFFER)
    ends = ("toy text", "a tuple of numbers", "Box2D", "MuJoCo in wrappers")
    if family in ends or "own wrapper" in family:
        assert episodes > 0


@pytest.mark.slow
def test_missions_reach_a_policy_as_texts(agents: Agents) -> None:
    pytest.importorskip("minigrid", reason='pip install "dsec-kernel[envs]"')
    env = EnvSettings(id="minigrid:BabyAI-GoToLocal-v0")
    agent = agents(AgentPlan(env=env, num_envs=2, steps=8)).run()
    space = agent.spaces[0]
    assert isinstance(space, gymnasium.spaces.Dict)
    assert isinstance(space["mission"], gymnasium.spaces.Text)
    for record in agent.observed():
        assert all(mission.startswith("go to ") for mission in record.obs["mission"])
        assert record.obs["image"].dtype == np.uint8
