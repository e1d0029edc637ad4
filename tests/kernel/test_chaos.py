"""Faults at random moments, in whatever state their victim is: the run ends, whole, every time.

One seed fixes what is done to whom; when it happens is the machine's affair. Safety is checked
always: who was not hit ends as asked, nothing committed is lost, nothing is left (the leak check).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from dsec.ipc.frames import Phase
from dsec.kernel.machine import RunnerState
from tests.kernel.helpers.stage import ENDLESS, Stage, agent

AGENTS = 6
FAULTS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP)


def victims(stage: Stage) -> dict[int, str]:
    """Every process that there is, and whose."""
    found = {}
    for name, each in stage.supervisor.agents.items():
        found |= {r.pid: name for r in each.runners.values() if r.state is not RunnerState.GONE}
    servers = [*stage.supervisor.zygotes.values(), stage.recorder]
    # One that dies before it has ever served is given up, and that is right.
    found |= {each.runner.pid: "" for each in servers if each.runner and each.was_up}
    found.pop(0, None)
    return found


@pytest.mark.slow
@pytest.mark.guarantee("G1", "G7", "G8")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_dies_whenever_the_run_ends_whole(seed: int, tmp_path: Path) -> None:
    dice, hit = random.Random(seed), set()

    async def act(stage: Stage) -> None:
        for _ in range(12):
            await asyncio.sleep(dice.random() * 0.3)
            there = victims(stage)
            # Servers are hit more rarely than their budgets allow.
            servers = [pid for pid, name in there.items() if not name]
            runners = [pid for pid, name in there.items() if name and name not in ("a0", "a1")]
            pick = servers if dice.random() < 0.15 else runners
            if pick:
                pid = dice.choice(pick)
                hit.add(there[pid])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, dice.choice(FAULTS[:3] if not there[pid] else FAULTS))
        if seed % 2:
            await stage.until_stepping("a0", "a1")
        stage.supervisor.request_drain("enough")

    brief = dict.fromkeys((Phase.STEP, Phase.ACT, Phase.REWARD, Phase.CLOSE), 1.0)
    agents = [agent(f"a{n}", steps=ENDLESS, deadlines=brief) for n in range(AGENTS)]
    stage = Stage(tmp_path, *agents, drain_timeout_s=3.0)
    report = stage.run(act)
    assert {each.state for each in report.agents.values()} <= {"done", "quarantined"}
    for name, each in report.agents.items():
        if name not in hit:
            assert (each.state, each.lost) == ("done", 0), each.death
    told = {death.agent for death in report.deaths} - {"recorder"}
    assert told <= hit
    assert all(death.cause and death.kind for death in report.deaths)
    assert report.failure == ""
