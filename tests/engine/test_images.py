"""Images as a run has them: a module is imported once, and only those wait for it who need it.

Owns two runs of the real command. Which image a runner gets is test_plan.py's.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dsec.recording import Recording
from tests import watchdog
from tests.crash import runs

REGISTERS = """
import gymnasium
gymnasium.register("Heavy-v0", entry_point="heavy_worlds.deep:Heavy")
"""
WORLD = """
import os
import gymnasium
from gymnasium import spaces

IMPORTED_IN = os.getpid()
{at_import}

class Heavy(gymnasium.Env):
    observation_space = action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {{"imported_in": IMPORTED_IN, "runs_in": os.getpid()}}

    def step(self, action):
        return 0, 1.0, False, False, {{}}
"""


def package(folder: Path, at_import: str = "") -> None:
    """A package that registers its environment by name, as most do, and imports it nowhere."""
    (folder / "heavy_worlds").mkdir()
    (folder / "heavy_worlds/__init__.py").write_text(REGISTERS)
    (folder / "heavy_worlds/deep.py").write_text(WORLD.format(at_import=at_import))


def agent(name: str, env_id: str, **more: object) -> dict[str, object]:
    policy = {"entry": "dsec.policies:RandomPolicy"}
    return {"name": name, "env": {"id": env_id}, "policy": policy, **more}


@pytest.mark.slow
def test_what_an_environment_is_made_of_is_imported_once_for_all_its_runners(
    tmp_path: Path,
) -> None:
    package(tmp_path)
    config = runs.write_config(
        tmp_path / "c.yaml", [agent("heavy", "heavy_worlds:Heavy-v0", count=3)], steps=300
    )
    finished = runs.run(config, tmp_path, cwd=tmp_path)
    assert finished.code == 0, finished.stderr
    with Recording.open(finished.run_dir) as recording:
        told = [recording.transitions(each.name, env=0).reset_infos[0] for each in recording.agents]
    assert len({each["runs_in"] for each in told}) == 3
    assert len({each["imported_in"] for each in told}) == 1
    assert not {each["runs_in"] for each in told} & {each["imported_in"] for each in told}


@pytest.mark.slow
def test_who_does_not_need_a_slow_module_does_not_wait_for_it(tmp_path: Path) -> None:
    """The import ends when the test lets it, so nothing here depends on anybody's speed."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    package(tmp_path, f"open({str(gate)!r}).read()")
    config = runs.write_config(
        tmp_path / "c.yaml",
        [agent("heavy", "heavy_worlds:Heavy-v0", count=2), agent("quick", "CartPole-v1")],
        steps=900,
    )
    out = tmp_path / "run"
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams", cwd=tmp_path) as program:
        program.until(lambda: runs.committed(out).get("quick") == 300, 60, "the quick one's quota")
        assert runs.committed(out) == {"quick": 300}, "the others wait for their module"
        opened: list[int] = []
        program.until(lambda: opens(gate, opened), 60, "the import at its gate")
        os.close(opened[0])
        assert program.wait(60) == 0, program.tails()
    assert runs.check_recording(out) == {"heavy-000": 300, "heavy-001": 300, "quick": 300}


def opens(gate: Path, opened: list[int]) -> bool:
    """Whether somebody reads from the pipe, which is then open in `opened`."""
    try:
        opened.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return bool(opened)


@pytest.mark.slow
def test_what_can_not_be_warmed_is_told_by_the_runner_in_its_words(tmp_path: Path) -> None:
    package(tmp_path, "import no_such_simulator")
    config = runs.write_config(
        tmp_path / "c.yaml", [agent("heavy", "heavy_worlds:Heavy-v0")], steps=10
    )
    finished = runs.run(config, tmp_path, cwd=tmp_path)
    assert finished.code == 2
    assert "agents[0].env.id: can't be constructed" in finished.stderr
    wanted = '"heavy_worlds:Heavy-v0" needs a package that is not installed'
    assert f"{wanted}: No module named 'no_such_simulator'" in finished.stderr
