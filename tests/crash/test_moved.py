"""Agents that go on at another host: handed over, or taken over when their host is switched off.

A host is a kernel with a run directory of its own; power off is SIGKILL of all its processes at
once. What the two hosts have done together is compared, link by link, with the same run in peace.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dsec.engine.migrate import migrate
from dsec.sml.named import PREFIX, SHM
from tests import watchdog
from tests.crash import runs

pytest.importorskip("pyarrow")

SEED = 5
STEPS = 10_000
LEASE_S = 6.0
"""A busy machine may keep a source from its heir for half of it."""
AGENTS = {
    "name": "cp",
    "count": 2,
    "policy": {"entry": "dsec.policies:RandomPolicy"},
    "snapshot_interval": 100,
    "sync_interval": 50,
}


class Host:
    """`dsec-kernel host`, and what it says."""

    def __init__(self, program: watchdog.Watched, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.address = self.wait_for("host")["address"]

    def events(self, what: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.program.stdout.splitlines()]
        return [each for each in found if each["event"] == what]

    def wait_for(self, what: str) -> dict[str, Any]:
        self.program.until(lambda: bool(self.events(what)), 60, f"the event {what!r}")
        return self.events(what)[0]


@contextmanager
def hosting(tmp_path: Path, token: Path, lease_s: float = LEASE_S) -> Iterator[Host]:
    folder = tmp_path / "host"
    argv: list[str | Path] = [
        runs.COMMAND, "host", folder, "--listen", "127.0.0.1:0", "--token-file", token,
        "--lease", str(lease_s), "--pool-mb", "64",
    ]  # fmt: skip
    try:
        with watchdog.Watched(argv, tmp_path / "host-streams") as program:
            try:
                yield Host(program, folder)
            finally:
                program.send(signal.SIGTERM)
                program.wait(30)
    finally:
        for path in SHM.glob(f"{PREFIX}replica-*"):
            for ward in folder.glob("wards/*"):
                if ward.name[:16] in path.name:
                    path.unlink()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return path


def configured(path: Path, *, pool: dict[str, Any], until: Path | None = None) -> Path:
    """Steps are slow until there is a file: the agents aren't done before what has to happen."""
    kwargs = {"most_ms": 6.0 if until else 0.0, "until": str(until or "")}
    jitter = {"entry": "tests.crash.jitter:Jitter", "kwargs": kwargs}
    agents = [AGENTS | {"env": {"id": "CartPole-v1", "wrappers": [jitter]}}]
    return runs.write_config(path, agents, steps=STEPS, seed=SEED, pool={"size_mb": 16} | pool)


def replicated(host: Host, token: Path, **changes: Any) -> dict[str, Any]:
    return {
        "peers": [host.address], "replicas": 1, "token_file": str(token), "lease_s": LEASE_S,
    } | changes  # fmt: skip


@contextmanager
def running(config: Path, out: Path, streams: Path) -> Iterator[watchdog.Watched]:
    with watchdog.Watched(runs.argv(config, out), streams) as program:
        yield program


def copied(host: Host, seq: int) -> Callable[[], bool]:
    """Whether the host has been told of a boundary beyond `seq` of every agent."""

    def told() -> bool:
        said = host.events("copies")
        return (
            bool(said)
            and min(said[-1]["seq"].values(), default=0) > seq
            and (len(said[-1]["seq"]) == AGENTS["count"])
        )

    return told


def power_off(program: watchdog.Watched) -> None:
    """Every process of a host at once: stopped first, so that none sees another die."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in watchdog.tree(program.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    program.wait(30)


def chains(run_dir: Path) -> dict[str, str]:
    said = json.loads((run_dir / "summary.json").read_text())
    return {name: agent["chain"] for name, agent in said["agents_by_name"].items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The agents' chains in peace."""
    folder = tmp_path_factory.mktemp("peace")
    finished = runs.run(configured(folder / "c.yaml", pool={}), folder)
    assert finished.code == 0, finished.stderr
    return chains(finished.run_dir)


@pytest.mark.slow
@pytest.mark.guarantee("G13")
def test_agents_of_a_host_that_was_switched_off_go_on_at_its_heir(
    tmp_path: Path, token: Path, expected: dict[str, str]
) -> None:
    done = tmp_path / "switched off"
    with hosting(tmp_path, token) as host:
        config = configured(tmp_path / "c.yaml", pool=replicated(host, token), until=done)
        with running(config, tmp_path / "a", tmp_path / "a-streams") as program:
            program.until(copied(host, 1000), 60, "copies of every agent")
            power_off(program)
        done.touch()
        taken = host.wait_for("taken over")
        assert set(taken["agents"]) == set(expected)
        assert min(taken["agents"].values()) > 1000
        ended = host.wait_for("run ended here")
        assert ended["exit_code"] == 0, Path(ended["run_dir"], "output.txt").read_text()
        assert not host.events("done again otherwise")
        assert chains(Path(ended["run_dir"])) == expected
        # It comes back: its agents are taken, and it stops them.
        back = watchdog.run(
            [runs.COMMAND, "run", "--resume", tmp_path / "a"], tmp_path / "back", timeout_s=60
        )
        assert "another host has taken them over" in back.stderr + back.stdout
        assert "2 done" in back.stdout


@pytest.mark.slow
@pytest.mark.guarantee("G13")
def test_an_agent_is_handed_over_and_the_other_stays(
    tmp_path: Path, token: Path, expected: dict[str, str]
) -> None:
    done = tmp_path / "handed over"
    with hosting(tmp_path, token, lease_s=60.0) as host:
        config = configured(tmp_path / "c.yaml", pool=replicated(host, token), until=done)
        with running(config, tmp_path / "a", tmp_path / "a-streams") as program:
            program.until(copied(host, 100), 60, "copies of every agent")
            assert migrate(tmp_path / "a" / "cp-001", host.address, token, 60) > 1
            done.touch()
            assert program.wait(60) == 0
        ended = host.wait_for("run ended here")
        assert ended["exit_code"] == 0, Path(ended["run_dir"], "output.txt").read_text()
        assert list(host.wait_for("taken over")["agents"]) == ["cp-001"]
        assert chains(tmp_path / "a")["cp-000"] == expected["cp-000"]
        assert chains(Path(ended["run_dir"]))["cp-001"] == expected["cp-001"]
