"""Kernels that were killed with everything that belonged to them: what they leave is found."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsec.engine.plan import pool_name
from dsec.sml import named
from dsec.sml.pool_shm import ShmPool, ShmReader
from tests import watchdog
from tests.crash import runs

AGENT: dict[str, Any] = {
    "name": "plain",
    "env": {"id": "CartPole-v1"},
    "policy": {"entry": "dsec.policies:RandomPolicy"},
    "snapshot_interval": 10,
}
GC = Path(runs.COMMAND).with_name("dsec-rdma-gc")


def kill_all(program: watchdog.Watched) -> None:
    """Guardian, supervisor, servers and runners at once, so that nobody sees another one die."""
    everybody = [program.pid, *runs.remains(program)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in everybody:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.mark.slow
@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("persist", [False, True])
def test_the_pool_of_a_kernel_that_was_killed_whole(tmp_path: Path, persist: bool) -> None:
    """It is whole, it is shown, and the next start takes it away, unless it was to stay."""
    pool = {"size_mb": 1, "persist": persist}
    config = runs.write_config(tmp_path / "config.yaml", [AGENT], steps=10**8, pool=pool)
    out = tmp_path / "run"
    name = pool_name("crash", str(out))
    path = named.SHM / f"{named.PREFIX}{name}"
    try:
        with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
            program.until(path.exists, 60, "a pool")
            program.until(lambda: any((out / "atoms").glob("*.atom")), 60, "an atom on disk")
            hold = named.Hold(name)  # or a kernel of another test might be the next that starts
            kill_all(program)
            assert program.wait(30) == -signal.SIGKILL
            watchdog.until(lambda: not runs.remains(program), 10, "the end of every process")
        with ShmReader(name) as reader:
            assert [*reader.entries()], "whole, as it was left"
            assert reader.owner() == 0, "nobody but who holds it"
        hold.release()
        told = next_start(tmp_path / "next")
        assert path.exists() is persist
        assert not (persist and f"pool={name}" in told)
        if persist:
            argv = [GC, name, "--force", "--persisted"]
            said = watchdog.run(argv, tmp_path / "force", timeout_s=60).stdout
            assert "kept for a later run" in said and "freed: the whole pool" in said
            assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def next_start(folder: Path) -> str:
    """Another run begins, and ends soon; what it says."""
    folder.mkdir()
    config = runs.write_config(folder / "config.yaml", [AGENT], steps=10)
    done = runs.run(config, folder)
    assert done.code == 0, done.stderr
    return done.stderr


def test_a_start_tells_what_it_took_away(tmp_path: Path) -> None:
    for number in range(5):  # a kernel of another test may be quicker
        name = f"test-{uuid.uuid4().hex}"
        ShmPool.create(name, 1 << 16, bound=True).close()
        told = next_start(tmp_path / str(number))
        assert name not in named.names()
        if f'event="a pool that a killed kernel left is gone" pool={name} bytes=' in told:
            return
    raise AssertionError("no start said it")
