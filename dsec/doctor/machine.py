"""What the machine itself allows: cores, memory, limits, and the means to keep agents apart.

Pure: Readings and Wants in, Lines out. The numbers that agents need are those that a run checks
before it starts (dsec.engine.preflight); here they are told before there is a run.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsec.doctor.readings import Readings
from dsec.doctor.report import Line, Verdict, Wants
from dsec.engine import preflight

GIB = 1 << 30
CLUSTER_POOL_BYTES = 32 * GIB
HUGE_POOL_BYTES = GIB  # from here on a pool's pages are worth being large
MACHINE = "machine"
ISOLATION = "isolation"
_PROFILE = "an agent is kept from its neighbours' files by its user alone"


def checks(readings: Readings, wants: Wants) -> Iterator[Line]:
    """All lines about the machine and about isolation."""
    yield cores(readings)
    yield memory(readings)
    yield shared_memory(readings, wants)
    yield pool(readings, wants)
    yield huge_pages(readings, wants)
    yield descriptors(readings, wants)
    yield processes(readings, wants)
    yield mappings(readings, wants)
    yield control_groups(readings)
    yield namespaces(readings)
    yield landlock(readings)
    yield seccomp(readings)


def cores(readings: Readings) -> Line:
    """Cores, and how much of them the control group lets this process use."""
    found = f"{readings.cores:,} that this process may run on"
    quota = readings.cores_quota
    if quota is not None and quota < readings.cores:
        return Line(
            MACHINE,
            "cores",
            Verdict.WARN,
            f"{found}, of which its control group allows the time of {quota:g}",
            "Raise cpu.max (CPUQuota= of the systemd unit, `--cpus` of docker): a process that is "
            "throttled stops for up to 100 ms at a time",
        )
    if readings.cores < 2:
        return Line(
            MACHINE,
            "cores",
            Verdict.WARN,
            found,
            "Give it two or more (`taskset`, cpuset): an agent is three processes by turns",
        )
    return Line(MACHINE, "cores", Verdict.PASS, found)


def memory(readings: Readings) -> Line:
    """Memory that can still be had."""
    free, limit = readings.available_bytes, readings.cgroup_limit_bytes
    if free is None:
        return Line(
            MACHINE,
            "memory",
            Verdict.WARN,
            "the system does not say what is available",
            "Mount /proc (`mount -t proc proc /proc`)",
        )
    bound = "" if limit is None else f", within the {size(limit)} of its control group"
    found = f"{size(free)} are available{bound}"
    if free < GIB // 2:
        remedy = "End something, or raise memory.max (MemoryMax=, `--memory` of docker)"
        return Line(MACHINE, "memory", Verdict.WARN, found, remedy)
    return Line(MACHINE, "memory", Verdict.PASS, found)


def shared_memory(readings: Readings, wants: Wants) -> Line:
    """/dev/shm, where a pool lives."""
    total, free = readings.shm_bytes, readings.shm_free_bytes
    if total is None:
        return Line(
            MACHINE,
            "/dev/shm",
            Verdict.FAIL,
            "there is none",
            "mount -t tmpfs -o size=50% tmpfs /dev/shm",
        )
    found = f"{size(free)} of {size(total)} are free"
    needed = wants.pool_bytes or (CLUSTER_POOL_BYTES if wants.cluster else 256 << 20)
    if free >= needed:
        return Line(MACHINE, "/dev/shm", Verdict.PASS, found)
    return Line(
        MACHINE,
        "/dev/shm",
        Verdict.FAIL if wants.pool_bytes else Verdict.WARN,
        f"{found}; the pool takes {size(needed)}",
        f"mount -o remount,size={total - free + needed >> 20}m /dev/shm (`--shm-size` of docker), "
        "or see what is left there: `dsec-rdma-gc`",
    )


def pool(readings: Readings, wants: Wants) -> Line:
    """Whether the pool of atoms is as large as its use asks for, and no larger than memory."""
    room = [free for free in (readings.available_bytes, readings.shm_bytes) if free is not None]
    most = min(room, default=0)
    if wants.pool_bytes is None and not wants.cluster:
        return Line(MACHINE, "pool", Verdict.PASS, f"one of up to {size(most)} would fit")
    asked = wants.pool_bytes if wants.pool_bytes is not None else most
    named = size(asked) if wants.pool_bytes is not None else f"at most {size(most)} would fit"
    if asked > most:
        return Line(
            MACHINE,
            "pool",
            Verdict.FAIL,
            f"{named} are asked for; {size(most)} would fit",
            f"Set pool.size_mb to {most >> 20} or less, or give the machine more memory",
        )
    if wants.cluster and asked < CLUSTER_POOL_BYTES:
        return Line(
            MACHINE,
            "pool",
            Verdict.WARN,
            f"{named}; a host of a cluster holds the atoms of others, too",
            f"Set pool.size_mb to {CLUSTER_POOL_BYTES >> 20} or more, on a machine that has it",
        )
    return Line(MACHINE, "pool", Verdict.PASS, named)


def huge_pages(readings: Readings, wants: Wants) -> Line:
    """Whether a large pool's memory comes in pages of 2 MiB, of which an adapter can keep all in
    mind; of small ones a pool of 32 GiB has eight million."""
    found = f"/dev/shm is mounted with huge={readings.shm_huge}"
    large = wants.cluster or (wants.pool_bytes or 0) >= HUGE_POOL_BYTES
    if readings.shm_huge in ("always", "within_size") or not large:
        return Line(MACHINE, "huge pages", Verdict.PASS, found)
    return Line(
        MACHINE,
        "huge pages",
        Verdict.WARN,
        f"{found}: the pool's memory comes in pages of 4 KiB",
        "mount -o remount,huge=within_size /dev/shm",
    )


def descriptors(readings: Readings, wants: Wants) -> Line:
    """Open files, which a run raises up to the hard limit by itself."""
    limit = readings.open_files
    needed = preflight.FILES_BASE + preflight.FILES_PER_AGENT * wants.agents
    found = f"up to {many(limit.hard)} may be open, {needed:,} are for {agents(wants)}"
    if limit.allows(needed):
        return Line(MACHINE, "descriptors", Verdict.PASS, found)
    remedy = f"`ulimit -n {needed}` as root, LimitNOFILE= of the systemd unit, `--ulimit nofile=`"
    return Line(MACHINE, "descriptors", Verdict.FAIL, found, remedy)


def processes(readings: Readings, wants: Wants) -> Line:
    """Processes: of the user, of the control group, of the machine."""
    needed = preflight.PROCESSES_BASE + preflight.PROCESSES_PER_AGENT * wants.agents
    limits = [readings.pids_max, None if readings.root else readings.processes.hard]
    most = min((limit for limit in limits if limit is not None), default=None)
    found = f"up to {many(most)} may run, {needed:,} are for {agents(wants)}"
    if most is None or most >= needed:
        return Line(MACHINE, "processes", Verdict.PASS, found)
    remedy = f"`ulimit -u {needed}`, TasksMax= of systemd, `--pids-limit`, sysctl kernel.pid_max"
    return Line(MACHINE, "processes", Verdict.FAIL, found, remedy)


def mappings(readings: Readings, wants: Wants) -> Line:
    """Memory mappings of one process: the recorder maps every ring."""
    most = readings.maps_max
    needed = preflight.MAPS_BASE + preflight.MAPS_PER_AGENT * wants.agents
    found = f"up to {many(most)} in a process, {needed:,} are for {agents(wants)} in the recorder"
    if most is None or most >= needed:
        return Line(MACHINE, "mappings", Verdict.PASS, found)
    remedy = f"sysctl -w vm.max_map_count={2 * needed}"
    return Line(MACHINE, "mappings", Verdict.FAIL, found, remedy)


def control_groups(readings: Readings) -> Line:
    """Control groups, by which an agent's processes could be bounded together."""
    version, name = readings.cgroup_version, "control groups"
    if version == 0:
        return Line(
            MACHINE,
            name,
            Verdict.WARN,
            "there are none to be seen",
            "mount -t cgroup2 none /sys/fs/cgroup; agents are bounded by resource limits meanwhile",
        )
    found = f"version {version}"
    if readings.cgroup_writable:
        return Line(MACHINE, name, Verdict.PASS, f"{found}; groups can be made below our own")
    return Line(
        MACHINE,
        name,
        Verdict.WARN,
        f"{found}; none can be made below our own",
        "Delegate=yes in the systemd unit, or `systemd-run --user --scope -p Delegate=yes …`",
    )


