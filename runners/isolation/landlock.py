"""Which files a process may open, and whom it may signal: Landlock, by its version.

Owns the system's interface and what each version of it can; which folders those are is the
caller's. What this gives holds for the process and all its children, for ever, whoever they are:
root, too. It also keeps /proc/<pid>/fd, /proc/<pid>/mem and the like of every process outside shut,
for whoever may not trace a process may not read these.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dsec.ipc import proc, syscalls

SIGNALS_SINCE: Final = 6  # the version that keeps signals to processes outside from being sent
_NO_NEW_PRIVS: Final = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST: Final = (1 << 13) - 1  # of version 1: beside the above removing, and making of seven kinds
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READS: Final = _EXECUTE | _READ_FILE | _READ_DIR
_SCOPES: Final = 1 | 2  # abstract Unix sockets, signals


def version() -> int:
    """The version of Landlock that this system has; 0: none."""
    with contextlib.suppress(OSError):
        return syscalls.call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return 0


def handled(abi: int) -> int:
    """Which kinds of access to files that version can deny."""
    known = _FIRST
    known |= _REFER if abi >= 2 else 0
    known |= _TRUNCATE if abi >= 3 else 0
    return known | (_IOCTL_DEV if abi >= 5 else 0)


def restrict(read: Iterable[str], write: Iterable[str]) -> None:
    """Deny this process, and all that it will start, every file that is not below one of these;
    and, where the version can, signals to processes outside. The caller has no_new_privs, or the
    right to do without.

    Args:
        read: may be read, listed and executed. One that doesn't exist is left out.
        write: may be changed as well.

    Raises:
        OSError: this system has no Landlock, or refuses.
    """
    abi = version()
    known = handled(abi)
    attributes = struct.pack("=QQQ", known, 0, _SCOPES if abi >= SIGNALS_SINCE else 0)
    size = 24 if abi >= SIGNALS_SINCE else 16 if abi >= 4 else 8
    ruleset = syscalls.call(
        "landlock_create_ruleset",
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(size),
        ctypes.c_uint(0),
    )
    try:
        for path in read:
            _allow(ruleset, path, _READS & known)
        for path in write:
            _allow(ruleset, path, known)
        proc.prctl(_NO_NEW_PRIVS, 1)
        syscalls.call("landlock_restrict_self", ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what can't be reached needs no rule
    try:
        allowed = access if stat.S_ISDIR(os.fstat(fd).st_mode) else access & _OF_FILES
        rule = struct.pack("=Qi", allowed, fd)
        syscalls.call(
            "landlock_add_rule",
            ctypes.c_int(ruleset),
            ctypes.c_int(1),
            ctypes.c_char_p(rule),
            ctypes.c_uint(0),
        )
    finally:
        os.close(fd)


def below(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these, or below one."""
    place = Path(os.path.realpath(path))
    return any(place.is_relative_to(os.path.realpath(folder)) for folder in folders)
