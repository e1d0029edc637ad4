"""Whether this machine can do what the configuration asks, found out before anything is started.

Every check says what is needed, what there is and how to get the rest. What a limit allows to be
raised (the soft limits up to the hard ones) is raised here, in this process, and hence for all
that it starts. The estimates are lower bounds: they refuse what can't work, they don't promise
that the rest does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path

from dsec.config import KeyPath, Loaded, agent_names
from dsec.config.models import Pool
from dsec.errors import ConfigError, MachineError
from dsec.ipc import memory
from dsec.sml.remote.address import host_port
from dsec.sml.remote.choose import Chosen, choose
from dsec.sml.remote.handshake import read_token

FILES_BASE = 64
FILES_PER_AGENT = 16
PROCESSES_BASE = 8
PROCESSES_PER_AGENT = 3
PAGE_BYTES = 4096
RECORD_BYTES_MIN = 64
RECORD_HEADER_BYTES = 32
RUNNER_BYTES_MIN = 3 * 1024 * 1024  # what a forked runner has for itself before it does anything
MAPS_PER_AGENT = 12
MAPS_BASE = 2_000


def check_installation() -> None:
    """Check what has to be installed for anything to run.

    Raises:
        MachineError: the C extension or uvloop is missing.
    """
    if importlib.util.find_spec("dsec.ipc._ring") is None:
        raise MachineError(
            "dsec's C extension (dsec.ipc._ring) is not built",
            "In a checkout: `pip install -e .`, which needs a C compiler and Python's headers "
            "(`apt-get install gcc python3-dev`)",
        )
    if importlib.util.find_spec("uvloop") is None:
        raise MachineError("uvloop is not installed", "pip install uvloop")


def check_proc(proc: Path = Path("/proc")) -> None:
    """Check that /proc shows this process: what a run leaves is found there, and ended.

    Raises:
        MachineError: it isn't mounted, or it belongs to another PID namespace.
    """
    shown = ""
    with contextlib.suppress(OSError):
        shown = str((proc / "self").readlink())
    if shown != str(os.getpid()):
        raise MachineError(
            f"{proc} does not show this process: it is not mounted, or is that of another PID "
            "namespace",
            "Mount this namespace's own (`unshare --mount-proc`, or `mount -t proc proc /proc` in "
            "the container)",
        )


def check_record(loaded: Loaded) -> None:
    """Check that what is recorded can be written as the configuration says.

    Raises:
        MachineError: it says Parquet, and pyarrow is missing.
    """
    if loaded.config.record.format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MachineError(
            "record.format: parquet needs pyarrow, which is not installed",
            "pip install 'dsec-kernel[record]', or leave record.format out to keep the journal",
        )


def spares(loaded: Loaded) -> int:
    """How many agents may have one process more, which waits to take their environment over."""
    return sum(
        len(agent_names(agent.name, agent.count))
        for agent in loaded.config.agents
        if agent.failover.standby != "none"
    )


def check_limits(agents: int, spare: int = 0) -> int:
    """Check and raise the limits on descriptors and processes, for so many agents and spares.

    Returns:
        The soft limit on open files that this process had before.

    Raises:
        MachineError: a limit that can't be raised far enough.
    """
    before = _check_files(agents)
    processes = PROCESSES_BASE + PROCESSES_PER_AGENT * agents + spare
    _check_user_processes(processes, agents)
    _check_pids(processes, agents)
    _check_maps(agents)
    return before


def _check_files(agents: int) -> int:
    needed = FILES_BASE + FILES_PER_AGENT * agents
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise MachineError(
                f"{agents:,} agents need {needed:,} open files; the limit (RLIMIT_NOFILE) is "
                f"{hard:,}",
                f"Raise it (`ulimit -n {needed}` as root, LimitNOFILE= of the systemd unit, "
                f"`--ulimit nofile={needed}` of docker), or run at most "
                f"{max(0, (hard - FILES_BASE) // FILES_PER_AGENT):,} agents",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft


def check_open_files(loaded: Loaded) -> None:
    """Check that the runners can have the descriptors that the configuration gives them.

    Raises:
        ConfigError: more than the hard limit, which nobody can raise for himself.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return
    problems = [
        loaded.diagnostic(
            ("agents", index, "limits", "open_files"),
            f"{agent.limits.open_files:,} are more than this machine's hard limit of {hard:,} "
            "(`ulimit -Hn`)",
        )
        for index, agent in enumerate(loaded.config.agents)
        if (agent.limits.open_files or 0) > hard
    ]
    if problems:
        raise ConfigError(problems)


