"""Reads a machine into Readings: /proc, /sys, limits, and two questions to the kernel.

Owns the paths. It decides nothing; what can't be read is left at what means "not there". `root` is
a tree of another machine in tests; limits and capabilities are always those of this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import resource
import shutil
import subprocess
from pathlib import Path

from dsec.doctor.readings import Limit, Link, Readings
from dsec.ipc import memory
from dsec.sml.verbs import fabric

PROBE_TIMEOUT_S = 5
_LANDLOCK_CREATE_RULESET = 444  # the number of the system call, the same on every architecture
_LANDLOCK_ASK_VERSION = 1
_CAP_IPC_LOCK = 14


def read(root: Path = Path("/")) -> Readings:
    """The machine below `root`."""
    shm = _filesystem(root / "dev/shm")
    status = _fields(root / "proc/self/status")
    sysctl = root / "proc/sys"
    return Readings(
        cores=len(os.sched_getaffinity(0)),
        cores_quota=_quota(),
        available_bytes=memory.available_bytes(),
        cgroup_limit_bytes=_cgroup_limit(),
        cgroup_version=_cgroup_version(root),
        cgroup_writable=any(os.access(group, os.W_OK) for group in memory.cgroups("memory")[:1]),
        shm_bytes=None if shm is None else shm.f_blocks * shm.f_frsize,
        shm_free_bytes=0 if shm is None else shm.f_bavail * shm.f_frsize,
        shm_huge=_shm_huge(root),
        memlock=_limit(resource.RLIMIT_MEMLOCK),
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        pids_max=_pids_max(sysctl),
        maps_max=memory.number(sysctl / "vm/max_map_count"),
        ipc_lock=bool(int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1),
        root=os.geteuid() == 0,
        user_namespaces=_user_namespaces(),
        landlock_abi=_landlock_abi(),
        seccomp=tuple(_text(sysctl / "kernel/seccomp/actions_avail").split()),
        devices=fabric.read(root),
        pyverbs=importlib.util.find_spec("pyverbs") is not None,
        links=_links(root),
        tcp_ecn=memory.number(sysctl / "net/ipv4/tcp_ecn") or 0,
        tcp_congestion=_text(sysctl / "net/ipv4/tcp_congestion_control"),
    )


def _limit(which: int) -> Limit:
    soft, hard = (
        None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)
    )
    return Limit(soft, hard)


def _quota() -> float | None:
    """Cores' worth of time that the tightest control group allows, of version 2 or 1."""
    found = []
    for group in memory.cgroups("cpu"):
        most, _, period = _text(group / "cpu.max").partition(" ")
        most = most or _text(group / "cpu.cfs_quota_us")
        period = period or _text(group / "cpu.cfs_period_us")
        if most.isdigit() and period.isdigit() and int(period):
            found.append(int(most) / int(period))
    return min(found, default=None)


def _cgroup_limit() -> int | None:
    found = []
    for group in memory.cgroups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = memory.number(group / name)
            if limit is not None and limit < 1 << 60:  # version 1 writes "none" as a large number
                found.append(limit)
    return min(found, default=None)


def _cgroup_version(root: Path) -> int:
    if (root / "sys/fs/cgroup/cgroup.controllers").exists():
        return 2
    return 1 if (root / "sys/fs/cgroup/memory").exists() else 0


def _pids_max(sysctl: Path) -> int | None:
    places = [sysctl / "kernel/pid_max", sysctl / "kernel/threads-max"]
    places += [group / "pids.max" for group in memory.cgroups("pids")]
    found = [limit for place in places if (limit := memory.number(place)) is not None]
    return min(found, default=None)


def _filesystem(path: Path) -> os.statvfs_result | None:
    with contextlib.suppress(OSError):
        return os.statvfs(path)
    return None


def _shm_huge(root: Path) -> str:
    """The mount option `huge=` of /dev/shm; `never` where it has none."""
    for line in _text(root / "proc/mounts").splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/dev/shm":
            for option in fields[3].split(","):
                if option.startswith("huge="):
                    return option.removeprefix("huge=")
    return "never"


def _user_namespaces() -> bool | None:
    """By trying: what forbids them (sysctl, AppArmor, seccomp) is too much to know."""
    program = shutil.which("unshare")
    if program is None:
        return None
    try:
        tried = subprocess.run(
            [program, "--user", "true"], capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def _landlock_abi() -> int:
    """Asked of the kernel itself, for which the C library has no function."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    asked = (ctypes.c_long(_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0))
    return max(0, int(call(*asked, ctypes.c_uint32(_LANDLOCK_ASK_VERSION))))


def _links(root: Path) -> tuple[Link, ...]:
    """Network interfaces but loopback, by name."""
    routes = (line.split() for line in _text(root / "proc/net/route").splitlines()[1:])
    default = {fields[0] for fields in routes if len(fields) > 7 and fields[1] == fields[7]}
    found = []
    for folder in sorted((root / "sys/class/net").glob("*")):
        if folder.name != "lo" and folder.is_dir():
            statistics = {
                each.name: memory.number(each) or 0 for each in (folder / "statistics").glob("*")
            }
            mtu = memory.number(folder / "mtu") or 0
            up = _text(folder / "operstate") in ("up", "unknown")
            ecn = _ecn(folder / "ecn")
            found.append(Link(folder.name, mtu, up, folder.name in default, statistics, ecn))
    return tuple(found)


def _ecn(folder: Path) -> dict[str, bool]:
    """Whether RoCE's two halves of ECN are on, for any priority; empty where nobody says."""
    found = {}
    for part in ("roce_np", "roce_rp"):
        switches = [memory.number(each) for each in (folder / part / "enable").glob("*")]
        if switches:
            found[part] = any(switches)
    return found


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
