"""The scripts of docs/integrations run, with few steps, and teach no falsehood."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples/integrations"
PAGES = ROOT / "docs/integrations"


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / f"{name}.py"))


@pytest.mark.slow
def test_sb3() -> None:
    assert script("sb3_ppo")["main"](256, n_envs=2).num_timesteps == 256


@pytest.mark.slow
def test_gymnasium() -> None:
    assert script("gymnasium_loop")["main"](60, num_envs=2) > 5


@pytest.mark.slow
def test_cleanrl() -> None:
    agent = script("cleanrl_loop")["main"](2, num_envs=2, steps=32)
    assert sum(weights.numel() for weights in agent.parameters()) > 500


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TorchRL's own
def test_torchrl() -> None:
    assert script("torchrl_rollout")["main"](128, num_envs=2) == 128


@pytest.mark.slow
@pytest.mark.guarantee("G3")
def test_tools(tmp_path: Path) -> None:
    talk = script("tool_agent")["main"](tmp_path / "trace")
    answers = [each["content"] for each in talk if each["role"] == "tool"]
    assert "SIGSEGV" in answers[1]
    assert answers[2:] == ["2 notes", "tea; without the solver, then"]


def test_every_page_has_its_script_and_every_script_its_page() -> None:
    pages = "".join(page.read_text() for page in PAGES.glob("*.md"))
    named = set(re.findall(r"\.\./\.\./examples/integrations/(\w+)\.py", pages))
    assert named == {path.stem for path in SCRIPTS.glob("*.py")}
