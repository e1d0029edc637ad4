"""Every mistake in a configuration has a line of its own, with its place and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.config import agent_names, dump, load
from dsec.config.check import check
from dsec.config.source import parse
from dsec.errors import ConfigError

GOOD = """\
run:
  steps: 1000
agents:
  - name: a
    count: 2
    env:
      id: CartPole-v1
      num_envs: 1
    policy: {entry: "dsec.policies:RandomPolicy"}
"""


def faults(text: str) -> list[str]:
    config, problems = check(parse(text, "c"))
    assert (config is None) == bool(problems)
    return [str(problem) for problem in problems]


def changed(old: str, new: str) -> list[str]:
    assert GOOD.count(old) == 1
    return faults(GOOD.replace(old, new))


def test_the_example_is_sound() -> None:
    assert faults(GOOD) == []


# What is changed in GOOD, to what, and how the fault begins.
MISTAKES = [
    ("steps:", "stepz:", "c:2:3: run.stepz: unknown key (did you mean steps?)"),
    (
        "    count:",
        "    num_envs:",
        "c:5:5: agents[0].num_envs: unknown key here (did you mean agents[].env.num_envs?)",
    ),
    (
        "count: 2",
        "sync_interval: 5",
        "c:5:5: agents[0].sync_interval: there are no atoms without a pool: add `pool: {size_mb",
    ),
    (
        "count: 2",
        "count: two",
        'c:5:5: agents[0].count: expected a whole number, got text "two"',
    ),
    (
        "count: 2",
        "count: '2'",
        'c:5:5: agents[0].count: expected a whole number, got text "2" (remove the quotes)',
    ),
    ("count: 2", "count: true", "c:5:5: agents[0].count: expected a whole number, got true"),
    ("count: 2", "count: 2.5", "c:5:5: agents[0].count: expected a whole number, got 2.5"),
    ("count: 2", "count: .nan", "c:5:5: agents[0].count: expected a whole number, got .nan"),
    ("count: 2", "count: 0", "c:5:5: agents[0].count: must be at least 1, got 0"),
    ("count: 2", "count: -3", "c:5:5: agents[0].count: must be at least 1, got -3"),
    ("count: 2", "count: 1_000_000", "c:5:5: agents[0].count: must be at most 100,000"),
    ("count: 2", "count: [2]", "c:5:5: agents[0].count: expected a whole number, got a list"),
    (
        "count: 2",
        "deadlines: {step_s: 0}",
        "c:5:17: agents[0].deadlines.step_s: must be more than 0, got 0",
    ),
    (
        "count: 2",
        "deadlines: {step_s: .inf}",
        "c:5:17: agents[0].deadlines.step_s: expected a finite number, got .inf",
    ),
    (
        "count: 2",
        "deadlines: [3]",
        "c:5:5: agents[0].deadlines: expected a mapping with construct_s, reset_s",
    ),
    (
        "count: 2",
        "limits: {network: no}",
        'c:5:14: agents[0].limits.network: expected true or false, got text "no" (write false)',
    ),
    (
        "count: 2",
        "isolation: {profile: default, write: [/data]}",
        "c:5:35: agents[0].isolation.write: has an effect only with profile: strict",
    ),
    (
        "count: 2",
        "isolation: {profile: strict, read: [data]}",
        "c:5:41: agents[0].isolation.read[0]: expected a path that begins with /, for a run may ",
    ),
    (
        "count: 2",
        "isolation: {profile: strict, environment: [A=b]}",
        "c:5:48: agents[0].isolation.environment[0]: expected the name of an environment variable",
    ),
    (
        "count: 2",
        "failover: {standby: warm}",
        "c:5:16: agents[0].failover.standby: ",
    ),
    (
        "count: 2",
        "failover: {cached_steps: 3}",
        "c:5:16: agents[0].failover.cached_steps: 3 has no effect in a run: ",
    ),
    (
        "count: 2",
        "ipc: {ring_slots: 1}",
        "c:5:11: agents[0].ipc.ring_slots: must be at least 4",
    ),
    ("name: a", "name: 7", "c:4:5: agents[0].name: expected text, got 7 (put it in quotes)"),
    ("name: a", "name: ''", "c:4:5: agents[0].name: a name has 1 to 200 characters, not 0"),
    (
        "name: a",
        f"name: {'x' * 201}",
        "c:4:5: agents[0].name: a name has 1 to 200 characters, not 201",
    ),
    ("name: a", "name: ' a'", "c:4:5: agents[0].name: a name neither begins nor ends with a space"),
    (
        "name: a",
        'name: "a\\nb"',
        "c:4:5: agents[0].name: a name has no control characters; character 2 is U+000A",
    ),
    ("  steps: 1000", "  steps: 1000\n  name: ../x", "c:3:3: run.name: a name has 1 to 64 letters"),
    ("name: a", "nam: a", "c:4:5: agents[0].nam: unknown key (did you mean name?)"),
    ("steps: 1000", "steps: 1", "c:2:3: run.steps: 1 steps can't be shared out among 2 agents"),
    (
        "steps: 1000",
        "steps: BIG",
        "c:2:3: run.steps: must be at most 1,000,000,000,000,000, got a number of more than 20",
    ),
    ("steps: 1000", "steps:", "c:2:3: run.steps: missing: give steps or episodes"),
    ("steps: 1000", "name: x", "c:1:1: run.steps: missing: give steps or episodes"),
    (
        "id: CartPole-v1",
        "entry: gymnasium.make",
        'c:7:7: agents[0].env.entry: expected "module:name" (did you mean gymnasium:make?),',
    ),
    (
        "id: CartPole-v1",
        "entry: envs/my.py",
        'c:7:7: agents[0].env.entry: expected "module:name" (a module as in an import',
    ),
    (
        "id: CartPole-v1",
        "kwargs: {}",
        "c:6:5: agents[0].env.id: missing: give id (CartPole-v1) or entry",
    ),
    ("id: CartPole-v1", "id: Cart Pole", "c:7:7: agents[0].env.id: expected the id of a"),
    ("num_envs: 1", "entry: 'a:b'", "c:8:7: agents[0].env.entry: give either id or entry"),
    (
        "num_envs: 1",
        "kwargs: {x: [99999999999999999999]}",
        "c:8:20: agents[0].env.kwargs.x[0]: whole numbers here have at most 64 bits",
    ),
    (
        "num_envs: 1",
        "kwargs: {3: x}",
        "c:8:16: agents[0].env.kwargs[3]: a keyword has to be text, not a number",
    ),
    (
        "num_envs: 1",
        "wrappers: {entry: 'a:b'}",
        "c:8:7: agents[0].env.wrappers: expected a list (lines that begin with `- `), got a",
    ),
    (
        "num_envs: 1",
        "wrappers: [{}]",
        "c:8:18: agents[0].env.wrappers[0].entry: missing; for example entry:",
    ),
    (
        '{entry: "dsec.policies:RandomPolicy"}',
        "{}",
        "c:9:5: agents[0].policy.entry: missing; for example entry: dsec.policies:RandomPolicy",
    ),
]


@pytest.mark.parametrize(("old", "new", "fault"), MISTAKES)
def test_one_mistake_gives_one_line(old: str, new: str, fault: str) -> None:
    found = changed(old, new.replace("BIG", "9" * 400))
    assert [line for line in found if line.startswith(fault)], found
    alone = new not in ("nam: a", "stepz:")  # these two take a needed key away as well
    assert len(found) == 1 + (not alone), found


def test_all_mistakes_come_at_once_and_in_the_order_of_the_file() -> None:
    found = faults(
        "run: {seed: -1}\nagents: [{name: a}, {name: a}, 7]\nrecord: {format: x}\nx: 1\n"
    )
    places = [line.split(":")[1] + ":" + line.split(":")[2] for line in found]
    assert len(found) == 10
    assert places == sorted(places, key=lambda place: tuple(map(int, place.split(":"))))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "c: empty; a run needs at least run:"),
        ("# only a comment\n", "c: empty; a run needs at least run:"),
        ("- 1\n", "c:1:1: expected keys run, agents and so on, got a list"),
        ("just text", 'c:1:1: expected keys run, agents and so on, got text "just text"'),
        ("run: {steps: 1}\n", "c:1:1: agents: missing"),
        ("run: {steps: 1}\nagents: []\n", "c:2:1: agents: empty; at least one is needed"),
        ("run: {steps: 1}\nagents: {a: 1}\n", "c:2:1: agents: expected a list"),
        ("agents: [{}]\n", "c:1:1: run: missing; for example run: {name: cartpole"),
    ],
)
def test_documents_without_the_main_parts(text: str, fault: str) -> None:
    assert any(line.startswith(fault) for line in faults(text)), faults(text)


def test_steps_and_episodes_exclude_each_other() -> None:
    assert changed("steps: 1000", "steps: 1000\n  episodes: 5") == [
        "c:3:3: run.episodes: give either steps or episodes, not both"
    ]


def agents(*entries: str) -> list[str]:
    rest = "env: {id: CartPole-v1}, policy: {entry: 'a:B'}"
    lines = "".join(f"  - {{{entry}, {rest}}}\n" for entry in entries)
    return faults(f"run: {{steps: 1_000_000}}\nagents:\n{lines}")


def test_names_are_unique_after_expansion() -> None:
    assert agents("name: a, count: 2", "name: b") == []
    assert agents("name: a", "name: a") == [
        'c:4:6: agents[1].name: "a" is already the name of agents[0]'
    ]
    assert agents("name: a, count: 2", "name: a-001") == [
        'c:4:6: agents[1].name: an agent "a-001" comes from agents[0] already (agents[0].count)'
    ]
    assert agents("name: a, count: 1", "name: a-001") == []
    assert agents("name: a, count: 60_000", "name: b, count: 60_000") == [
        "c:2:1: agents: 120,000 agents in all; at most 100,000"
    ]


def test_raising_the_count_renames_nobody() -> None:
    assert agent_names("a", None) == ["a"]
    assert agent_names("a", 1) == ["a-000"]
    assert agent_names("a", 1001)[:1000] == agent_names("a", 1000)
    assert agent_names("a", 1001)[-1] == "a-1000"


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    config, _ = check(parse(GOOD.replace("steps: 1000", "steps: 1e6"), "c"))
    assert config is not None
    assert config.run.steps == 1_000_000


def test_blank_keys_are_as_if_left_out() -> None:
    assert changed("num_envs: 1", "kwargs:\n      wrappers:") == []
    assert changed("count: 2", "deadlines:") == []
    assert changed("num_envs: 1", "kwarg:") == [
        "c:8:7: agents[0].env.kwarg: unknown key (did you mean kwargs?)"
    ]


def test_null_inside_keywords_is_kept() -> None:
    config, _ = check(parse(GOOD.replace("num_envs: 1", "kwargs: {a: null}"), "c"))
    assert config is not None
    assert config.agents[0].env.kwargs == {"a": None}


def test_keys_with_x_are_a_place_for_anchors() -> None:
    text = "x-common: &common {count: 2, snapshot_interval: 7}\n" + GOOD.replace(
        "count: 2", "<<: *common"
    )
    config, problems = check(parse(text, "c"))
    assert problems == []
    assert config is not None
    assert (config.agents[0].count, config.agents[0].snapshot_interval) == (2, 7)


def test_a_snapshot_lies_at_a_boundary() -> None:
    text = GOOD.replace("count: 2", "sync_interval: 7") + "pool: {}\n"
    config, [problem] = check(parse(text, "c"))
    assert config is None
    assert str(problem).startswith(
        "c:5:5: agents[0].sync_interval: a snapshot lies at each 50 steps (snapshot_interval), "
        "which is no multiple of 7"
    )


def test_values_of_keywords_are_never_quoted() -> None:
    for line in changed("num_envs: 1", "kwargs: {token: 31337133713371337133713371337}"):
        assert "31337" not in line


def test_the_resolved_configuration_loads_again_as_the_same(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD.replace("num_envs: 1", "kwargs: {a: [1, .inf, é, 'no', '1e3', null]}"))
    first = load(path).config
    (tmp_path / "d.yaml").write_text(dump(first))
    assert load(tmp_path / "d.yaml").config == first


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["parquet", "a:b", "CartPole-v1", "1e5", "none", "no"]),
)
KEYS = """
    run agents record name seed steps episodes count env id entry kwargs wrappers num_envs policy
    reward failover standby deadlines step_s limits network ipc ring_slots pool chaos x-a restarts
    max objectives format
"""
keys = st.sampled_from(KEYS.split())
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys | st.integers(), inner, max_size=6)
    ),
    max_leaves=30,
)


@given(trees)
def test_no_tree_of_values_breaks_the_checks(tree: object) -> None:
    import yaml

    text = yaml.safe_dump(tree, allow_unicode=True)
    try:
        config, problems = check(parse(text, "c"))
    except ConfigError as error:
        problems = error.diagnostics
        config = None
    assert (config is None) == bool(problems)
    for problem in problems:
        assert problem.line <= text.count("\n") + 1
        assert "\n" not in str(problem)


@given(st.text(max_size=200) | st.text("{}[]:-&*<>!|#'\"\\\n\t ,?ab1.%@`", max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        _, problems = check(parse(text, "c"))
    except ConfigError as error:
        problems = error.diagnostics
    assert all(problem.file == "c" for problem in problems)
