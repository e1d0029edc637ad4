"""What a run takes of the machine: the ledger, the pace, and a real process's figure."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections import Counter

import pytest

from dsec.engine import footprint
from dsec.engine.footprint import Ledger, pss_bytes, sample

GROW = "import sys; data = bytearray(40 << 20); print('grown', flush=True); sys.stdin.read()"


def test_the_figure_of_a_process_is_its_own_memory() -> None:
    argv = [sys.executable, "-c", GROW]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = pss_bytes(child.pid)
        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)
        assert found is not None and 40 << 20 < found < 200 << 20
        assert pss_bytes(child.pid) is None, "it is gone"


def test_the_ledger_keeps_the_latest_and_the_peak() -> None:
    ledger = Ledger()
    ledger.note("a", {"env": 5, "policy": 7})
    ledger.note("a", {"env": 4, "policy": 2})
    ledger.note("b", {"env": 8})
    ledger.note("b", {})
    ledger.note("", {"recorder": 11})
    ledger.supervisor_peak = 13
    assert ledger.totals() == {
        "agents_sampled": 2,
        "agent_pss_bytes": 7,
        "agent_pss_peak_bytes": 12,
        "agent_pss_peak": "a",
        "role_pss_bytes": {"env": 6, "policy": 2},
        "servers_pss_bytes": 11,
        "supervisor_rss_peak_bytes": 13,
    }


def test_every_agent_is_sampled_in_its_turn_and_the_dead_are_left_out() -> None:
    names = [f"a{number}" for number in range(12)]
    asked: Counter[str] = Counter()
    ledger, enough = Ledger(), asyncio.Event()

    def living(name: str) -> list[tuple[str, int]]:
        asked[name] += 1
        if len(ledger.latest) == 10:
            enough.set()
        if name == "a3":
            return []  # not running
        return [("env", 0 if name == "a5" else os.getpid())]  # no process has the number 0

    async def main() -> None:
        task = asyncio.ensure_future(sample(ledger, names, living))
        await asyncio.wait_for(enough.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprint, "SHARE", 1.0)
        patch.setattr(footprint, "SOON_SHARE", 1.0)
        asyncio.run(main())
    assert set(ledger.latest) == set(names) - {"a3", "a5"}
    assert set(ledger.servers) == {"env"}
    assert max(asked.values()) - min(asked.values()) <= 1, "one after the other"


def test_the_first_few_agents_are_spread_over_all() -> None:
    order = footprint._jumping(1000)
    assert sorted(order) == list(range(1000))
    first = sorted(order[:8])
    assert all(50 < after - before < 250 for before, after in itertools.pairwise(first))
