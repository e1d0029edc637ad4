"""`dsec-kernel verify` and `replay` on real runs: what is said, and with which exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dsec.engine import replay
from dsec.errors import AgentsDiffer, JournalError, LengthsDiffer, RecordingAbsent
from dsec.ipc.frames import EnvSettings
from dsec.recording.verify import verify
from dsec.runners import convert
from dsec.seeds import agent_seed
from tests import watchdog
from tests.runners.atoms import lived, stored
from tests.runners.kernel import AgentPlan

pytestmark = pytest.mark.slow

COMMAND: list[str | Path] = [sys.executable, "-m", "dsec.cli.kernel"]
DRIFT = "tests.recording.worlds:Drift"
World = tuple[Path, Path]


def call(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    done = watchdog.run([*COMMAND, *words], folder / "streams", timeout_s=90)
    assert "Traceback" not in done.stdout
    return done


def told(folder: Path, *words: str | Path) -> tuple[int, dict[str, Any]]:
    done = call(folder, *words, "--json")
    return done.returncode, json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two agents in two runs that do the same; the folder, and the file of orders."""
    folder = tmp_path_factory.mktemp("world")
    order = folder / "order"
    order.write_text("")
    env = {"entry": DRIFT, "kwargs": {"order": str(order)}, "num_envs": 2}
    document = {
        "run": {"name": "t", "seed": 7, "steps": 240},
        "agents": [
            {
                "name": "walk",
                "count": 2,
                "env": env,
                "policy": {"entry": "dsec.policies:RandomPolicy"},
                "deadlines": {"step_s": 2},
            }
        ],
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    for name in ("a", "b"):
        done = call(folder, "run", config, "--out", folder / name)
        assert done.returncode == 0, done.stderr
    order.write_text("drift")
    done = call(folder, "run", config, "--out", folder / "drifting")
    assert done.returncode == 0, done.stderr
    (folder / "none").mkdir()
    text = yaml.safe_dump(document | {"record": {"format": "none"}})
    (folder / "none" / "config.yaml").write_text(text)
    return folder, order


@pytest.mark.guarantee("G12")
def test_two_runs_of_one_seed_are_identical(world: World) -> None:
    folder, _ = world
    done = call(folder, "verify", folder / "a", folder / "b")
    assert (done.returncode, done.stdout) == (0, "identical: 2 agents, 120 steps\n")
    verdict = verify(folder / "a", folder / "b", quick=True)
    assert verdict.identical and verdict.quick and verdict.seeds == (7, 7)
    agents = json.loads((folder / "a" / "summary.json").read_text())["agents_by_name"]
    chains = {each.agent: each.chain for each in verdict.agents}
    assert chains == {name: each["chain"] for name, each in agents.items()}


@pytest.mark.guarantee("G12")
def test_what_differs_first_at_step_7_is_caught_at_step_7(world: World) -> None:
    folder, _ = world
    code, said = told(folder, "verify", folder / "a", folder / "drifting")
    assert code == 1 and not said["identical"]
    for each in said["agents"].values():
        assert each["step"] == 7
        first, second = each["differences"]
        assert (first["what"], first["where"], first["others"]) == ("observation", "[1]", 0)
        assert (first["env"], second["env"]) == (0, 1)
        assert first["b"] > first["a"]
    quick = verify(folder / "a", folder / "drifting", quick=True)
    assert [each.step for each in quick.agents] == [7, 7]
    done = call(folder, "verify", folder / "a", folder / "drifting", "--agent", "walk-001")
    assert done.returncode == 1
    assert "walk-001 differs first at step 7: environment 0, observation[1]: " in done.stdout


@pytest.mark.parametrize(
    ("other", "agent", "kind", "words"),
    [
        ("none", None, RecordingAbsent, "told to keep none"),
        ("gone", None, RecordingAbsent, "no such folder"),
        (".", None, RecordingAbsent, "the newest is"),
        ("b", "wolk", AgentsDiffer, "there are walk-000, walk-001"),
    ],
)
def test_what_cannot_be_compared_is_said_by_name(
    world: World, other: str, agent: str | None, kind: type[Exception], words: str
) -> None:
    folder, _ = world
    with pytest.raises(kind, match=words):
        verify(folder / "a", folder / other, agent)


def test_what_cannot_be_compared_ends_with_code_2(world: World) -> None:
    folder, _ = world
    code, said = told(folder, "verify", folder / "a", folder / "none")
    assert (code, said["identical"], said["error"]["kind"]) == (2, None, "RecordingAbsent")
    code, said = told(folder, "replay", folder / "none", "--agent", "walk-000")
    assert (code, said["outcome"], said["error"]["kind"]) == (2, None, "RecordingAbsent")


@pytest.mark.guarantee("G12")
def test_a_replay_does_it_again(world: World) -> None:
    folder, order = world
    order.write_text("")
    done = call(folder, "replay", folder / "a", "--agent", "walk-001")
    assert (done.returncode, done.stdout) == (0, "identical: walk-001, 60 steps\n"), done.stderr
    found = replay(folder / "a", "walk-000", 50)
    assert (found.outcome, found.begin, found.step) == ("identical", 0, 60)


@pytest.mark.guarantee("G12")
def test_a_replay_that_differs_first_at_step_7_is_caught_at_step_7(world: World) -> None:
    folder, order = world
    order.write_text("drift")
    code, said = told(folder, "replay", folder / "a", "--agent", "walk-001")
    assert (code, said["outcome"], said["step"]) == (1, "differs", 7)
    assert [each["what"] for each in said["differences"]] == ["observation", "observation"]
    assert said["differences"][0]["where"] == "[1]"
    found = replay(folder / "a", "walk-001", 20)
    assert found.outcome == "identical", "a new episode began at step 20"
    found = replay(folder / "drifting", "walk-001")
    assert found.outcome == "identical", "it was recorded so"


@pytest.mark.guarantee("G12")
def test_a_replay_begins_at_the_latest_atom_before_the_step(world: World, tmp_path: Path) -> None:
    """So it never comes to step 7, where it would drift."""
    folder, order = world
    run = tmp_path / "run"
    shutil.copytree(folder / "a", run)
    env = EnvSettings(entry=DRIFT, kwargs={"order": str(order)})
    plan = AgentPlan(name="walk-001", env=env, seed=agent_seed(7, "walk-001"), num_envs=2)
    order.write_text("")
    for seq in (5, 30, 50):
        atom = lived(plan, seq)
        named = msgspec.structs.replace(atom.manifest, agent="walk-001")
        stored(run / "atoms", msgspec.structs.replace(atom, manifest=named))
    order.write_text("drift")
    found = replay(run, "walk-001", 45)
    assert (found.outcome, found.begin, found.step) == ("identical", 30, 60), found
    assert replay(run, "walk-000", 45).begin == 0, "it is another agent's atom"
    for path in (run / "atoms").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert replay(run, "walk-001", 45).begin == 0, "what can't be read is passed over"


@pytest.mark.guarantee("G1", "G6")
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("crash", "was killed by SIGSEGV in step"),
        ("hang", "hung in step for 2 s"),
        ("raise", "ValueError in step: the order was to raise"),
    ],
)
def test_a_replay_outlives_its_environment(world: World, what: str, words: str) -> None:
    folder, order = world
    order.write_text(what)
    found = replay(folder / "a", "walk-000")
    assert (found.outcome, found.step) == ("failed", 7)
    assert words in found.cause


def test_what_cannot_be_replayed_is_said_by_name(world: World) -> None:
    folder, order = world
    with pytest.raises(RecordingAbsent, match=r"no config\.yaml"):
        replay(folder / "gone", "walk-000")
    with pytest.raises(AgentsDiffer, match="there are walk-000, walk-001"):
        replay(folder / "a", "wolk")
    order.write_text("")
    with pytest.raises(LengthsDiffer, match=r"walk-000 has 60 steps .* none from step 60 on"):
        replay(folder / "a", "walk-000", 60)


def test_a_replay_says_what_it_compared(world: World) -> None:
    folder, order = world
    order.write_text("")
    done = call(folder, "replay", folder / "a", "--agent", "walk-000", "--from", "59")
    assert done.stdout == "identical: walk-000, 60 steps, compared from step 59 on\n"


def test_without_pyarrow_tables_say_what_they_need(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = world
    monkeypatch.setattr(convert, "available", lambda: False)
    with pytest.raises(JournalError, match=r"pip install 'dsec-kernel\[record\]'"):
        verify(folder / "a", folder / "b")
