"""The env runner against an in-process reference, and against environments that break the rules."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dsec.errors import LayoutError
from dsec.ipc.frames import EnvSettings, Phase, Role
from dsec.ipc.segment import ProgressWord
from dsec.runners import seeds
from dsec.runners.construct import make_env
from dsec.runners.returned import as_reward
from tests import watchdog
from tests.runners import worlds
from tests.runners.kernel import SEED, AgentPlan, Agents
from tests.runners.reference import compare_with_reference

BOUNDARY, END = 1, 2


def entry(name: str, **kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{worlds.HERE}:{name}", kwargs=kwargs)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_cartpole_is_the_in_process_cartpole(agents: Agents, num_envs: int) -> None:
    plan = AgentPlan(steps=400 * num_envs, num_envs=num_envs)
    agent = agents(plan).run()
    assert compare_with_reference(agent) > 3


@pytest.mark.parametrize("num_envs", [1, 2])
def test_generated_spaces_are_the_in_process_ones(agents: Agents, num_envs: int) -> None:
    for plan_seed in range(12):
        plan = AgentPlan(
            name=f"agent{plan_seed}",
            env=entry("Generated", plan=plan_seed),
            steps=60 * num_envs,
            num_envs=num_envs,
        )
        agent = agents(plan).run()
        assert compare_with_reference(agent) > 0, plan_seed


def test_infos_are_those_of_each_transition_and_reset(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Generated", plan=3), steps=80)).run()
    env = worlds.Generated(3)
    (seed,) = seeds.environment_seeds(SEED, 1)
    _, info = env.reset(seed=seed)
    first, *others = agent.observed()
    assert first.infos == [info]
    assert (first.flags, first.reward[0], first.ends[0]) == (0, 0.0, 0)
    seen = {"age": 0, "born": 0}
    layout_read = agent.actions()
    for record, action in zip(others, layout_read, strict=True):
        _, _, terminated, truncated, info = env.step(worlds.pick(action, 0))
        if terminated or truncated:
            _, reset_info = env.reset()
            if reset_info:
                info = {**info, "dsec": {"reset_info": reset_info}}
                seen["born"] += 1
        assert record.infos == [info]
        seen["age"] += "age" in info
    assert seen["age"] and seen["born"], "the example must have both"


def test_boundaries_are_marked_on_all_rings(agents: Agents) -> None:
    agent = agents(AgentPlan(steps=25, snapshot_interval=10)).run()
    flags = {role: {r.seq: r.flags for r in agent.records[role]} for role in agent.records}
    assert [s for s, f in flags[Role.ENV].items() if f & BOUNDARY] == [10, 20]
    assert [s for s, f in flags[Role.POLICY].items() if f & BOUNDARY] == [10, 20]
    assert [s for s, f in flags[Role.REWARD].items() if f & BOUNDARY] == [9, 19]
    for role in flags:
        assert [s for s, f in flags[role].items() if f & END] == [25]


@pytest.mark.parametrize(
    ("num_envs", "steps", "episodes", "last"),
    [(1, 7, 0, 7), (3, 7, 0, 3), (3, 9, 0, 3), (1, 0, 2, 8), (2, 0, 3, 8), (1, 6, 9, 6)],
)
def test_quotas_end_the_stream_where_they_say(
    agents: Agents, num_envs: int, steps: int, episodes: int, last: int
) -> None:
    plan = AgentPlan(env=entry("Line", length=4), num_envs=num_envs, steps=steps, episodes=episodes)
    agent = agents(plan).run()
    assert [r.seq for r in agent.records[Role.ENV]] == list(range(last + 1))
    assert {done.seq for done in agent.done.values()} == {last}


def test_a_terminal_observation_survives_a_reused_array(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Reusing"), steps=4)).run()
    record = agent.observed()[3]
    assert record.finals[0].tolist() == [3, 3], "the step's observation, not the reset's"
    assert record.obs.tolist() == [[3, 0]]


@pytest.mark.parametrize(
    ("misdeed", "words"),
    [
        ("four values", "environment 1: step() must return (observation, reward, terminated"),
        ("four values", "the old Gym API"),
        ("nothing", "returned False"),
        ("bad shape", "environment 1: observation: expected float32 (2,), got float32 (3,)"),
        ("bad info", "infos[1]"),
        ("info is a list", "environment 1: step() returned [1] as info, no dict"),
        ("no reward", "environment 1: reward: expected a number, got None"),
    ],
)
def test_a_step_that_returns_nonsense_is_named(agents: Agents, misdeed: str, words: str) -> None:
    plan = AgentPlan(env=entry("Line", misdeed=misdeed, at=5, which=1), num_envs=2)
    agent = agents(plan).begin()
    failed = agent.env.failure()
    assert words in failed.error.message
    assert (failed.phase, failed.seq) == (Phase.STEP, 4)
    assert agent.env.wait() == 70


@pytest.mark.guarantee("G6")
def test_a_deadline_is_for_one_environments_step(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Slow"), num_envs=3, steps=3)).begin()
    progress = ProgressWord(agent.segments[Role.ENV].fd)
    began = set()

    def ended() -> bool:
        phase, since_ns, seq = progress.read()
        if phase is Phase.STEP and seq == 0:
            began.add(since_ns)
        return phase is Phase.IDLE and len(began) > 0

    watchdog.until(ended, 20, "the step ends")
    progress.close()
    assert len(began) == 3, "each environment's step has a time of its own"


def test_a_reset_that_returns_nonsense_is_named(agents: Agents) -> None:
    plan = AgentPlan(env=entry("Line", misdeed="nothing", phase="reset"))
    agent = agents(plan).begin()
    failed = agent.env.failure()
    assert "environment 0: reset() must return (observation, info)" in failed.error.message
    assert (failed.phase, failed.seq) == (Phase.RESET, 0)


def test_environments_of_one_agent_must_agree(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("two_kinds"), num_envs=2))
    failed = agent.env.failure()
    assert "environment 1 has another action_space" in failed.error.message
    assert failed.error.where == "env"


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        3,
        True,
        np.float32(0.1),
        np.float16(0.1),
        np.int64(-4),
        np.bool_(True),
        np.array(2.5),
        np.array([2.5], np.float32),
        np.array([[7]]),
        float("nan"),
        float("-inf"),
    ],
)
def test_a_reward_is_taken_exactly(value: Any) -> None:
    got = as_reward(value)
    wanted = float(np.asarray(value).reshape(()))
    assert type(got) is float
    assert np.float64(got).tobytes() == np.float64(wanted).tobytes()


@pytest.mark.parametrize(
    "value", [None, "1.0", b"1", 1j, [1.0], np.zeros(2), {}, 2**60 + 1, object()]
)
def test_a_reward_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(LayoutError, match="reward: "):
        as_reward(value)


def test_seeds_differ_and_depend_on_nothing_else() -> None:
    ours = seeds.environment_seeds(SEED, 64)
    assert ours[:8] == seeds.environment_seeds(SEED, 8)
    theirs = seeds.environment_seeds(SEED[::-1], 64)
    assert len({*ours, *theirs}) == 128
    assert all(0 <= seed < 2**31 for seed in ours)
    assert ours[:2] == [613687873, 1074816739], "a change here changes every recorded run"


def test_gymnasium_takes_the_wrappers_of_the_config() -> None:
    settings = EnvSettings(
        id="CartPole-v1",
        kwargs={"max_episode_steps": 30},
        wrappers=(
            {"entry": "TransformReward", "kwargs": {"func": worlds.checksum}},
            {"entry": "gymnasium.wrappers:RecordEpisodeStatistics"},
        ),
    )
    env = make_env(settings)
    kinds = []
    while isinstance(env, gymnasium.Wrapper):
        kinds.append(type(env).__name__)
        env = env.env
    assert kinds == ["RecordEpisodeStatistics", "TransformReward", "TimeLimit", "OrderEnforcing"]
