"""Named segments: who may write one, and that none is left behind.

Owns their names, creation with all memory reserved, the owner's lock, and their end. The lock is
flock(2) on the segment itself: the system lets go of it when its owner is gone, however it went.
Whoever takes the lock may adopt it. A kernel has a lock of another kind beside it (`hold`, an
fcntl(2) lock of an open file): its server may die and be replaced, and the segment is nobody's in
between, but not an orphan's. Where there is neither, it belongs to nobody, and may be unlinked.
It knows nothing of what is in a segment. posix_ipc is used here and nowhere else.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import posix_ipc

from dsec.errors import LocalError, MachineError, PoolAbsent, PoolExists, PoolOwned
from dsec.ipc import memory

PREFIX = "dsec-pool-"
SHM = Path("/dev/shm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TRIES = 1000  # to lock a segment that others look at, or keep replacing under this name
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of Linux, 64 bits
_RESERVE_BYTES = 64 << 20  # what the machine keeps


@dataclass(slots=True)
class Named:
    """A named segment, open.

    Attributes:
        name: without the prefix.
        fd: -1 after close. It holds the lock, if this is the owner.
        size: bytes.
        owner: may it be written?
    """

    name: str
    fd: int
    size: int
    owner: bool

    def map(self) -> mmap.mmap:
        """Map it whole: for the owner writable, else read-only.

        Raises:
            MachineError: it can't be mapped.
        """
        access = mmap.PROT_READ | (mmap.PROT_WRITE if self.owner else 0)
        try:
            return mmap.mmap(self.fd, self.size, mmap.MAP_SHARED, access)
        except (OSError, ValueError) as error:
            raise MachineError(
                f"can't map pool {self.name} ({self.size:,} bytes): {error}", ""
            ) from None

    def close(self) -> None:
        """Close the descriptor, and with it give up the lock. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def unlink(self) -> None:
        """Take the name away, if it still leads here. Memory goes when the last one unmaps it.

        Raises:
            LocalError: this is no owner, and it may be somebody's.
        """
        if not self.owner or self.fd < 0:
            raise LocalError(f"pool {self.name}: only its owner unlinks it")
        if _leads_to(self.name, self.fd):
            posix_ipc.unlink_shared_memory(_path(self.name))


def create(name: str, size: int) -> Named:
    """Make a segment, with all its memory reserved, and own it. It reads as zeros.

    Raises:
        LocalError: no such name can be.
        PoolExists: there is one of this name; it isn't touched.
        MachineError: not so much memory; says how much there is.
    """
    room = memory.available_bytes()
    if room is not None and size + _RESERVE_BYTES > room:
        raise _no_memory(name, size, room)
    try:
        found = posix_ipc.SharedMemory(_path(name), posix_ipc.O_CREX, mode=0o600, size=0)
    except posix_ipc.ExistentialError:
        raise PoolExists(
            f"there is a pool {name} already",
            "Run under another name, or see what it holds: `dsec-rdma-gc`.",
        ) from None
    except (posix_ipc.Error, OSError) as error:
        raise MachineError(f"can't make pool {name}: {error}", "") from None
    made = Named(name, found.fd, size, owner=True)
    try:
        _lock(made)
        if not _leads_to(name, made.fd):
            raise MachineError(f"pool {name}: somebody took its name away while it was made", "")
        os.posix_fallocate(made.fd, 0, size)
    except OSError as error:
        made.unlink()
        made.close()
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise _no_memory(name, size, _shm_room()) from None
        raise MachineError(f"pool {name}: can't reserve {size:,} bytes: {error}", "") from None
    except BaseException:
        made.close()
        raise
    return made


def adopt(name: str) -> Named:
    """Own a segment that an earlier owner left.

    Raises:
        PoolAbsent: there is none.
        PoolOwned: its owner lives. It isn't touched.
    """
    for _ in range(_TRIES):
        found = _open(name, read_only=False)
        try:
            _lock(found)
        except BaseException:
            found.close()
            raise
        if _leads_to(name, found.fd):
            return found
        found.close()  # unlinked, or replaced, between opening and locking
    raise MachineError(f"pool {name} is being replaced all the time", "")


