"""A thousand agents of three processes each: how soon they step, what they take, how they end.

Owns the two runs (agents that come to rest after some steps, nothing recorded; agents that step
all the time, recorded) and what is read from /proc meanwhile. Beside them Gymnasium's
AsyncVectorEnv starts its workers, one process each. Everything is measured once: a start of three
thousand processes has its own average in it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import yaml

from bench.measure import ROOT, Figures

COMMAND = Path(sys.executable).with_name("dsec-kernel")
RANDOM = "dsec.policies:RandomPolicy"
TORCH = "dsec.torch_policies:TorchMLPPolicy"
START_MAX_S = 600.0
IDLE_S = 5.0
REST_S = 2.0
MIB = 2**20


@dataclass(slots=True)
class Run:
    """A run whose agents all step.

    Attributes:
        first_s, all_s: from the command to the first agent's first step, and to the last one's.
    """

    process: subprocess.Popen[str]
    out: Path
    supervisor: int
    first_s: float
    all_s: float

    def below(self) -> list[int]:
        """All processes of the run but the guardian and the supervisor."""
        found: list[int] = []
        level = [self.supervisor]
        while level:
            under: list[int] = []
            for pid in level:
                try:
                    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
                except OSError:
                    continue
                under += map(int, text.split())
            found, level = found + under, under
        return found

    def end(self) -> tuple[float, dict[str, Any]]:
        """Send SIGINT; return the seconds until nothing is left, and the summary."""
        pids = [*self.below(), self.supervisor]
        begun = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=START_MAX_S)
        took = time.perf_counter() - begun
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if left or self.process.returncode != 130:
            raise RuntimeError(f"exit code {self.process.returncode}, left {left}\n{err[-2000:]}")
        return took, json.loads(out.strip().splitlines()[-1])


@contextmanager
def started(count: int, policy: str, record: str, *, drowsy: bool) -> Iterator[Run]:
    """Start `count` agents; the block begins when all of them have been told to step."""
    env: dict[str, Any] = {"id": "CartPole-v1"}
    if drowsy:
        env["wrappers"] = [{"entry": "bench.envs:Drowsy", "kwargs": {"rest_s": REST_S}}]
    config = {
        "run": {"name": "spawn", "seed": 1, "steps": 10**12},
        "agents": [
            {
                "name": "cartpole",
                "count": count,
                "env": env,
                "policy": {"entry": policy},
                "failover": {"standby": "none"},
            }
        ],
        "record": {"format": record},
    }
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as folder:
        path, out = Path(folder, "config.yaml"), Path(folder, "run")
        path.write_text(yaml.safe_dump(config))
        argv = [str(COMMAND), "run", str(path), "--json", "-v", "--out", str(out)]
        begun = time.perf_counter()
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            times = _wait(process, count, begun)
            facts = json.loads((out / "kernel.json").read_text())
            yield Run(process, out, facts["supervisor_pid"], times[0], times[-1])
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


def _wait(process: subprocess.Popen[str], count: int, begun: float) -> list[float]:
    times: list[float] = []
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(r"event=agent .*state=running", line):
            times.append(time.perf_counter() - begun)
            if len(times) == count:
                return times
        elif "level=warning" in line or "DEATH" in line:
            print(line.rstrip(), file=sys.stderr)
    raise RuntimeError(f"the run ended when {len(times)} of {count} agents stepped")


def pss_bytes(pid: int) -> int:
    """0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return int(text.split("\nPss:", 1)[1].split(maxsplit=1)[0]) * 1024


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    field = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(field[11]) + int(field[12])) / os.sysconf("SC_CLK_TCK")


def idle(count: int) -> Figures:
    """Agents that come to rest: what they hold, and what supervising them costs."""
    figures = Figures(
        f"{count:,} agents x 3 processes that come to rest, nothing recorded",
        note=f"CartPole with a numpy policy; after 100 steps each step rests for {REST_S:g} s.",
    )
    with started(count, RANDOM, "none", drowsy=True) as run:
        figures.add("command to the last agent's first step", run.all_s, "s")
        figures.add("agents started", count / run.all_s, "/s", f"≥ {workers_per_s(count):.0f}")
        _settle(run)
        pids = run.below()
        total = sum(map(pss_bytes, pids))
        figures.add(f"PSS of {len(pids):,} processes", total / 2**30, "GiB", wanted_pss(count))
        figures.add("PSS an agent, servers shared out", total / MIB / count, "MiB")
        figures.add("supervisor RSS", rss_bytes(run.supervisor) / MIB, "MiB", "≤ 75")
        used, since = cpu_s(run.supervisor), time.perf_counter()
        time.sleep(IDLE_S)
        share = (cpu_s(run.supervisor) - used) / (time.perf_counter() - since)
        figures.add("supervisor CPU while all are idle", 100 * share, "% of a core", "< 2")
        took, _ = run.end()
        figures.add("SIGINT to nothing left", took, "s", "≤ 5")
    return figures


def _settle(run: Run) -> None:
    """Wait until the agents have done their first steps: their processor time stops growing."""
    last = -1.0
    for _ in range(60):
        now = sum(cpu_s(pid) for pid in run.below()[:90])
        if now - last < 0.05:
            return
        last = now
        time.sleep(1.0)


def wanted_pss(count: int) -> str:
    return f"≤ {14 * count / 1000:.3g}"


def busy(count: int) -> Figures:
    """Agents that step all the time, recorded: how they end."""
    figures = Figures(f"{count:,} agents x 3 processes that step all the time, recorded")
    with started(count, RANDOM, "parquet", drowsy=False) as run:
        figures.add("command to the last agent's first step", run.all_s, "s")
        time.sleep(IDLE_S)
        took, summary = run.end()
        figures.add("SIGINT to nothing left", took, "s", "≤ 5")
        figures.add("steps recorded", summary["steps"], "steps")
        figures.add("lost", summary["lost"], "steps", "0")
    return figures


def torch(count: int) -> Figures:
    """Agents with torch policies: what one takes where its zygote is warm."""
    figures = Figures(f"{count:,} agents with torch policies")
    with started(count, TORCH, "none", drowsy=True) as run:
        _settle(run)
        runners, servers = [], []
        for pid in run.below():
            log = Path(f"/proc/{pid}/fd/2").readlink().name
            (runners if log.startswith("cartpole") else servers).append(pid)
        figures.add("PSS an agent", sum(map(pss_bytes, runners)) / MIB / count, "MiB", "≤ 24")
        figures.add("PSS of zygotes and recorder", sum(map(pss_bytes, servers)) / MIB, "MiB")
        run.end()
    return figures


def workers_per_s(count: int) -> float:
    """How many workers a second AsyncVectorEnv starts, in a fresh process."""
    line = f"from bench import spawn; print(spawn.start_workers({min(count, 256)}))"
    out = subprocess.run(
        [sys.executable, "-c", line], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return float(out)


def start_workers(count: int) -> float:
    """Workers a second, from the call until all are there and reset."""
    begun = time.perf_counter()
    envs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count)
    envs.reset(seed=0)
    took = time.perf_counter() - begun
    envs.close()
    return count / took


def run(quick: bool) -> list[Figures]:
    """64 agents are enough to see that it works, a thousand to see what it costs."""
    count = 64 if quick else 1000
    return [idle(count), busy(count), torch(8 if quick else 64)]
