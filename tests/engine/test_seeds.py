"""Seeds follow from the run's seed and the agent's name, and from nothing else."""

from __future__ import annotations

import re

import pytest

from dsec.seeds import agent_seed, fresh_run_seed


@pytest.mark.guarantee("G12")
def test_the_derivation_never_changes() -> None:
    # Recordings of earlier versions are reproducible only as long as these stand.
    assert agent_seed(7, "cartpole-000") == "9b305ab00783557edc71f57bbd1c3f9b"
    assert agent_seed(2**63 - 1, "é") == "25571bc9adb2f10802853b483387d3d5"


def test_all_differ() -> None:
    seeds = {agent_seed(run, f"a-{n:03d}") for run in range(20) for n in range(100)}
    assert len(seeds) == 2000
    assert all(re.fullmatch("[0-9a-f]{32}", seed) for seed in seeds)


def test_a_fresh_seed_fits_the_configuration() -> None:
    assert all(0 <= fresh_run_seed() < 2**32 for _ in range(10))
