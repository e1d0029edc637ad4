"""Kills the runners of a run at random instants, from outside, as an operator or the OOM killer
would.

Owns who may be hit and when. It uses no door of dsec's: processes are found by their parents, and
a runner's role by its log and by the one segment that it has mapped for writing. Who has none (a
spare, a clone, a successor that waits) is fair game, too. The instants are chance with a seed, but
what a process does at one is the machine's business: no two runs are hit alike.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROLES = ("env", "policy", "reward")
BEGUN_BYTES = 1024  # a journal with more of them holds transitions
BESIDE = "beside"  # a runner that writes no segment: a spare, a clone, one that takes over
_OWN = re.compile(rb"^\S+ rw-s .*/memfd:dsec:(.*)$", re.MULTILINE)


def children(pid: int) -> list[int]:
    """Direct children of a process; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found, todo = [], [pid]
    while todo:
        below = children(todo.pop())
        found += below
        todo += below
    return found


def marked(name: str, value: str) -> list[int]:
    """All processes in whose environment a variable has this value, whoever has adopted them."""
    needle, found = f"{name}={value}".encode(), []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and needle in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def role_of(pid: int) -> str:
    """The role that a process of a run plays; empty if it is none of an agent's runners."""
    try:
        log = Path(f"/proc/{pid}/fd/2").readlink().name
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return ""
    role = log.removesuffix(".err").rpartition(".")[2]
    if role not in ROLES:
        return ""
    return role if b":" + role.encode() in b"".join(_OWN.findall(maps)) else BESIDE


class Assassin(threading.Thread):
    """Sends a signal to a random runner of a run at random instants, until it is told to stop. It
    begins when something has been recorded: who dies earlier may quarantine its agent.

    Args:
        run: the process id of `dsec-kernel`.
        journal: the recording that it writes.
        seed: of the chance.
        gap_s: mean time from one kill to the next.
        most: kills after which it rests.
        targets: roles to choose from, each as often as the others.
        signals: what is sent.
    """

    def __init__(
        self,
        run: int,
        journal: Path,
        *,
        seed: int,
        gap_s: float,
        most: int,
        targets: Sequence[str] = ROLES,
        signals: Sequence[signal.Signals] = (signal.SIGKILL, signal.SIGSEGV),
    ) -> None:
        super().__init__(name="assassin", daemon=True)
        self._root, self._journal = run, journal
        self._gap_s, self._most = gap_s, most
        self._targets, self._signals = targets, signals
        self._dice = random.Random(seed)
        self._over = threading.Event()
        self.kills: Counter[str] = Counter()

    def run(self) -> None:
        """Kill."""
        while not (self._journal.exists() and self._journal.stat().st_size > BEGUN_BYTES):
            if self._over.wait(0.01):
                return
        while self.kills.total() < self._most:
            if self._over.wait(self._dice.expovariate(1 / self._gap_s)):
                return
            self._strike(self._dice.choice(self._targets))

    def stop(self) -> None:
        """Let live."""
        self._over.set()
        self.join()

    def _strike(self, target: str) -> None:
        victims = sorted(pid for pid in self._runners() if role_of(pid) == target)
        if not victims:
            return
        pid = self._dice.choice(victims)
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)  # from here on the number can't become somebody else's
            try:
                if role_of(pid) == target:
                    signal.pidfd_send_signal(pidfd, self._dice.choice(self._signals))
                    self.kills[target] += 1
            finally:
                os.close(pidfd)

    def _runners(self) -> list[int]:
        """Everything below the guardian that leads a process group, as runners do."""
        found = []
        for pid in descendants(self._root):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == pid:
                    found.append(pid)
        return found
