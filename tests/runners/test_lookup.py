"""Names in a config: what they find, and what is said when they find nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from dsec.ipc.frames import EnvSettings, ErrorInfo, Role
from dsec.policies import RandomPolicy
from dsec.runners.construct import make_env
from dsec.runners.failure import UserCodeError, describe
from dsec.runners.lookup import did_you_mean, import_module, resolve
from tests.runners import worlds
from tests.runners.kernel import AgentPlan, Agents, Runner

HERE = worlds.HERE

PLACES = "it must be installed, in the working directory or on PYTHONPATH"


def refusal(call: Any, *args: Any) -> ErrorInfo:
    with pytest.raises(UserCodeError) as caught:
        call(*args)
    return describe(caught.value)


def test_an_entry_finds_its_object() -> None:
    assert resolve("dsec.policies:RandomPolicy", "policy.entry") is RandomPolicy
    assert resolve(f"{HERE}:Line.step", "env.entry") is worlds.Line.step


@pytest.mark.parametrize(
    ("module", "extra"), [("ale_py", "envs"), ("minigrid", "envs"), ("torch", "torch")]
)
def test_who_forgot_an_extra_is_told_which(
    monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what an import finds where it is missing
    error = refusal(import_module, module, "env.id")
    assert error.lookup
    assert error.message.endswith(f'{PLACES}: pip install "dsec-kernel[{extra}]"')


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("dsec.polices:RandomPolicy", 'no module "dsec.polices" (did you mean dsec.policies?)'),
        (
            "dsec.policies:RandomPolcy",
            'module "dsec.policies" has no "RandomPolcy" (did you mean RandomPolicy?)',
        ),
        (
            f"{HERE}:Line.setp",
            f'"{HERE}:Line" has no "setp" (did you mean step?)',
        ),
        (
            "dsec.policies.RandomPolicy",
            (
                '"dsec.policies.RandomPolicy" is not of the form module:name'
                ' (did you mean "dsec.policies:RandomPolicy"?)'
            ),
        ),
        ("RandomPolicy", '"RandomPolicy" is not of the form module:name'),
        (":RandomPolicy", '":RandomPolicy" is not of the form module:name'),
        ("", '"" is not of the form module:name'),
        (
            "worlds/mine.py:make",
            '"worlds/mine.py" is a file; a module is named without .py (did you mean worlds.mine?)',
        ),
        ("../up:make", '"../up" is no module name'),
        (
            "gymnasum:Env",
            f'no module "gymnasum" (did you mean gymnasium?); {PLACES}',
        ),
        ("mine:make", f'no module "mine"; {PLACES}'),
        (
            "qwertyuiop:Env",
            f'no module "qwertyuiop"; {PLACES}',
        ),
        ("json.decodr:X", 'no module "json.decodr" (did you mean json.decoder?)'),
        ("string.templates:X", 'no module "string.templates"'),
    ],
)
def test_a_name_of_nothing_is_explained(entry: str, message: str) -> None:
    info = refusal(resolve, entry, "policy.entry")
    assert info.message == message
    assert (info.where, info.lookup, info.traceback) == ("policy.entry", True, "")


def test_a_module_that_needs_another_is_not_missing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    info = refusal(import_module, "needs_more", "env.entry")
    assert 'module "needs_more" needs surely_not_installed' in info.message
    assert (info.type, info.lookup) == ("ModuleNotFoundError", False)
    assert "needs_more.py" in info.traceback


def test_suggestions_are_near_or_absent() -> None:
    assert did_you_mean("CartPole-v9", ["CartPole-v1", "Acrobot-v1"]) == (
        " (did you mean CartPole-v1?)"
    )
    assert did_you_mean("xyz", ["CartPole-v1"]) == ""
    assert did_you_mean("xyz", []) == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v9", 'no environment "CartPole-v9" (did you mean CartPole-v1?)'),
        ("CartPoel-v1", 'no environment "CartPoel-v1" (did you mean CartPole-v1?)'),
        ("cartpole-v1", 'no environment "cartpole-v1" (did you mean CartPole-v1?)'),
        ("MountainCar-v7", 'no environment "MountainCar-v7" (did you mean MountainCar-v0?)'),
        ("Xxyyzzxx-v0", 'no environment "Xxyyzzxx-v0"'),
        (
            "Nowhere/Xxyyzz-v5",
            (
                'no environment "Nowhere/Xxyyzz-v5"; nothing has registered "Nowhere": name the'
                ' module that does, as in "module:Nowhere/Xxyyzz-v5"'
            ),
        ),
        ("Cart Pole!", '"Cart Pole!" is no valid environment id (did you mean CartPole-v1?)'),
        (
            "no_such_module_of_envs:Thing-v0",
            f'no module "no_such_module_of_envs"; {PLACES}',
        ),
    ],
)
def test_an_unknown_environment_is_explained(name: str, message: str) -> None:
    info = refusal(make_env, EnvSettings(id=name))
    assert info.message == message
    assert (info.where, info.lookup, info.traceback) == ("env.id", True, "")


def test_an_id_may_name_the_module_that_registers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registers_one.py").write_text(
        "import gymnasium\n"
        f"gymnasium.register('Lines/Long-v3', '{HERE}:Line', kwargs={{'length': 99}})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make_env(EnvSettings(id="registers_one:Lines/Long-v3", kwargs={"at": 4}))
    assert isinstance(env.unwrapped, worlds.Line)
    info = refusal(make_env, EnvSettings(id="Lines/Long-v4"))
    assert info.message == 'no environment "Lines/Long-v4" (did you mean Lines/Long-v3?)'
    gymnasium.registry.pop("Lines/Long-v3")


def test_an_uninstalled_package_is_named_with_gymnasiums_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in sys.modules if each.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if it weren't installed
    info = refusal(make_env, EnvSettings(id="LunarLander-v3"))
    assert info.lookup and info.where == "env.id"
    assert info.message.startswith('"LunarLander-v3" can\'t be made: ')
    assert "pip install" in info.message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (f"{HERE}:not_an_env", f'"{HERE}:not_an_env" returned an object, not a gymnasium.Env'),
        (f"{HERE}:A_NUMBER", f'"{HERE}:A_NUMBER" is an int, not a class or function'),
        (f"{HERE}:DuckEnv", "which has step and reset but is not a gymnasium.Env"),
        (f"{HERE}:a_vector", "name the single one and set env.num_envs"),
    ],
)
def test_an_entry_that_makes_no_environment_is_explained(entry: str, message: str) -> None:
    info = refusal(make_env, EnvSettings(entry=entry))
    assert message in info.message
    assert (info.where, info.lookup) == ("env.entry", True)


@pytest.mark.parametrize(
    ("wrapper", "where", "lookup", "message"),
    [
        (
            {"entry": "TimeLimt"},
            "env.wrappers[1].entry",
            True,
            'no wrapper "TimeLimt" in gymnasium.wrappers (did you mean TimeLimit?)',
        ),
        (
            {"entry": "dsec.nothing:Wrapper"},
            "env.wrappers[1].entry",
            True,
            'no module "dsec.nothing"',
        ),
        ({"kwargs": {}}, "env.wrappers[1]", True, "a wrapper needs an entry"),
        ({"entry": "TimeLimit"}, "env.wrappers[1]", False, "max_episode_steps"),
        (
            {"entry": f"{HERE}:checksum"},
            "env.wrappers[1]",
            False,
            "must be a string or a real number",
        ),
        ({"entry": "builtins:str"}, "env.wrappers[1].entry", True, "not a gymnasium.Env"),
    ],
)
def test_a_wrong_wrapper_is_explained(
    wrapper: dict[str, Any], where: str, lookup: bool, message: str
) -> None:
    settings = EnvSettings(
        id="CartPole-v1",
        wrappers=({"entry": "TimeLimit", "kwargs": {"max_episode_steps": 5}}, wrapper),
    )
    info = refusal(make_env, settings)
    assert message in info.message
    assert (info.where, info.lookup) == (where, lookup)


def told(runner: Runner) -> tuple[str, bool, str]:
    error = runner.failure().error
    return error.where, error.lookup, error.message


def test_a_runner_reports_an_unknown_environment(agents: Agents) -> None:
    agent = agents(AgentPlan(env=EnvSettings(id="CartPole-v9")))
    message = 'no environment "CartPole-v9" (did you mean CartPole-v1?)'
    assert told(agent.env) == ("env.id", True, message)
    assert agent.env.wait() == 70


@pytest.mark.parametrize(
    ("entry", "kwargs", "where", "lookup", "message"),
    [
        (f"{HERE}:Actless", {}, "policy.entry", True, "no method act() (did you mean akt?)"),
        (f"{HERE}:A_NUMBER", {}, "policy.entry", True, "is an int, not a class"),
        (f"{HERE}:Cyclin", {}, "policy.entry", True, "did you mean Cycling?"),
        (f"{HERE}:Cycling", {"seed": 3}, "policy.kwargs", True, "seed: the runner gives it"),
        (
            f"{HERE}:NoKeywords",
            {},
            "policy",
            False,
            "(a policy is constructed with observation_space, action_space, num_envs, seed)",
        ),
        (f"{HERE}:Cycling", {"bogus": 1}, "policy", False, "bogus"),
    ],
)
def test_a_policy_runner_reports_what_it_cant_make(
    agents: Agents, entry: str, kwargs: dict[str, Any], where: str, lookup: bool, message: str
) -> None:
    agent = agents(AgentPlan(policy=entry, policy_kwargs=kwargs)).wire()
    told_where, told_lookup, told_message = told(agent.policy)
    assert (told_where, told_lookup) == (where, lookup)
    assert message in told_message
    assert agent.runners[Role.POLICY].wait() == 70


def test_a_reward_without_compute_is_refused(agents: Agents) -> None:
    agent = agents(AgentPlan(reward=f"{HERE}:Cycling")).wire()
    where, lookup, message = told(agent.reward)
    assert (where, lookup) == ("reward.entry", True)
    assert "no method compute()" in message
