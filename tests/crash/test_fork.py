"""Agents that begin from an atom of another one's run, with random streams of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsec.recording import Recording
from dsec.sml import codec, spill
from tests import watchdog
from tests.crash import runs

pytest.importorskip("pyarrow")

PLAIN = {
    "name": "plain",
    "count": 2,
    "sync_interval": 50,
    "snapshot_interval": 50,
    "env": {"id": "CartPole-v1"},
    "policy": {"entry": "dsec.policies:RandomPolicy"},
}
AGENT = "plain-001"
PARENT_STEPS, STEPS = 6000, 7000


def forked(
    run_dir: Path, out: Path, *options: str, agent: str = AGENT, code: int = 0
) -> runs.Finished:
    argv = [runs.COMMAND, "fork", run_dir, "--agent", agent, "--out", out, "--json", *options]
    result = watchdog.run(argv, out.parent / f"{out.name}-streams", timeout_s=90, cwd=watchdog.ROOT)
    assert result.returncode == code, result.stderr
    summary = runs.summary_of(result.stdout)
    return runs.Finished(result.returncode, summary, result.stdout, result.stderr, out)


def told(run_dir: Path, since: int) -> tuple[list[int], list[int], list[list[float]]]:
    """What an agent did from a step on: step, action and what that led to."""
    with Recording.open(run_dir) as recording:
        past = recording.transitions(AGENT, env=0)
        rows = past.seq >= since
        return past.seq[rows].tolist(), past.action[rows].tolist(), past.next_obs()[rows].tolist()


@pytest.mark.slow
def test_each_fork_has_streams_of_its_own_and_the_same_fork_is_the_same(tmp_path: Path) -> None:
    config = runs.write_config(
        tmp_path / "config.yaml", [PLAIN], steps=2 * PARENT_STEPS, seed=5, pool={"size_mb": 16}
    )
    parent = runs.run(config, tmp_path / "parent")
    assert parent.code == 0, parent.stderr
    seqs = sorted(
        atom.manifest.seq
        for atom in (
            codec.decode(spill.load(p).body) for p in spill.files(parent.run_dir / "atoms")
        )
        if atom.manifest.agent == AGENT
    )
    seq = seqs[0]
    assert seq < PARENT_STEPS
    options = "--atom", str(seq), "--steps", str(STEPS)
    first = forked(parent.run_dir, tmp_path / "first", *options)
    again = forked(parent.run_dir, tmp_path / "again", *options)
    second = forked(parent.run_dir, tmp_path / "second", *options, "--index", "1")
    assert told(first.run_dir, 0) == told(again.run_dir, 0)
    one, two = told(first.run_dir, 0), told(second.run_dir, 0)
    assert one[0] == two[0] == [*range(seq, STEPS)], "each goes on from the atom's step"
    assert first.summary["steps"] == STEPS - seq
    on = told(parent.run_dir, seq)
    near = slice(0, PARENT_STEPS - seq)
    assert one[1] != two[1] and on[1][near] != one[1][near] and on[1][near] != two[1][near]
    kernel = json.loads((second.run_dir / "kernel.json").read_text())
    assert (kernel["forked"]["seq"], kernel["forked"]["index"]) == (seq, 1)
    atoms = [codec.decode(spill.load(p).body) for p in spill.files(second.run_dir / "atoms")]
    assert {(a.manifest.parent, a.manifest.fork_index) for a in atoms} == {
        (kernel["forked"]["atom"], 1)
    }
    refused = forked(parent.run_dir, tmp_path / "first", *options, code=3)
    assert "first" in refused.stderr and "run" in refused.stderr
    done = forked(parent.run_dir, tmp_path / "done", code=3)
    assert "nothing left to do" in done.stderr and not (tmp_path / "done").exists()
    other = forked(parent.run_dir, tmp_path / "other", agent="who", code=3)
    assert "no agent who" in other.stderr
    missing = forked(parent.run_dir, tmp_path / "missing", "--atom", "7", code=3)
    assert "no atom of plain-001 at step 7" in missing.stderr
