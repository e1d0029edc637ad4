"""The documents say what the code does: what is generated is fresh, what is pasted is true.

Owns only the comparison; docs/generate.py owns the generated text.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dsec.config import load
from dsec.engine.summary import Exit
from tests.crash import runs

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_configuration_is_fresh(generate: ModuleType) -> None:
    assert (DOCS / "CONFIG.md").read_text() == generate.config_page(), "python docs/generate.py"


def test_the_diagrams_of_the_lifecycles_are_fresh(generate: ModuleType) -> None:
    page = (DOCS / "ARCHITECTURE.md").read_text()
    assert page == generate.architecture_page(page), "python docs/generate.py"


def test_a_stale_diagram_is_noticed(generate: ModuleType) -> None:
    page = (DOCS / "ARCHITECTURE.md").read_text()
    stale = page.replace("DRAIN", "DRAINED")
    assert stale != page
    assert generate.architecture_page(stale) != stale


def test_every_key_of_the_configuration_is_explained(generate: ModuleType) -> None:
    bare = [
        line
        for line in generate.config_page().splitlines()
        if line.startswith("| `") and not line.rstrip(" |").split(" | ")[-1].strip()
    ]
    assert not bare


def test_the_readme_lists_every_exit_code() -> None:
    table = re.findall(r"^\| (\d+) \| ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert table == [str(int(code)) for code in Exit]


def test_the_example_in_the_readme_is_a_valid_configuration(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "config.yaml"
    path.write_text(block)
    assert load(path, ()).config.agents


@pytest.mark.slow
def test_the_guide_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (DOCS / "GUIDE.md").read_text()
    agent, sandbox, vector, reading = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "mine.py").write_text(agent)
    (tmp_path / "mine.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    finished = runs.run(tmp_path / "mine.yaml", tmp_path, cwd=tmp_path)
    assert finished.code == 0, finished.stderr
    assert finished.summary["metrics"]["walker-001"] == {"learned": 2000}
    (tmp_path / "runs").mkdir()
    finished.run_dir.rename(tmp_path / "runs/mine")
    for script in (reading, sandbox, vector):
        exec(compile(script, "GUIDE.md", "exec"), {})
    for name in re.findall(r"^\| `([^`<]+)` \|", guide.split("## The run directory")[1], re.M):
        dies_or_lasts = ("remainder.dsj", "journal.dsj", "kept.dsj", ".atom")
        assert name.endswith(dies_or_lasts) or (tmp_path / "runs/mine" / name).exists(), name
