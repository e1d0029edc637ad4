"""What a process gives up for good: user, capabilities, and the view of others' memory files.

Each function does one of these to the calling process, which has one thread; the order is in
__init__.py, and matters: who has given up a right can't use it for the next step.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from pathlib import Path
from typing import Final

from dsec.ipc import proc, syscalls

NO_NEW_PRIVS, _SET_DUMPABLE, _DROP_FROM_BOUND = 38, 4, 24
_KEEP_CAPABILITIES, _AMBIENT, _RAISE, _CLEAR_ALL = 8, 47, 2, 4
READ_ALL: Final = 2  # CAP_DAC_READ_SEARCH
_SECCOMP_FILTER: Final = 1
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_NOSUID, _NODEV, _RECURSIVE, _PRIVATE = 2, 4, 1 << 14, 1 << 18
_CAPABILITIES_3: Final = 0x20080522
_CAP_SETUID: Final = 7
_CAP_SYS_ADMIN: Final = 21
_INODES_PER_MIB: Final = 64
_libc = ctypes.CDLL(None, use_errno=True)


def capable(number: int) -> bool:
    """Whether this process has a capability in effect."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def may_change_user() -> bool:
    """Whether this process may become any user."""
    return capable(_CAP_SETUID)


def may_mount() -> bool:
    """Whether this process may mount in a namespace of its own, without becoming root of one."""
    return capable(_CAP_SYS_ADMIN)


def no_new_privileges() -> None:
    """Programs that would run as somebody else (sudo, ping) run as whoever starts them."""
    proc.prctl(NO_NEW_PRIVS, 1)


def own_mounts(hidden: str, scratch: str, scratch_mb: int) -> None:
    """See a mount tree of one's own: an empty memory file system of limited size on `scratch`, and
    another, with no room at all, over the folder `hidden`.

    Who may not mount becomes root of a user namespace for that, in which its number stays what it
    is; there its processes are counted by themselves, too.

    Raises:
        OSError: the system refuses.
    """
    flags = _NEW_MOUNTS
    uid, gid = os.geteuid(), os.getegid()
    if not may_mount():
        flags |= _NEW_USER
    _checked(_libc.unshare(flags), "unshare")
    if flags & _NEW_USER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", "/", "", _RECURSIVE | _PRIVATE, "")
    size = f"size={scratch_mb}m,nr_inodes={scratch_mb * _INODES_PER_MIB},mode=1777"
    _mount("tmpfs", scratch, "tmpfs", _NOSUID | _NODEV, size)
    if hidden:
        _mount("tmpfs", hidden, "tmpfs", _NOSUID | _NODEV | 1, "size=4k,nr_inodes=2,mode=0755")


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    arguments = [each.encode() for each in (source, target, kind)]
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode())
    _checked(result, f"mount on {target}")


def become(uid: int) -> None:
    """Be another user, alone in a group of the same number. That forgets the parent-death signal,
    which the caller sets anew; /proc/self stays readable to this process."""
    proc.prctl(_KEEP_CAPABILITIES, 1)  # `drop_capabilities` follows
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    proc.prctl(_SET_DUMPABLE, 1)


def bound_capabilities(*, but: int = -1) -> None:
    """No program that is executed from here brings a capability back, `but` one. Needs the right
    to forbid it."""
    for number in set(range(64)) - {but}:
        with contextlib.suppress(OSError):  # beyond the last that this system knows, or not allowed
            proc.prctl(_DROP_FROM_BOUND, number)
    _libc.prctl(_AMBIENT, ctypes.c_ulong(_CLEAR_ALL), 0, 0, 0)


def drop_capabilities(*, but: int = -1) -> None:
    """None is left, `but` one, which programs that are executed have as well."""
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    low = 1 << but if but >= 0 else 0
    left = struct.pack("=6I", low, low, low, 0, 0, 0)
    _checked(_libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(left)), "capset")
    if but >= 0:
        raised = _libc.prctl(_AMBIENT, ctypes.c_ulong(_RAISE), ctypes.c_ulong(but), 0, 0)
        _checked(raised, "prctl(PR_CAP_AMBIENT_RAISE)")


def filter_calls(program: bytes) -> None:
    """Have the system run a program before each call of this process and of all that it starts.

    Raises:
        OSError: it has no seccomp, or refuses.
    """
    steps = ctypes.create_string_buffer(program, len(program))
    count = len(program) // 8
    # struct sock_fprog: the number of steps, six bytes of padding, their address.
    fprog = struct.pack("=H6xQ", count, ctypes.addressof(steps))
    syscalls.call(
        "seccomp", ctypes.c_uint(_SECCOMP_FILTER), ctypes.c_uint(0), ctypes.c_char_p(fprog)
    )


def limit(what: int, value: int) -> None:
    """Set a limit for good, or what it is already if that is less."""
    _, hard = resource.getrlimit(what)
    allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (allowed, allowed))


def ignore_size_signal() -> None:
    """A file that grows over the limit is an error (EFBIG) and not a death."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
