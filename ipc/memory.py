"""How much memory can still be had: of the machine, and within the control groups that we are in.

Segments ask before they reserve, and the engine before it starts anything. Standard library only:
the engine asks before it knows that the C extension is there.
"""

from __future__ import annotations

import contextlib
import functools
import resource
from pathlib import Path


def available_bytes() -> int | None:
    """Memory that can be had; None if the system doesn't say."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        found.append(int(text.split("MemAvailable:", 1)[1].split(maxsplit=1)[0]) * 1024)
    if (room := cgroup_room()) is not None:
        found.append(room)
    return min(found, default=None)


def remedy() -> str:
    """What to do where memory was refused: raise the limit that this process has and hands on, or
    free some."""
    for limit, what, command in (
        (resource.RLIMIT_AS, "of address space", "ulimit -v"),
        (resource.RLIMIT_DATA, "of memory", "ulimit -d"),
    ):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            return f"Each process may have {soft >> 20:,} MiB {what} (`{command}`): raise that"
    free = available_bytes()
    there = "" if free is None else f"{free >> 20:,} MiB are available: "
    return f"{there}run fewer agents, or end something else".capitalize()


def cgroup_room() -> int | None:
    """Memory that the tightest of our control groups has left; None if none is bounded."""
    found = []
    for folder in cgroups("memory"):
        limit = number(folder / "memory.max")
        if limit is None:
            limit = number(folder / "memory.limit_in_bytes")
        if limit is None:
            continue
        used = number(folder / "memory.current")
        if used is None:
            used = number(folder / "memory.usage_in_bytes")
        if used is not None:
            found.append(max(0, limit - used + _reclaimable(folder)))
    return min(found, default=None)


def _reclaimable(folder: Path) -> int:
    """Files that were read and not used since: they count as used, and make room when asked to.
    In a container that has read much, that is nearly all of its memory."""
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    return 0


@functools.cache
def cgroups(controller: str) -> tuple[Path, ...]:
    """The folders of our control groups, the innermost first, for version 1 or 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    root = Path("/sys/fs/cgroup")
    for line in lines:
        hierarchy, names, inner = line.split(":", 2)
        if hierarchy != "0" and controller not in names.split(","):
            continue
        base = root if hierarchy == "0" else root / controller
        path = base / inner.lstrip("/")
        return tuple(folder for folder in (path, *path.parents) if folder.is_relative_to(base))
    return ()


def number(path: Path) -> int | None:
    """The number in a file of the kernel; None if there is none, or no limit (`max`)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
