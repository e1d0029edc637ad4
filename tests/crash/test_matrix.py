"""The matrix of faults on real runs: each cell of matrix.py is an agent of its own, in one of a few
runs that it shares with others, and is compared with a run in which nothing happens.

CI runs one fault of each kind in each phase; `-m soak` runs all.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.recording import Recording
from dsec.testing import leaks
from tests import watchdog
from tests.crash import runs
from tests.crash.matrix import AT, CELLS, FAULTS, QUOTA, Cell, Outcome, agent

AGENTS_MAX = 42
pytestmark = pytest.mark.slow


@dataclass
class Batch:
    """A run with faults, its plain twin, and what was left of the two."""

    hit: runs.Finished
    plain: runs.Finished
    evidence: Path
    left: list[str] = field(default_factory=list)

    def recorded(self, name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """An agent's recording, and its plain twin's."""
        return rows(self.hit, name), rows(self.plain, name)


def rows(run: runs.Finished, name: str) -> list[np.ndarray]:
    with Recording.open(run.run_dir) as recording:
        data = recording.transitions(name, env=0)
        return [data.seq, data.obs, data.action, data.reward, data.end]


def temporary(folder: Path) -> list[str]:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return [n for n in names if n.endswith((".tmp", ".part", "~")) or "/." in f"/{n}"]


def run_one(folder: Path, agents: Iterable[dict[str, Any]], evidence: Path) -> runs.Finished:
    """Run these agents, and a steady one beside them."""
    evidence.mkdir(parents=True)
    everyone = [*agents, runs.walker("steady")]
    config = runs.write_config(folder / "config.yaml", everyone, steps=QUOTA * len(everyone))
    return runs.run(config, folder, timeout_s=300)


def run_both(folder: Path, cells: list[Cell]) -> Batch:
    """The two runs of some cells, and what they leave."""
    before, mark = leaks.shm_entries(), uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(leaks.MARK, mark)
        done = []
        for twin in ("hit", "plain"):
            evidence = folder / twin / "evidence"
            agents = [agent(cell, str(evidence), plain=twin == "plain") for cell in cells]
            done.append(run_one(folder / twin, agents, evidence))
    batch = Batch(*done, folder / "hit" / "evidence")
    with pytest.MonkeyPatch.context():
        try:
            watchdog.until(lambda: not leaks.marked(mark), 10, "the end of every process")
        except watchdog.HungError:
            batch.left += [leaks.process_line(pid) for pid in leaks.marked(mark)]
            leaks.kill_and_reap(leaks.marked(mark))
    batch.left += leaks.left_shared(before)
    batch.left += [name for run in done for name in temporary(run.run_dir)]
    return batch


def batches(ci: bool) -> dict[str, list[Cell]]:
    """Cells by the run that they share."""
    found: dict[str, list[Cell]] = {}
    for cell in CELLS.values():
        if cell.ci is not ci or cell.outcome is Outcome.REFUSED:
            continue
        key = cell.role if not ci else "ci"
        number = 0
        while len(found.setdefault(f"{key}-{number}", [])) >= AGENTS_MAX:
            number += 1
        found[f"{key}-{number}"].append(cell)
    return found


BATCHES = batches(ci=True) | batches(ci=False)
BATCH_OF = {cell.name: name for name, cells in BATCHES.items() for cell in cells}


MUTE = "closed its control channel and lived on"
CORRUPT = (FAULTS["scribble"].cause, "a progress word names phase 165")
"""Who first sees what a stray loop wrote: a reader of the ring, or the kernel looking for hangs."""


@pytest.fixture(scope="module")
def batch_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a batch when the first of its cells is asked for."""

    @functools.cache
    def run(name: str) -> Batch:
        return run_both(tmp_path_factory.mktemp(name), BATCHES[name])

    return run


def deaths_of(run: runs.Finished, name: str) -> list[dict[str, Any]]:
    """Deaths that were the end of the agent."""
    found = [each for each in run.details["deaths_in_order"] if each["agent"] == name]
    return [each for each in found if each["kind"] != "peer"]


def failovers_of(run: runs.Finished, name: str) -> list[dict[str, Any]]:
    return [each for each in run.details["failovers_in_order"] if each["agent"] == name]