def check_cores(loaded: Loaded) -> None:
    """Check that the cores that agents are bound to are there.

    Raises:
        ConfigError: one that this process may not use.
    """
    have = os.sched_getaffinity(0)
    problems = []
    for index, agent in enumerate(loaded.config.agents):
        for place, core in enumerate(agent.limits.cpus or ()):
            if core not in have:
                path: KeyPath = ("agents", index, "limits", "cpus", place)
                text = f"this run may not use core {core}; it has {_ranges(have)}"
                problems.append(loaded.diagnostic(path, text))
    if problems:
        raise ConfigError(problems)


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3, 8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _check_user_processes(needed: int, agents: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() == 0 or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and soft < hard:
        soft = hard
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    running = _threads_of_user(os.getuid())
    if running + needed > soft:
        raise MachineError(
            f"{agents:,} agents need {needed:,} processes; this user has {running:,} and may have "
            f"{soft:,} (RLIMIT_NPROC)",
            f"Raise it (`ulimit -u {running + needed}`, LimitNPROC= of the systemd unit), or run "
            "fewer agents",
        )


def _threads_of_user(uid: int) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid:
                    count += sum(1 for _ in (entry / "task").iterdir())
    return count


def _check_pids(needed: int, agents: int) -> None:
    """The limits of the machine, and of the control groups that we are in."""
    limits = [
        ("/proc/sys/kernel/pid_max", 0, "sysctl kernel.pid_max"),
        ("/proc/sys/kernel/threads-max", 0, "sysctl kernel.threads-max"),
    ]
    for folder in memory.cgroups("pids"):
        taken = memory.number(folder / "pids.current") or 0
        limits.append((str(folder / "pids.max"), taken, "TasksMax= of systemd, --pids-limit"))
    for path, taken, remedy in limits:
        limit = memory.number(Path(path))
        if limit is not None and taken + needed > limit:
            raise MachineError(
                f"{agents:,} agents need {needed:,} processes; {path} allows {limit:,}"
                + (f", of which {taken:,} are taken" if taken else ""),
                f"Raise it ({remedy}), or run fewer agents",
            )


def _check_maps(agents: int) -> None:
    needed = MAPS_BASE + MAPS_PER_AGENT * agents
    limit = memory.number(Path("/proc/sys/vm/max_map_count"))
    if limit is not None and needed > limit:
        raise MachineError(
            f"recording {agents:,} agents needs {needed:,} memory mappings in one process; "
            f"vm.max_map_count is {limit:,}",
            f"sysctl -w vm.max_map_count={2 * needed}",
        )


def check_pool(loaded: Loaded, physical: Callable[[], int] | None = None) -> None:
    """Check that the pool can exist on this machine at all.

    Raises:
        ConfigError: it is larger than the memory.
    """
    pool = loaded.config.pool
    most = (physical or _physical_bytes)()
    if pool is not None and pool.size_mb << 20 > most:
        path: KeyPath = ("pool", "size_mb")
        said = f"{pool.size_mb:,} MB are more than all memory of this machine, {_size(most)}"
        raise ConfigError([loaded.diagnostic(path, said)])


def reach(pool: Pool) -> Chosen:
    """How the run's peers are reached, and why so.

    Raises:
        MachineError: the token that they have can't be read.
    """
    peers = pool.peers[: pool.replicas]
    if peers and pool.token_file is not None:
        read_token(Path(pool.token_file))
    return choose(pool.backend, [host_port(each) for each in peers])


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(loaded: Loaded, available: Callable[[], int | None] | None = None) -> None:
    """Check that the rings can exist, and that so many processes can.

    Raises:
        ConfigError: the rings of an entry, as small as its records can be, are larger than memory.
        MachineError: the bare processes are.
    """
    free = (available or memory.available_bytes)()
    if free is None:
        return
    problems = []
    agents = 0
    for index, agent in enumerate(loaded.config.agents):
        count = len(agent_names(agent.name, agent.count))
        agents += count
        needed = count * ring_bytes_min(agent.ipc.ring_slots, agent.env.num_envs)
        if needed > free:
            path: KeyPath = ("agents", index, "ipc", "ring_slots")
            problems.append(
                loaded.diagnostic(
                    path,
                    f"{agent.ipc.ring_slots:,} slots for {count:,} agents of num_envs "
                    f"{agent.env.num_envs:,} need at least {_size(needed)} of memory; "
                    f"{_size(free)} are available",
                )
            )
    if problems:
        raise ConfigError(problems)
    needed = (agents * PROCESSES_PER_AGENT + spares(loaded)) * RUNNER_BYTES_MIN
    if needed > free:
        raise MachineError(
            f"{agents:,} agents need at least {_size(needed)} of memory; {_size(free)} are "
            "available",
            "Run fewer agents, or set num_envs, which puts several environments into one process",
        )


def ring_bytes_min(slots: int, num_envs: int) -> int:
    """Bytes that the three rings of one agent take at the very least."""
    record = RECORD_HEADER_BYTES + 8 * num_envs  # a reward, and an action or an observation
    record = -(-record // RECORD_BYTES_MIN) * RECORD_BYTES_MIN
    return 3 * (PAGE_BYTES + slots * record)


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"
