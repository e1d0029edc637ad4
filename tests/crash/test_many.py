"""Many agents of one configuration: all step, all is recorded, and one SIGINT ends all of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import watchdog
from tests.crash import runs

SMALL_SHM = (
    "unshare",
    "-rm",
    "sh",
    "-c",
    'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"',
    "sh",
)


def many(path: Path, count: int, steps: int, **changes: object) -> Path:
    agent = {
        "name": "pole",
        "count": count,
        "env": {"id": "CartPole-v1"},
        "policy": {"entry": "dsec.policies:RandomPolicy"},
        "failover": {"standby": "none"},
    }
    return runs.write_config(path, [agent | changes], steps=steps)


def check(finished: runs.Finished, count: int, steps: int) -> None:
    """Everybody did its quota, nothing is missing, and the summary knows what it took."""
    assert finished.code == 0, finished.stderr
    assert (finished.summary["agents"], finished.summary["steps"]) == (count, steps)
    assert (finished.summary["deaths"], finished.summary["lost"]) == (0, 0)
    recorded = runs.check_recording(finished.run_dir)
    assert recorded == {f"pole-{number:03}": steps // count for number in range(count)}
    states = {each["state"] for each in finished.details["agents_by_name"].values()}
    assert states == {"done"}


@pytest.mark.slow
@pytest.mark.guarantee("G8")
def test_64_agents_of_one_entry(tmp_path: Path) -> None:
    config = many(tmp_path / "config.yaml", 64, 64 * 2_000)
    finished = runs.run(config, tmp_path, timeout_s=240)
    check(finished, 64, 64 * 2_000)
    memory = finished.summary["memory"]
    assert memory["agents_sampled"] > 0
    assert set(memory["role_pss_bytes"]) == {"env", "policy", "reward"}
    assert 1 << 20 < memory["agent_pss_bytes"] < 200 << 20
    assert 10 << 20 < memory["supervisor_rss_peak_bytes"] < 200 << 20


@pytest.mark.slow
def test_a_small_dev_shm_does_not_matter(tmp_path: Path) -> None:
    if not runs.namespaces_allowed():
        pytest.skip("an ordinary user may not make a mount namespace here")
    config = many(tmp_path / "config.yaml", 2, 400)
    finished = runs.run(config, tmp_path, prefix=SMALL_SHM)
    check(finished, 2, 400)


@pytest.mark.slow
@pytest.mark.guarantee("G2", "G8")
def test_an_interrupt_ends_many_agents_at_their_boundaries(
    tmp_path: Path, watched: Callable[..., watchdog.Watched]
) -> None:
    config = many(tmp_path / "config.yaml", 32, 10**9)
    out = tmp_path / "run"
    with watched(runs.argv(config, out)) as program:
        program.until(lambda: len(runs.committed(out)) == 32, 120, "32 agents in the journal")
        program.send(signal.SIGINT)
        assert program.wait(120) == 130
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["interrupted"], summary["lost"], summary["deaths"]) == (True, 0, 0)
    assert sum(runs.check_recording(out).values()) == summary["steps"]


@pytest.mark.soak
@pytest.mark.guarantee("G2", "G8")
@pytest.mark.parametrize("standby", ["none", "auto"])
def test_a_thousand_agents(tmp_path: Path, standby: str) -> None:
    changes = {"failover": {"standby": standby}}
    config = many(tmp_path / "config.yaml", 1_000, 1_000 * 500, **changes)
    finished = runs.run(config, tmp_path, timeout_s=1_800)
    check(finished, 1_000, 1_000 * 500)
