"""What a runner gives up before it loads user code, in the only order that works.

`enter` does it, to the calling process and all that it will start, for good. What this system can't
enforce is returned as sentences, which the start-up report and the runner's Ready frame show: none
of it is pretended. What each step is worth against whom is in docs/ISOLATION.md.

The zygote that forks a strict runner has loaded nothing that a configuration named, and was itself
started with an environment that holds only what `kept_environment` lets through (ipc/launch.py).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import dsec
from dsec.ipc import syscalls
from dsec.ipc.terms import Isolation
from dsec.runners import isolate
from dsec.runners.failure import UserCodeError
from dsec.runners.isolation import bpf, explain, landlock, privileges, rules

SCRATCH: Final = "/dev/shm"
_SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/sys",
    "/nix/store", "/gnu/store",
    *(
        f"/etc/{name}"
        for name in (
            "alternatives", "fonts", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache",
            "ld.so.conf", "ld.so.conf.d", "localtime", "machine-id", "mime.types",
            "nsswitch.conf", "os-release", "passwd", "pki", "protocols", "resolv.conf",
            "services", "ssl", "timezone",
        )
    ),
)  # fmt: skip
_DEVICES: Final = tuple(f"/dev/{n}" for n in ("null", "zero", "full", "random", "urandom"))
_NO_LANDLOCK: Final = (
    "files: this system has no Landlock (Linux 5.13), so files, and /proc of other processes of the"
    " same user, are open to it"
)


def enter(settings: Isolation) -> tuple[str, ...]:
    """Give up what the profile says.

    Returns:
        What is asked for and can't be enforced here, a sentence each.

    Raises:
        UserCodeError: that is something, and `require` doesn't allow it.
        OrphanedError: the supervisor died meanwhile.
    """
    if settings.profile == "none" and settings.network:
        return ()
    privileges.no_new_privileges()
    if settings.profile == "strict":
        missing = tuple(_strict(settings))
        explain.watch(settings, readable(settings))
    elif not settings.network:
        missing = tuple(_filter(rules.of_network()))
        explain.watch(settings, ("/",))
    else:
        return ()
    if missing and settings.require:
        raise UserCodeError(
            f"this system can't enforce all of it: {'; '.join(missing)}",
            where="isolation.require",
            lookup=True,
        )
    return missing


def readable(settings: Isolation) -> tuple[str, ...]:
    """The folders that a strict runner may read: the system's programs and libraries, those of
    Python, the import path, the working directory, and what the configuration adds."""
    ours = (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(dsec.__file__).parent.parent))
    found = (*_SYSTEM, *ours, *sys.path, str(Path.cwd()), *settings.read, *_DEVICES)
    return tuple(dict.fromkeys(filter(None, found)))


def _strict(settings: Isolation) -> Iterator[str]:
    parent = os.getppid()
    readable_ones = readable(settings)
    scratch, counted = settings.folder, settings.uid >= 0
    try:
        counted = counted or not privileges.may_mount()
        privileges.own_mounts(settings.hidden, SCRATCH, settings.scratch_mb)
        scratch = SCRATCH
    except OSError as error:
        counted = settings.uid >= 0
        yield (
            f"temporary files: no mount tree of its own ({error}): each of its files is at most"
            f" {settings.scratch_mb} MiB, but not all together"
        )
        _make_folder(scratch, settings.uid)
        privileges.ignore_size_signal()
        privileges.limit(resource.RLIMIT_FSIZE, settings.scratch_mb << 20)
    if not counted:
        yield (
            "processes: they are counted for each user, not for this runner: it has no user of its"
            " own (isolation.uid)"
        )
    elif settings.processes:
        privileges.limit(resource.RLIMIT_NPROC, settings.processes)
    # To read what lies in root's own folders is all that Landlock, which bounds it, leaves of that.
    kept = privileges.READ_ALL if settings.reads_all and landlock.version() else -1
    privileges.bound_capabilities(but=kept)
    if settings.uid >= 0:
        privileges.become(settings.uid)
    privileges.drop_capabilities(but=kept)
    isolate.set_parent_death_signal(signal.SIGKILL)  # a change of user forgets it
    if os.getppid() != parent:
        raise isolate.OrphanedError("the supervisor died while this process was isolated")
    _move_in(scratch)
    yield from _enclose(settings, readable_ones, scratch)
    yield from _filter(rules.of_strict(network=settings.network))


def _enclose(settings: Isolation, reads: tuple[str, ...], scratch: str) -> Iterator[str]:
    abi = landlock.version()
    if not abi:
        yield _NO_LANDLOCK
    else:
        landlock.restrict(reads, (*settings.write, scratch, *_DEVICES))
    if abi < landlock.SIGNALS_SINCE and settings.uid < 0:
        yield (
            "signals: it may send them to other processes of its user: that takes Linux 6.12, or a"
            " user of its own (isolation.uid)"
        )


def _filter(wanted: list[bpf.Rule]) -> Iterator[str]:
    machine = syscalls.machine()
    if machine is None:
        yield f"system calls: there is no table of them for {os.uname().machine}; none is denied"
        return
    program = bpf.assemble(wanted, machine)
    try:
        privileges.filter_calls(bpf.packed(program))
    except OSError as error:
        yield f"system calls: none is denied ({error})"


def _make_folder(folder: str, uid: int) -> None:
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    if uid >= 0:
        os.chown(folder, uid, uid)


def _move_in(folder: str) -> None:
    """Have libraries put there what they would put elsewhere."""
    for name in ("HOME", "TMPDIR"):
        os.environ[name] = folder
    tempfile.tempdir = None
    with contextlib.suppress(OSError):
        os.umask(0o077)
