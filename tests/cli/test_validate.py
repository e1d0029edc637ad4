"""What `dsec-kernel validate` shows of how an environment's state would be kept."""

from __future__ import annotations

import re
from pathlib import Path

from tests import watchdog
from tests.crash import runs


def test_validate_shows_what_auto_would_choose_and_why(tmp_path: Path) -> None:
    given = runs.walker("given", failover={"standby": "fork"})
    config = runs.write_config(tmp_path / "c.yaml", [runs.walker("w", failover={}), given], steps=9)
    argv = [runs.COMMAND, "validate", config]
    done = watchdog.run(argv, tmp_path / "streams", timeout_s=90, cwd=watchdog.ROOT)
    assert done.returncode == 0, done.stderr
    valid, chosen, why, *notes, asked_for = done.stdout.splitlines()
    assert valid == f"{config}: valid"
    assert re.fullmatch(r"w: after a death of its environment: \w+( \(\w+\))?, about .* ms", chosen)
    assert why.startswith("  auto: ")
    assert all(note.startswith("  ") for note in notes)
    assert asked_for == "given: after a death of its environment: fork"
