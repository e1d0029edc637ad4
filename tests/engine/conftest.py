"""A supervisor makes its process a subreaper for good; the next test must not adopt strangers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.ipc import proc
from tests import watchdog
from tests.engine.talker import COMMAND, PATIENCE_S


@pytest.fixture(autouse=True)
def adopts_as_before() -> Iterator[None]:
    was = proc.set_subreaper(False)
    proc.set_subreaper(was)
    yield
    proc.set_subreaper(was)


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kernel at a socket, for all tests of this file that leave it as it was."""
    path = tmp_path_factory.mktemp("s") / "k.sock"
    process = subprocess.Popen([*COMMAND, "--socket", path], stdin=subprocess.DEVNULL)
    try:
        watchdog.until(path.exists, PATIENCE_S, "the socket")
        yield path
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.wait()
