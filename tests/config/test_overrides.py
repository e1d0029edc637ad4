"""`--set path=value` obeys the rules of the file and is blamed under its own name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.config import Config, Override, load, parse_override
from dsec.errors import ConfigError

GOOD = """\
run: {steps: 1000}
agents:
  - {name: a, env: {id: CartPole-v1}, policy: {entry: "a:B"}}
  - {name: b, env: {id: CartPole-v1}, policy: {entry: "a:B"}}
"""


def with_sets(tmp_path: Path, *texts: str, base: str = GOOD) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text(base)
    return load(path, [parse_override(text) for text in texts]).config


def faults(tmp_path: Path, *texts: str, base: str = GOOD) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        with_sets(tmp_path, *texts, base=base)
    return [str(problem) for problem in caught.value.diagnostics]


def test_values_are_yaml(tmp_path: Path) -> None:
    config = with_sets(
        tmp_path,
        "run.steps=5_000",
        "agents[1].env.kwargs={a: [1, 2]}",
        "agents[1].env.kwargs.a[1]=x=y",
        "agents[0].deadlines.step_s=0.5",
        "record.format=none",
        "run.name='7'",
    )
    assert config.run.steps == 5_000
    assert config.run.name == "7"
    assert config.agents[1].env.kwargs == {"a": [1, "x=y"]}
    assert config.agents[0].deadlines.step_s == 0.5
    assert config.record.format == "none"


def test_null_takes_a_value_away(tmp_path: Path) -> None:
    config = with_sets(tmp_path, "run.steps=null", "run.episodes=10", "agents[0].limits.memory_mb=")
    assert (config.run.steps, config.run.episodes) == (None, 10)
    with_sets(tmp_path, "record.format=null", "agents[0].ipc=null")


def test_mistakes_name_set_and_the_path(tmp_path: Path) -> None:
    assert faults(tmp_path, "agents[0].env.idd=x") == [
        "--set: agents[0].env.idd: unknown key (did you mean id?)"
    ]
    assert faults(tmp_path, "run.steps=many") == [
        '--set: run.steps: expected a whole number, got text "many"'
    ]
    assert faults(tmp_path, "agents[0].env={id: 3}") == [
        "--set: agents[0].env.id: expected text, got 3 (put it in quotes)"
    ]


def test_an_index_may_stand_after_a_point() -> None:
    for text in ("agents[0].env.wrappers[12].entry=x", "agents.0.env.wrappers.12.entry=x"):
        assert parse_override(text).path == ("agents", 0, "env", "wrappers", 12, "entry")
    with pytest.raises(ConfigError, match="is no path"):
        parse_override("agents.0x.name=a")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("run.steps", '--set: expected path=value such as run.steps=1000, got "run.steps"'),
        ("=3", '--set: "" is no path such as run.steps'),
        ("a..b=3", '--set: "a..b" is no path'),
        ("a[x]=3", '--set: "a[x]" is no path'),
        ("[0].a=3", '--set: "[0].a" is no path'),
        ("run.steps=[1", "--set: run.steps: YAML: expected ',' or ']'"),
        ("run.steps=!x 1", '--set: run.steps: YAML tag "!x" is not allowed here'),
    ],
)
def test_what_is_no_override(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert str(caught.value).startswith(fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("agents[2].name=x", "--set: agents[2]: no such entry; agents has indexes 0 to 1"),
        (
            "agents.name=x",
            "--set: agents.name: agents is a list and takes an index, as in agents[0]",
        ),
        ("run[0]=x", "--set: run[0]: run is a mapping and takes names, not an index"),
        ("run.steps.x=1", "--set: run.steps.x: run.steps is a plain value, with nothing inside it"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path: Path, text: str, fault: str) -> None:
    assert faults(tmp_path, text) == [fault]


def test_an_empty_file_can_be_filled(tmp_path: Path) -> None:
    found = faults(tmp_path, "run.steps=10", base="")
    assert len(found) == 1
    assert "agents: missing" in found[0]


def test_a_file_that_is_no_mapping_is_the_only_mistake(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, "run.steps=10", base="- a")
    assert "expected keys run, agents and so on, got a list" in found


def test_options_are_overrides_under_their_own_name(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    with pytest.raises(ConfigError) as caught:
        load(path, [Override(("run", "steps"), 1, "--steps")])
    assert str(caught.value) == "--steps: run.steps: 1 steps can't be shared out among 2 agents"
