"""A death after every single store of a writer and of a reader (tests/ipc/c/killpoints.c)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "c"


@pytest.mark.guarantee("G2")
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_death_after_any_store_leaves_the_ring_whole() -> None:
    done = subprocess.run(
        ["make", "-C", str(HERE), "killpoints"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(r"writers killed at (\d+) stores, readers at (\d+)", done.stdout)
    assert counts is not None, done.stdout
    assert int(counts[1]) > 450, "every word of headers, payloads and tails is a point"
    assert int(counts[2]) > 90
