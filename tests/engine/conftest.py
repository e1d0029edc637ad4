"""A kernel at a socket, for the tests of a file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import watchdog
from tests.engine.talker import COMMAND, PATIENCE_S


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
