"""The real `dsec-kernel` as the crash tests drive it.

Owns the configuration text, the command line and the reading of what a run says and leaves. Must
not reach into a run by any way that a user doesn't have: signals, /proc, files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dsec.recording import Recording
from dsec.runners.blocks import Kind
from dsec.runners.journal import FILE_NAME, JournalReader
from dsec.testing import leaks
from tests import watchdog

COMMAND = Path(sys.executable).with_name("dsec-kernel")
WALK = "tests.crash.faulty:Walk"


def walker(name: str, *, evidence: Path | None = None, **changes: Any) -> dict[str, Any]:
    """One agent that walks; environment keywords go to its environment."""
    keywords = {
        key: changes.pop(key)
        for key in ("fault", "at", "phase", "every", "width", "once")
        if key in changes
    }
    if evidence is not None:
        keywords |= {"evidence": str(evidence), "name": name}
    agent: dict[str, Any] = {
        "name": name,
        "env": {"entry": WALK, "kwargs": keywords},
        "policy": {"entry": "dsec.policies:RandomPolicy"},
        "failover": {"restarts": {"max": 0}},  # who dies is quarantined, unless a test says more
    }
    return agent | changes


def write_config(
    path: Path, agents: Sequence[dict[str, Any]], *, steps: int, seed: int = 5, **extra: Any
) -> Path:
    """Write a configuration; `steps` is for all agents together."""
    document = {"run": {"name": "crash", "seed": seed, "steps": steps}, "agents": list(agents)}
    path.write_text(yaml.safe_dump(document | extra, sort_keys=False))
    return path


@dataclass
class Finished:
    """What a run left: exit code, the JSON on its last line, both streams, the run directory."""

    code: int
    summary: dict[str, Any]
    stdout: str
    stderr: str
    run_dir: Path

    @property
    def details(self) -> dict[str, Any]:
        """summary.json: every agent, every death."""
        return json.loads((self.run_dir / "summary.json").read_text())


def argv(config: Path, out: Path, *options: str) -> list[str | Path]:
    return [COMMAND, "run", config, "--json", "--out", out, *options]


def run(
    config: Path,
    folder: Path,
    *options: str,
    timeout_s: float = 90,
    prefix: Sequence[str] = (),
    prepare: Callable[[], None] | None = None,
    cwd: Path = watchdog.ROOT,
) -> Finished:
    """Run to the end; the summary is the last line on stdout."""
    out = folder / "run"
    result = watchdog.run(
        [*prefix, *argv(config, out, *options)],
        folder / "streams",
        timeout_s=timeout_s,
        prepare=prepare,
        cwd=cwd,
    )
    return Finished(result.returncode, summary_of(result.stdout), result.stdout, result.stderr, out)


def summary_of(stdout: str) -> dict[str, Any]:
    """The JSON object on the last line, or an empty one."""
    lines = stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


def committed(run_dir: Path) -> dict[str, int]:
    """Committed transitions by agent, as the journal has them now; empty before there is one."""
    path = run_dir / FILE_NAME
    if not path.exists() or path.stat().st_size == 0:
        return {}
    with JournalReader(path) as journal:
        return {each.declaration.agent: each.seq_committed + 1 for each in journal.index.agents}


def check_journal(run_dir: Path) -> dict[str, int]:
    """Assert that the journal ends at a whole record and has no hole; return what it holds."""
    with JournalReader(run_dir / FILE_NAME) as journal:
        assert journal.index.torn_bytes == 0
        following = [0] * len(journal.index.agents)
        for block in journal.blocks():  # each is verified by its checksum
            if block.kind is Kind.BATCH:
                assert block.first_seq == following[block.agent], "a hole or a repetition"
                following[block.agent] += block.count
    return committed(run_dir)


def check_recording(run_dir: Path) -> dict[str, int]:
    """Assert that the recording, journal or Parquet, has no hole; return transitions by agent."""
    with Recording.open(run_dir) as recording:
        for agent in recording.agents:
            seqs = recording.transitions(agent.name, env=0).seq
            assert np.array_equal(seqs, np.arange(agent.transitions)), agent.name
        return {agent.name: agent.transitions for agent in recording.agents}


def recorders(run_dir: Path, program: watchdog.Watched) -> list[int]:
    """Who has the journal open: one process, or none while a dead one is being replaced."""
    journal = str((run_dir / FILE_NAME).resolve())
    found = []
    for pid in remains(program):
        with suppress(OSError):
            if any(str(fd.readlink()) == journal for fd in Path(f"/proc/{pid}/fd").iterdir()):
                found.append(pid)
    return found


def recorder_of(run_dir: Path, program: watchdog.Watched) -> int:
    """The recorder, awaited if it is just being replaced."""
    program.until(lambda: bool(recorders(run_dir, program)), 30, "a recorder")
    return recorders(run_dir, program)[0]


def supervisor_of(program: watchdog.Watched) -> int:
    """The supervisor is the guardian's only child."""
    children = leaks.children_of(program.pid)
    assert len(children) == 1, watchdog.picture(sorted(children))
    return children.pop()


def remains(program: watchdog.Watched) -> list[int]:
    """Processes of this run that still live, by the mark of the test."""
    return sorted(leaks.marked(os.environ[leaks.MARK]) - {program.pid})


def namespaces_allowed() -> bool:
    """Whether an ordinary user may make a mount namespace here."""
    try:
        trial = subprocess.run(["unshare", "-rm", "true"], capture_output=True, timeout=20)
    except OSError:
        return False
    return trial.returncode == 0