def same(found: list[np.ndarray], expected: list[np.ndarray], count: int) -> None:
    """Both begin with the same `count` transitions, to the bit."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one[:count].tobytes() == other[:count].tobytes()


def check(cell: Cell, batch: Batch) -> None:
    """The whole of what is expected of a cell."""
    seen = batch.evidence / cell.name
    assert seen.exists(), "the fault did not happen"
    run, agents = batch.hit, batch.hit.details["agents_by_name"]
    if cell.phase == "construct" and cell.outcome is Outcome.QUARANTINED:
        found = [part[:0] for part in rows(batch.plain, cell.name)]  # it is not in the recording
        expected = rows(batch.plain, cell.name)
    else:
        found, expected = batch.recorded(cell.name)
    failovers, deaths = failovers_of(run, cell.name), deaths_of(run, cell.name)
    corrupt = FAULTS[cell.fault].kind == "corrupt"
    lost = agents[cell.name]["lost"]
    assert lost == 0 or corrupt
    assert len(expected[0]) == QUOTA
    assert np.all(np.diff(found[0]) >= 1), "doubled or reordered"
    if cell.outcome is Outcome.QUARANTINED:
        assert agents[cell.name]["state"] == "quarantined"
        assert len(found[0]) == agents[cell.name]["steps"]
        if corrupt:  # readers may be far behind, and say it as well
            assert len(found[0]) + lost >= AT - 1, "what nobody had taken is counted"
            assert any(say in death["cause"] for death in deaths for say in CORRUPT), deaths
            found[4][-1:] = expected[4][len(found[4]) - 1 : len(found[4])]  # an end by `infra`
        else:
            [death] = deaths
            assert death["cause"].startswith(cell.cause), death["cause"]
            assert str(death["pid"]) == seen.read_text()
            assert len(found[0]) >= (0 if cell.phase == "construct" else AT - 1)
        return same(found, expected, len(found[0]))
    assert agents[cell.name]["state"] == "done", [each["cause"] for each in deaths]
    if cell.outcome is Outcome.CLOSED:
        assert [str(death["pid"]) for death in deaths] == [seen.read_text()]
        assert deaths[0]["cause"].startswith(cell.cause)
    else:
        assert deaths == []
    if cell.phase == "recycled":
        assert agents[cell.name]["recycled"] >= 3, "and it stepped aside meanwhile"
    if cell.outcome in (Outcome.UNHARMED, Outcome.CLOSED):
        assert failovers == [], [each["death"]["cause"] for each in failovers]
        assert len(found[0]) == QUOTA
        return same(found, expected, QUOTA)
    causes = [each["death"]["cause"] for each in failovers]
    causes += [tried for each in failovers for tried in each["tried"]]
    ended = next((each for each in failovers if not each["exact"]), None)
    if cell.outcome is Outcome.ENDED:  # the successor lives: it says why it is not exact
        assert ended is not None
        assert f"the restored environment {cell.cause.partition(' in ')[0]}" in str(ended["why"])
    else:
        # Who is mute may be ended before it comes to where it is asked for more.
        said = (cell.cause, MUTE) if FAULTS[cell.fault].kind == "mute" else (cell.cause,)
        assert any(cause.startswith(said) for cause in causes), causes
    assert {each["role"] for each in failovers} == {cell.role}
    exact = [each["exact"] for each in failovers]
    if cell.outcome is Outcome.EXACT:
        assert all(exact), [each["why"] for each in failovers]
        assert len(found[0]) == QUOTA
        return same(found, expected, QUOTA)
    assert len(found[0]) == QUOTA == agents[cell.name]["steps"], "one more was made for it"
    assert ended is not None
    seq = ended["seq"]
    assert seq not in found[0]
    assert found[4][list(found[0]).index(seq - 1)], "the episode ended before it"
    return same(found, expected, seq - 1)


MODULE = """
import os
from tests.crash.matrix_world import ALL, World, leave
from pathlib import Path

leave(Path({path!r}))
ALL[{fault!r}]()
"""
REFUSING = [cell.name for cell in CELLS.values() if cell.outcome is Outcome.REFUSED]
IMPORTS = {  # limits are the runners' own, and how long an import may take isn't configurable
    name: fault.cause.partition(" in ")[0].removeprefix("left with ").split(".")[-1]
    for name, fault in FAULTS.items()
    if fault.kind in ("crash", "exit", "exception") and not fault.agent
}


def in_soak(names: Iterable[str], ci: Iterable[str]) -> list[Any]:
    few = set(ci)
    return [pytest.param(n, marks=[] if n in few else [pytest.mark.soak]) for n in names]


def refused(run: runs.Finished, evidence: Path, cause: str) -> None:
    assert evidence.exists(), "the fault did not happen"
    assert run.code == 2, run.stderr
    assert cause.removeprefix("raised ") in run.stderr
    assert temporary(run.run_dir) == []


@pytest.mark.guarantee("G6", "G8")
@pytest.mark.parametrize("name", in_soak(REFUSING, ["raise-env-construct"]))
def test_a_constructor_that_raises_is_the_configurations_fault(name: str, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    run = run_one(tmp_path, [agent(CELLS[name], str(evidence))], evidence)
    refused(run, evidence / name, CELLS[name].cause.split()[1].rpartition(".")[2])


@pytest.mark.guarantee("G6", "G8")
@pytest.mark.parametrize("fault", in_soak(IMPORTS, ["segv", "raise", "exit"]))
def test_a_module_that_can_t_be_imported_is_the_configurations_fault(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = tmp_path / "evidence"
    name = f"matrix_import_{fault}"
    text = MODULE.format(path=str(evidence / fault), fault=fault)
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bad = runs.walker("bad", env={"entry": f"{name}:World"})
    run = run_one(tmp_path, [bad], evidence)
    refused(run, evidence / fault, IMPORTS[fault])


def params() -> list[Any]:
    found = []
    for name in BATCH_OF:
        cell = CELLS[name]
        marks = [] if cell.ci else [pytest.mark.soak]
        if cell.wrong:
            marks.append(pytest.mark.xfail(strict=True, reason=cell.wrong))
        found.append(pytest.param(name, marks=marks))
    return found


@pytest.mark.timeout(400)
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G6", "G7")
@pytest.mark.parametrize("name", params())
def test_cell(name: str, batch_of: Any) -> None:
    check(CELLS[name], batch_of(BATCH_OF[name]))


def batch_params() -> list[Any]:
    return [
        pytest.param(name, marks=[] if name.startswith("ci") else [pytest.mark.soak])
        for name in BATCHES
    ]


@pytest.mark.timeout(400)
@pytest.mark.guarantee("G1", "G8")
@pytest.mark.parametrize("name", batch_params())
def test_others_go_on_and_nothing_is_left(name: str, batch_of: Any) -> None:
    batch = batch_of(name)
    assert batch.left == []
    assert batch.plain.code == 0, batch.plain.stderr
    steady = batch.hit.details["agents_by_name"]["steady"]
    assert (steady["state"], steady["steps"]) == ("done", QUOTA)
    same(*batch.recorded("steady"), QUOTA)
    quarantined = sum(cell.outcome is Outcome.QUARANTINED for cell in BATCHES[name])
    assert batch.hit.code == (1 if quarantined else 0), batch.hit.stderr
