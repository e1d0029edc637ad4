"""Level `fork` where one clone after the other is killed: there is always one more that sleeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsec.recording import Recording
from tests.crash import runs

pytestmark = pytest.mark.slow
QUOTA, AT = 600, 400
BY_FORK = {"failover": {"standby": "fork", "restarts": {"max": 20}}}


def walker(name: str, fault: str, kills: int, evidence: Path) -> dict[str, Any]:
    """Its environment is killed at step `AT`, and the next `kills` of its successors there or in
    the replay of it."""
    keywords = {"fault": fault, "at": AT, "kills": kills, "evidence": str(evidence)}
    env = {"entry": "tests.crash.faulty:Doomed", "kwargs": keywords}
    return runs.walker(name, **BY_FORK, env=env)


def run(folder: Path, *agents: dict[str, Any]) -> runs.Finished:
    folder.mkdir()
    config = runs.write_config(folder / "config.yaml", agents, steps=QUOTA * len(agents))
    return runs.run(config, folder)


def recorded(run: runs.Finished, agent: str) -> list[bytes]:
    with Recording.open(run.run_dir) as recording:
        data = recording.transitions(agent, env=0)
        assert np.array_equal(data.seq, np.arange(QUOTA))
        return [part.tobytes() for part in (data.obs, data.action, data.reward, data.end)]


@pytest.mark.guarantee("G3")
def test_a_promoted_clone_that_is_killed_before_its_first_record_is_followed_by_another(
    tmp_path: Path,
) -> None:
    """And so is that one, and the one after it: nothing was lost with any of them."""
    evidence = tmp_path / "killed"
    evidence.mkdir()
    hit = run(tmp_path / "hit", walker("doomed", "kill", 3, evidence))
    plain = run(tmp_path / "plain", walker("doomed", "none", 0, evidence))
    assert len(list(evidence.iterdir())) == 3, "each was another process"
    assert hit.code == 0, hit.stderr
    [event] = hit.details["failovers_in_order"]
    assert (event["level"], event["exact"], event["why"]) == ("fork", True, None)
    assert len(event["tried"]) == 2, "all but the first had not served yet"
    assert recorded(hit, "doomed") == recorded(plain, "doomed")
