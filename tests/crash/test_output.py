"""What environments print reaches neither the kernel's output nor anybody's speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import runs


@pytest.mark.slow
@pytest.mark.guarantee("G1")
def test_a_megabyte_of_rubbish_on_stdout_neither_blocks_nor_corrupts(tmp_path: Path) -> None:
    agents = [
        runs.walker("loud", evidence=tmp_path, fault="chatter", at=20),
        runs.walker("quiet"),
    ]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=400)
    finished = runs.run(config, tmp_path)
    assert (tmp_path / "loud").exists(), "the fault didn't happen"
    assert finished.code == 0, finished.stderr
    assert finished.summary["steps"] == 400
    assert len(finished.stdout.strip().splitlines()) == 1, "one JSON object and nothing else"
    assert "forged" not in finished.stdout + finished.stderr
    logs = [path for path in (finished.run_dir / "logs").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in logs) > 1_000_000, "it was kept, in files"


@pytest.mark.slow
@pytest.mark.guarantee("G1")
def test_64_megabytes_on_stderr_are_cut_and_their_end_is_kept(tmp_path: Path) -> None:
    agents = [
        runs.walker("loud", evidence=tmp_path, fault="torrent", at=20),
        runs.walker("quiet"),
    ]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=100_000)
    finished = runs.run(config, tmp_path)
    assert (tmp_path / "loud").exists(), "the fault didn't happen"
    assert finished.code == 0, finished.stderr
    assert finished.summary["steps"] == 100_000
    log = finished.run_dir / "logs" / "loud.env.err"
    kept = log.with_name("loud.env.err.1").read_bytes() + log.read_bytes()
    assert kept.endswith(b"that was all\n")
    assert len(kept) <= 40 << 20, "of 64 MiB"
