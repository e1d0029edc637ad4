"""From a configuration to what the kernel runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.config import load
from dsec.engine.images import BASE_IMAGE, BASE_MODULES, where_module
from dsec.engine.plan import make_spec, quotas
from dsec.errors import ConfigError
from dsec.ipc.frames import Phase, Role
from dsec.seeds import agent_seed
from dsec.spec import RunSpec

CONFIG = """
run: {name: r, steps: 103}
agents:
  - name: a
    count: 3
    env: {id: CartPole-v1, kwargs: {x: 1}, num_envs: 4}
    policy: {entry: "dsec.policies:RandomPolicy"}
    snapshot_interval: 7
    deadlines: {step_s: 2.5}
    limits: {memory_mb: 512, cpus: [1, 0, 1]}
    ipc: {ring_slots: 64}
  - name: b
    env:
      id: "my_envs.robots:Arm-v0"
      wrappers: [TimeLimit, {entry: "my_wrappers:W", kwargs: {k: 1}}]
    policy: {entry: "my_policies:P", kwargs: {lr: 0.1}}
    reward: {entry: "my_rewards:R"}
""".replace("[TimeLimit, ", "[{entry: TimeLimit}, ")


def spec_of(tmp_path: Path, text: str = CONFIG, *, dry: bool = False) -> RunSpec:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return make_spec(load(path), run_dir="/r", seed=7, open_files=1024, dry=dry)


def test_agents_with_their_quotas_and_seeds(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert [agent.name for agent in spec.agents] == ["a-000", "a-001", "a-002", "b"]
    assert [agent.group for agent in spec.agents] == ["a", "a", "a", "b"]
    # 103 = 26 + 26 + 26 + 25, the first three rounded up to whole batches of four.
    assert [agent.runners[0].start.steps for agent in spec.agents] == [28, 28, 28, 25]
    for agent in spec.agents:
        assert [runner.role for runner in agent.runners] == [Role.ENV, Role.POLICY, Role.REWARD]
        assert {runner.start.seed for runner in agent.runners} == {agent_seed(7, agent.name)}
    first = spec.agents[0].runners[0]
    assert first.start.env.id == "CartPole-v1"
    assert first.start.env.kwargs == {"x": 1}
    assert first.start.limits == {"open_files": 1024, "memory_mb": 512}
    assert first.start.cpus == (0, 1)
    assert (first.start.snapshot_interval, first.start.ring_slots) == (7, 64)
    assert first.deadline_s[Phase.STEP] == 2.5
    assert first.deadline_s[Phase.IMPORT] == first.deadline_s[Phase.CONSTRUCT] == 60
    assert spec.agents[0].restarts_max == 10


def test_an_image_for_each_module_that_is_not_ours(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    images = {image.name: image.modules for image in spec.images}
    assert images == {
        BASE_IMAGE: BASE_MODULES,
        "my_envs.robots+my_wrappers": (*BASE_MODULES, "my_envs.robots", "my_wrappers"),
        "my_policies": (*BASE_MODULES, "my_policies"),
        "my_rewards": (*BASE_MODULES, "my_rewards"),
    }
    assert {runner.image for runner in spec.agents[0].runners} == {BASE_IMAGE}


ENV_IMAGES = """
run: {name: r, steps: 100}
agents:
  - {name: a, env: {id: HalfCheetah-v5}, policy: &p {entry: "dsec.policies:RandomPolicy"}}
  - {name: b, env: {id: Hopper-v5, wrappers: [{entry: TimeLimit}]}, policy: *p}
  - {name: c, env: {id: "ale_py:ALE/Pong-v5", wrappers: [{entry: AtariPreprocessing}]}, policy: *p}
  - {name: d, env: {id: "ale_py:ALE/Breakout-v5"}, policy: *p}
  - {name: e, env: {id: "ale_py:ALE/Boxing-v5"}, policy: *p}
  - {name: f, env: {id: LunarLander-v3}, policy: *p}
  - {name: g, env: {id: FrozenLake-v1}, policy: *p}
"""


def test_what_an_environment_imports_when_it_is_made_is_warm_in_an_image_apart(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, ENV_IMAGES)
    own = {image.name: image.modules[len(BASE_MODULES) :] for image in spec.images}
    warm = {image.name: image.warm for image in spec.images}
    assert list(own) == [
        BASE_IMAGE,
        "gymnasium.envs.mujoco",
        "ale_py+cv2",
        "ale_py",
        "gymnasium.envs.box2d",
    ]
    assert own["gymnasium.envs.mujoco"] == () == own["gymnasium.envs.box2d"], "may be missing"
    assert own["ale_py"] == own["ale_py+cv2"] == ("ale_py",)
    assert warm["gymnasium.envs.mujoco"] == ("HalfCheetah-v5", "Hopper-v5")
    assert warm["ale_py+cv2"] == ("ALE/Pong-v5", "cv2")
    assert warm["ale_py"] == ("ALE/Breakout-v5", "ALE/Boxing-v5")
    assert warm[BASE_IMAGE] == ()
    assert {agent.runners[0].image for agent in spec.agents[-1:]} == {BASE_IMAGE}


def test_a_module_leads_back_to_the_key_that_named_it(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    config = load(path).config
    assert where_module(config, "my_envs.robots") == ("agents", 1, "env", "id")
    assert where_module(config, "my_wrappers") == ("agents", 1, "env", "wrappers", 1, "entry")
    assert where_module(config, "my_rewards") == ("agents", 1, "reward", "entry")
    assert where_module(config, "numpy") is None


def test_a_dry_run_takes_one_agent_of_each_entry(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, dry=True)
    assert spec.dry
    assert [agent.name for agent in spec.agents] == ["a-000", "b"]


def test_keywords_too_large_to_travel_are_refused_in_their_place(tmp_path: Path) -> None:
    text = CONFIG.replace("x: 1", "x: '" + "y" * 140_000 + "'")
    with pytest.raises(ConfigError, match=r"c\.yaml:4:5: agents\[0\]: too large: Start frame"):
        spec_of(tmp_path, text)


@given(
    total=st.integers(1, 10**9),
    agents=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 64)), min_size=1, max_size=5),
    kind=st.sampled_from(["steps", "episodes"]),
)
def test_quotas_share_out_everything(total: int, agents: list[tuple[int, int]], kind: str) -> None:
    from dsec.config.models import Config

    total += sum(count for count, _ in agents)
    config = Config.model_validate(
        {
            "run": {kind: total},
            "agents": [
                {
                    "name": f"n{i}",
                    "count": count,
                    "env": {"id": "X", "num_envs": width},
                    "policy": {"entry": "a:b"},
                }
                for i, (count, width) in enumerate(agents)
            ],
        }
    )
    shares = quotas(config)
    widths = [width for count, width in agents for _ in range(count)]
    assert len(shares) == len(widths)
    if kind == "episodes":
        assert sum(share.episodes for share in shares) == total
        return
    assert total <= sum(share.steps for share in shares) < total + sum(widths)
    for share, width in zip(shares, widths, strict=True):
        assert share.steps % width == 0
        assert abs(share.steps - total / len(widths)) < 1 + width


def test_the_supervisor_never_imports_what_runners_need() -> None:
    code = (
        "import sys, dsec.cli.kernel, dsec.cli.view, dsec.cli.render, dsec.engine, dsec.config\n"
        "import dsec.kernel.supervisor, dsec.engine.guardian, uvloop\n"
        "heavy = {'numpy', 'gymnasium', 'torch', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