def namespaces(readings: Readings) -> Line:
    """User namespaces, without which only root can give an agent a view of its own."""
    match readings.user_namespaces:
        case True:
            return Line(ISOLATION, "namespaces", Verdict.PASS, "user namespaces can be made")
        case False:
            return Line(
                ISOLATION,
                "namespaces",
                Verdict.WARN,
                f"no user namespace can be made: {_PROFILE}",
                "sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 "
                "kernel.apparmor_restrict_unprivileged_userns=0, whichever there is; in docker a "
                "seccomp profile that allows `unshare`",
            )
    return Line(
        ISOLATION,
        "namespaces",
        Verdict.WARN,
        "nobody knows: there is no `unshare` to try it with",
        "apt-get install util-linux",
    )


def landlock(readings: Readings) -> Line:
    """Landlock, by which a process gives up files for good without being root."""
    if readings.landlock_abi > 0:
        found = f"version {readings.landlock_abi} of its interface"
        return Line(ISOLATION, "landlock", Verdict.PASS, found)
    return Line(
        ISOLATION,
        "landlock",
        Verdict.WARN,
        f"the kernel has none, or has it switched off: {_PROFILE}",
        "Linux 5.13 or later, and landlock in the list of the boot parameter `lsm=` "
        "(`cat /sys/kernel/security/lsm` shows the list)",
    )


def seccomp(readings: Readings) -> Line:
    """Filters of system calls."""
    if "errno" in readings.seccomp:
        told = ", those that ask a supervisor too" if "user_notif" in readings.seccomp else ""
        found = f"filters of system calls can be set{told}"
        return Line(ISOLATION, "seccomp", Verdict.PASS, found)
    return Line(
        ISOLATION,
        "seccomp",
        Verdict.WARN,
        "the kernel has no filters of system calls",
        "A kernel with CONFIG_SECCOMP_FILTER, as all distributions have",
    )


def size(count: int) -> str:
    """`24.0 GiB`, `512 MiB`, `64 KiB`."""
    if count >= GIB:
        return f"{count / GIB:,.1f} GiB"
    return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else f"{count / 1024:,.0f} KiB"


def many(count: int | None) -> str:
    """A limit in words."""
    return "any number" if count is None else f"{count:,}"


def agents(wants: Wants) -> str:
    """`1 agent`, `8 agents`."""
    return "1 agent" if wants.agents == 1 else f"{wants.agents:,} agents"