def orphan(name: str) -> Named:
    """Own a segment that has neither an owner nor a kernel that holds it: to take it away.

    Raises:
        PoolAbsent: there is none.
        PoolOwned: one of them lives. It isn't touched.
    """
    found = adopt(name)
    if _is_held(found.fd):
        found.close()
        raise PoolOwned(f"pool {name} belongs to a kernel, which lives", "End that run first.")
    return found


class Hold:
    """Says that a kernel lives to which a segment belongs; until `release`, or the process ends.

    Args:
        name: of the segment.

    Raises:
        PoolAbsent: there is none.
        MachineError: it can't be opened or locked.
    """

    def __init__(self, name: str) -> None:
        self._named = _open(name, read_only=True)
        try:
            fcntl.fcntl(self._named.fd, fcntl.F_OFD_SETLK, _record_lock(fcntl.F_RDLCK))
        except OSError as error:
            self._named.close()
            raise MachineError(f"pool {name} can't be held: {error.strerror}", "") from None

    def release(self) -> None:
        """Again is no error."""
        self._named.close()


def _record_lock(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0)


def _is_held(fd: int) -> bool:
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _record_lock(fcntl.F_WRLCK))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def attach(name: str) -> Named:
    """Open a segment for reading. Raises PoolAbsent."""
    return _open(name, read_only=True)


def names() -> list[str]:
    """All pools of this machine that this user may see, sorted."""
    return sorted(each.name.removeprefix(PREFIX) for each in SHM.glob(f"{PREFIX}*"))


def owner_of(named: Named) -> int | None:
    """The process that holds the lock; None if nobody does. 0: somebody whom we can't see, or a
    kernel that lives while its server is being replaced."""
    try:
        fcntl.flock(named.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(named.fd)[1]
    fcntl.flock(named.fd, fcntl.LOCK_UN)
    return 0 if _is_held(named.fd) else None


def _open(name: str, *, read_only: bool) -> Named:
    try:
        found = posix_ipc.SharedMemory(_path(name), read_only=read_only)
    except posix_ipc.ExistentialError:
        raise PoolAbsent(
            f"there is no pool {name}", "See which there are: `dsec-rdma-gc`."
        ) from None
    except (posix_ipc.Error, OSError) as error:
        raise MachineError(f"can't open pool {name}: {error}", "") from None
    return Named(name, found.fd, os.fstat(found.fd).st_size, owner=not read_only)


def _lock(named: Named) -> None:
    holder = 0
    for _ in range(_TRIES):
        try:
            fcntl.flock(named.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            kind, holder = _holder(named.fd)
            if kind == "WRITE":
                break
            os.sched_yield()  # somebody looks whether there is an owner, which takes microseconds
        else:
            return
    raise PoolOwned(
        f"pool {named.name} belongs to process {holder or '(not visible here)'}, which lives",
        "End that run first, or use another name.",
    )


def _holder(fd: int) -> tuple[str, int]:
    """READ or WRITE, and who holds such a lock on this file; ("", 0) if /proc/locks has none."""
    found = os.fstat(fd)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "WRITE", 0
    for fields in (line.split() for line in lines):
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place:
            return fields[3], max(0, int(fields[4]))
    return "", 0


def _leads_to(name: str, fd: int) -> bool:
    try:
        there, here = (SHM / _path(name).lstrip("/")).stat(), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _path(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise LocalError(f"no pool can be called {name!r}: letters, digits, dots and dashes")
    return f"/{PREFIX}{name}"


def _shm_room() -> int:
    found = os.statvfs(SHM)
    return found.f_bavail * found.f_frsize


def _no_memory(name: str, size: int, room: int) -> MachineError:
    return MachineError(
        f"pool {name} needs {size:,} bytes of shared memory; {room:,} are available here",
        "Make it smaller (pool.size_mb), or give the machine, its cgroup or /dev/shm more memory.",
    )
