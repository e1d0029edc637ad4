"""What a user waits for before anything happens: imports, the command's answer, the first step.

Each candidate is a fresh process, from its start to its end; of the run of one agent only the time
until its environment's first step counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from bench.measure import ROOT, Result, interleave

COMMAND = Path(sys.executable).with_name("dsec-kernel")
BASELINE = "python -c pass"


def timed(*argv: str | Path) -> Callable[[], float]:
    """Milliseconds that a command takes."""

    def trial() -> float:
        begun = time.perf_counter()
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
        return 1000 * (time.perf_counter() - begun)

    return trial


def first_step() -> float:
    """Milliseconds from the command to the first step of the only agent."""
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as folder:
        stamp, path = Path(folder, "stamp"), Path(folder, "config.yaml")
        wrapper = {"entry": "bench.envs:Stamped", "kwargs": {"path": str(stamp)}}
        agent = {
            "name": "a",
            "env": {"id": "CartPole-v1", "wrappers": [wrapper]},
            "policy": {"entry": "dsec.policies:RandomPolicy"},
            "failover": {"standby": "none"},
        }
        config = {"run": {"steps": 10}, "agents": [agent], "record": {"format": "none"}}
        path.write_text(yaml.safe_dump(config))
        begun = time.time()
        argv = [COMMAND, "run", path, "--json", "--out", Path(folder, "run")]
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
        return 1000 * (float(stamp.read_text()) - begun)


def run(quick: bool) -> list[Result]:
    """All of them, and what Python itself and Gymnasium take."""
    python = sys.executable
    samples = interleave(
        {
            BASELINE: timed(python, "-c", "pass"),
            "import gymnasium": timed(python, "-c", "import gymnasium"),
            "import dsec": timed(python, "-c", "import dsec"),
            "dsec-kernel --help": timed(COMMAND, "--help"),
            "dsec-kernel validate": timed(COMMAND, "validate", "examples/cartpole.yaml"),
            "dsec-kernel run, to the first step": first_step,
        },
        2 if quick else 9,
    )
    return [Result("to the first step, and what comes before", "ms", samples, BASELINE, "lower")]
