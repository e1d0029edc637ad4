"""Everything the doctor knows of a machine, as plain values: what reader.py fills in.

Owns no rule. A number that is None has no limit, or could not be read where that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsec.sml.verbs.fabric import Device


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource limit of this process; None is unlimited."""

    soft: int | None
    hard: int | None

    def allows(self, needed: int) -> bool:
        """Up to the hard limit a process may raise its own."""
        return self.hard is None or self.hard >= needed


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface.

    Attributes:
        mtu: bytes.
        up: it carries something.
        default: the route to everywhere leads through it.
        counters: /sys/class/net/NAME/statistics, since the interface came up.
        ecn: of RoCE on it, where the driver tells: `roce_np` and `roce_rp`, on or off.
    """

    name: str
    mtu: int = 1500
    up: bool = True
    default: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    ecn: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """A machine, or the part of one that a container has.

    Attributes:
        cores: that this process may run on.
        cores_quota: processor time a second that its control group allows, in cores.
        available_bytes: memory that can still be had; None: the system doesn't say.
        cgroup_limit_bytes: memory limit of the tightest control group.
        cgroup_version: 1 or 2; 0: there are none to be seen.
        cgroup_writable: this process may make control groups below its own.
        shm_bytes: size of /dev/shm; None: there is none.
        shm_free_bytes: of that.
        shm_huge: the mount option `huge=` of /dev/shm.
        memlock: RLIMIT_MEMLOCK in bytes.
        open_files: RLIMIT_NOFILE.
        processes: RLIMIT_NPROC.
        pids_max: the lowest of pid_max, threads-max and the control groups' limits.
        maps_max: vm.max_map_count.
        ipc_lock: the capability that lifts RLIMIT_MEMLOCK.
        root: the effective user is root, whom RLIMIT_NPROC does not bind.
        user_namespaces: one could be made; None: there was no program to try it with.
        landlock_abi: version of its interface; 0: the kernel has none, or has it switched off.
        seccomp: actions that a filter of system calls may take; empty: no filters.
        devices: RDMA devices.
        pyverbs: the Python library of RDMA is installed.
        links: network interfaces but the loopback one.
        tcp_ecn: net.ipv4.tcp_ecn: 0 never, 1 always, 2 when asked.
        tcp_congestion: name of the algorithm.
    """

    cores: int = 8
    cores_quota: float | None = None
    available_bytes: int | None = 64 << 30
    cgroup_limit_bytes: int | None = None
    cgroup_version: int = 2
    cgroup_writable: bool = True
    shm_bytes: int | None = 64 << 30
    shm_free_bytes: int = 64 << 30
    shm_huge: str = "never"
    memlock: Limit = Limit(None, None)
    open_files: Limit = Limit(1024, 1 << 20)
    processes: Limit = Limit(None, None)
    pids_max: int | None = 4 << 20
    maps_max: int | None = 65_530
    ipc_lock: bool = False
    root: bool = False
    user_namespaces: bool | None = True
    landlock_abi: int = 3
    seccomp: tuple[str, ...] = ("kill_process", "errno", "user_notif", "allow")
    devices: tuple[Device, ...] = ()
    pyverbs: bool = False
    links: tuple[Link, ...] = ()
    tcp_ecn: int = 2
    tcp_congestion: str = "cubic"
