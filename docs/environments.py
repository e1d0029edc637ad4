"""Writes the table of checked environments into ENVIRONMENTS.md: `python docs/environments.py`.

Owns which ones, and the columns; every figure is what `dsec-kernel check --json` printed on the
machine where this ran. Takes minutes, so nothing else runs it; with names it does only those.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "ENVIRONMENTS.md"
COMMAND = Path(sys.executable).with_name("dsec-kernel")
BEGIN, END = "<!-- checked: docs/environments.py -->\n", "<!-- end -->"
ZOO = "pettingzoo.butterfly.knights_archers_zombies_v11"
ENVIRONMENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("CartPole-v1", {}),
    ("Acrobot-v1", {}),
    ("LunarLander-v3", {}),
    ("BipedalWalker-v3", {}),
    ("HalfCheetah-v5", {}),
    ("Ant-v5", {}),
    ("ale_py:ALE/Pong-v5", {}),
    ("ale_py:ALE/Breakout-v5", {}),
    ("minigrid:MiniGrid-DoorKey-5x5-v0", {}),
    ("dsec.multi:ParallelEnv", {"entry": f"{ZOO}:parallel_env"}),
)
FAULTS = ("segv", "kill", "hang", "exit", "exception")
HEAD = """\
| environment | deterministic | codecs that hold it | forked | done again | kept at | \
KiB in 1,000 steps, 100 resets | segv, kill, hang, exit, exception: ms | recording |
|---|---|---|---|---|---|---|---|---|
"""


def checked(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the command says of it."""
    argv = [COMMAND, "check", name, "--json", "--kwargs", json.dumps(kwargs)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    found: dict[str, Any] = json.loads(result.stdout or "{}")
    if found.get("sound") is None:
        raise SystemExit(f"{name}: {result.stderr}")
    return found


def row(name: str, kwargs: dict[str, Any], found: dict[str, Any]) -> str:
    """A line of the table."""
    same = found["deterministic"]
    verdict = {"yes": "yes", "hash seed": "with a fixed hash seed"}.get(
        same["verdict"], f"no: {same['what']} at step {same['step']}"
    )
    codecs = ", ".join(each["name"] for each in found["codecs"] if each["faithful"]) or "none"
    trials = [
        "yes" if found[key] and found[key]["faithful"] else "no" for key in ("fork", "replay")
    ]
    level = found["level"] + (f" ({found['codec']})" if found["codec"] else "")
    growths = [found[key] for key in ("per_1000_steps", "per_100_resets")]
    kib = ", ".join("?" if each is None else f"{each['memory_kib']:,.0f}" for each in growths)
    ms = []
    for kind in FAULTS:
        (each,) = [fault for fault in found["faults"] if fault["kind"] == kind]
        shown = f"{each['ms']:,.0f}" if each["survived"] else "no"
        ms.append(shown if each["exact"] or not each["survived"] else f"{shown} (not exact)")
    recording = "bit-identical" if found["identical"] else "differs"
    entry = f" with `{kwargs['entry']}`" if kwargs else ""
    cells = (f"`{name}`{entry}", verdict, codecs, *trials, level, kib, ", ".join(ms), recording)
    return f"| {' | '.join(cells)} |\n"


def main(only: Sequence[str]) -> None:
    """Check all of them, or those that are named, and write the page."""
    page = PAGE.read_text()
    begin = page.index(BEGIN) + len(BEGIN)
    before = page[begin : page.index(END, begin)]
    rows = {line.split("`")[1]: line for line in before.splitlines(keepends=True) if "| `" in line}
    for name, kwargs in ENVIRONMENTS:
        if only and name not in only:
            continue
        found = checked(name, kwargs)
        rows[name] = row(name, kwargs, found)
        said = "; ".join(found["problems"]) or "sound"
        sys.stderr.write(f"{name}: {said} ({found['seconds']} s)\n")
    where = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"
    when = f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}"
    lines = "".join(rows[name] for name, _ in ENVIRONMENTS if name in rows)
    table = f"{HEAD}{lines}\nMeasured on {when}, {where}.\n"
    PAGE.write_text(page[:begin] + table + page[page.index(END, begin) :])


if __name__ == "__main__":
    main(sys.argv[1:])
