"""The kernel is not on the data path: stopping it slows nobody (G11)."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests import watchdog
from tests.crash import runs

STOP_S = 10.0


def pace(out: Path, seconds: float) -> dict[str, float]:
    """Committed transitions a second of each agent, over that time."""
    before, start = runs.committed(out), time.monotonic()
    threading.Event().wait(seconds)  # the time is what is measured here, nothing is awaited
    after, took = runs.committed(out), time.monotonic() - start
    return {name: (after[name] - before[name]) / took for name in before}


@pytest.mark.slow
@pytest.mark.guarantee("G11")
def test_a_stopped_supervisor_slows_nobody(tmp_path: Path) -> None:
    """Ten seconds is far more than any buffer between an agent and the kernel could hide.

    No figure of speed is asserted, only that the pace did not collapse. The deadlines are shorter
    than the stop, so a supervisor that took the pause for hung runners would be caught as well.
    """
    agents = [
        runs.walker("quiet", deadlines={"step_s": 2.0, "act_s": 2.0, "reward_s": 2.0}),
        runs.walker("chatty", every=5, deadlines={"step_s": 2.0}),
    ]
    config = runs.write_config(tmp_path / "config.yaml", agents, steps=500_000_000)
    out = tmp_path / "run"
    with watchdog.Watched(runs.argv(config, out), tmp_path / "streams") as program:
        program.until(
            lambda: min(runs.committed(out).values(), default=0) > 500, 60, "500 transitions each"
        )
        before = pace(out, 4.0)
        supervisor = runs.supervisor_of(program)
        os.kill(supervisor, signal.SIGSTOP)
        during = pace(out, STOP_S)
        assert Path(f"/proc/{supervisor}/stat").read_text().split()[2] == "T", "it was not stopped"
        os.kill(supervisor, signal.SIGCONT)
        after = pace(out, 2.0)
        program.send(signal.SIGINT)
        assert program.wait(30) == 130, program.tails()
        summary = runs.summary_of(program.stdout)
    assert sum(during.values()) > 0.5 * sum(before.values()), (before, during)
    for name in ("quiet", "chatty"):  # how two cores are shared between them varies more
        assert during[name] > 0.2 * before[name], (before, during)
        assert after[name] > 0
    assert summary["deaths"] == 0
    assert summary["lost"] == 0
