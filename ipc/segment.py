"""Segments: the shared memory of one writing role, made by the kernel and handed out as a number.

A segment is an anonymous memory file: a header page (ring.h) and the ring's data area. Its size is
reserved when it is made, so that a full machine is an error here and never a SIGBUS later, and
sealed, so that nobody can shrink it under a reader. The kernel makes segments, hands them out and
reads two things of them, the progress word and the crash record; it never maps the data. This file
knows no numpy and no ring.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dsec.errors import CorruptRingError, LocalError, MachineError, PeerError
from dsec.ipc import memory
from dsec.ipc._ring import ffi, lib
from dsec.ipc.frames import Phase, Role, SegmentRef

if TYPE_CHECKING:
    from dsec.ipc._ring import CData

HEADER_BYTES = lib.DSEC_PAGE
CAPACITY_MIN = lib.DSEC_CAPACITY_MIN
CAPACITY_MAX = 1 << 32
GROUP_ROLE = lib.DSEC_GROUP_ROLE

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
OVERFLOW_BYTES = 4 << 30
"""The area for large parts of records (overflow.py) behind the ring of an env or a policy. It is
address space in a sparse file; memory is only taken by what is written there."""
_NAME_BYTES_MAX = 249
_OVERFLOWING = (Role.ENV, Role.POLICY)
_RESERVE_BYTES = 64 << 20  # what the machine keeps: memory files are not swapped out at once
_ROOM_KNOWN_S = 0.1
_known_until: float = 0.0
_known_room: int | None = None


@dataclass(slots=True)
class Segment:
    """One segment as its maker holds it.

    Attributes:
        fd: descriptor, open for reading and writing; -1 after close.
        size: bytes of header page and ring; what may follow is the overflow area.
        role: whose outbox it is.
        epoch: of the incarnation that it was made for.
    """

    fd: int
    size: int
    role: int
    epoch: int

    def close(self) -> None:
        """Close the descriptor; what others mapped stays alive. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


def create(name: str, role: int, data_bytes: int, *, epoch: int, start: int = 0) -> Segment:
    """Make a sealed segment with its memory reserved.

    Args:
        name: shown in /proc/<pid>/maps; needs not be unique, and is cut where it is too long.
        role: the role that will write it.
        data_bytes: capacity of the ring: a power of two from 4096 to 2**32; 0 for a role that only
            reads.
        epoch: written into each record by default.
        start: position at which this role's ring, and all rings that it will read, begin. Tests
            of the wrap-around set it (a multiple of 64); everybody else leaves it at 0.

    Raises:
        LocalError: data_bytes or start is out of range.
        MachineError: no memory or no descriptor; says how much is needed and what to do.
    """
    good = CAPACITY_MIN <= data_bytes <= CAPACITY_MAX and not data_bytes & (data_bytes - 1)
    if data_bytes and not good:
        raise LocalError(f"a ring of {data_bytes} bytes: it takes a power of two, 4 KiB to 4 GiB")
    size = HEADER_BYTES + data_bytes
    fd = _reserve(short_name(name), size)
    try:
        _format(fd, size, role, epoch, start)
        if role in _OVERFLOWING and data_bytes:
            with contextlib.suppress(OSError):  # RLIMIT_FSIZE: then large records are refused
                os.ftruncate(fd, size + OVERFLOW_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Segment(fd, size, role, epoch)


def create_group(name: str) -> Segment:
    """Make the doorbell of a vector (group.py): one page that all its env runners write."""
    return create(name, GROUP_ROLE, 0, epoch=0)


def short_name(name: str) -> str:
    """What memfd_create takes: at most 249 bytes, and no NUL."""
    data = name.replace("\0", "?").encode(errors="replace")
    return data[:_NAME_BYTES_MAX].decode(errors="ignore")


def _reserve(name: str, size: int) -> int:
    if mmap.PAGESIZE != HEADER_BYTES:
        raise MachineError(
            f"memory pages of {mmap.PAGESIZE} bytes; segments are laid out for {HEADER_BYTES}",
            "Run on a kernel with 4 KiB pages.",
        )
    # Without this look a reservation would not fail: it would wake the out-of-memory killer.
    room = _room(size + _RESERVE_BYTES)
    if size + _RESERVE_BYTES > room:
        raise _no_memory(name, size, room)
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Who has it for reading only can't open it anew for writing, unless it may change its mode.
        os.fchmod(fd, 0o400)
    except OSError as error:
        raise _no_descriptor(name, error) from None
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise _no_memory(name, size, room) from None
        remedy = "Raise the limit of file sizes: `ulimit -f`." if error.errno == errno.EFBIG else ""
        raise MachineError(
            f"segment {name}: can't reserve {size:,} bytes: {error.strerror}", remedy
        ) from None
    return fd


def _room(wanted: int) -> int:
    """Memory that can be had, or some of it that is `wanted` or more."""
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE  # quick to ask for, and never too much
    bound = _group_room(wanted)
    if wanted > free:
        found = memory.available_bytes()
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE if found is None else found
    return free if bound is None else min(free, bound)


def _group_room(wanted: int) -> int | None:
    """What our control groups had left a moment ago, less what was asked for since: to read it
    takes longer than all else in the making of a segment, and many are made at a time."""
    global _known_until, _known_room
    now = time.monotonic()
    if now > _known_until or (_known_room is not None and wanted > _known_room):
        _known_until, _known_room = now + _ROOM_KNOWN_S, memory.cgroup_room()
    elif _known_room is not None:
        _known_room -= wanted - _RESERVE_BYTES
    return _known_room


def _no_memory(name: str, size: int, room: int) -> MachineError:
    return MachineError(
        f"segment {name} needs {size:,} bytes of shared memory; {room:,} are available here",
        "Run fewer agents, use smaller rings (ring_slots), or give the machine or its cgroup "
        "more memory.",
    )


def _no_descriptor(name: str, error: OSError) -> MachineError:
    if error.errno == errno.EMFILE:
        remedy = "Raise the limit of open files: `ulimit -n` or LimitNOFILE=."
    elif error.errno == errno.ENFILE:
        remedy = "Raise the machine's limit of open files: `sysctl fs.file-max`."
    else:
        remedy = ""
    return MachineError(f"segment {name}: can't make a memory file: {error.strerror}", remedy)


def _format(fd: int, size: int, role: int, epoch: int, start: int) -> None:
    page = _map_page(fd, writable=True)
    try:
        if lib.dsec_format(page, size, role, epoch, start) != lib.DSEC_OK:
            raise LocalError(f"a ring can't start at {start}: positions are multiples of 64")
    finally:
        lib.dsec_unmap_page(page)


def _map_page(fd: int, *, writable: bool = False) -> CData:
    page = lib.dsec_map_page(fd, int(writable))
    if page == ffi.NULL:
        raise MachineError(
            f"can't map a segment's header page: {os.strerror(ffi.errno)}",
            "Raise the limit of memory maps: `sysctl vm.max_map_count`.",
        )
    return page


def readonly(fd: int) -> int:
    """Reopen a segment read-only: a new descriptor (CLOEXEC) that can't be mapped for writing.

    Raises:
        MachineError: no descriptor is left.
    """
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _no_descriptor("(read-only)", error) from None


def hand_out(
    segments: Iterable[Segment], writer: int, epoch: int, beside: Iterable[Segment] = ()
) -> tuple[tuple[SegmentRef, ...], list[int]]:
    """What `writer` gets of an agent's segments: its own to write, under `epoch`, the others to
    read; and the descriptors beside them, the caller's to close. Those of `beside`, to be read,
    come last.

    Raises:
        MachineError: no descriptor is left; none of these stays open.
    """
    refs: list[SegmentRef] = []
    fds: list[int] = []
    try:
        for each in segments:
            own = each.role == writer
            refs.append(SegmentRef(each.role, each.size, epoch if own else each.epoch, len(fds)))
            fds.append(duplicate(each.fd) if own else readonly(each.fd))
        fds += [readonly(each.fd) for each in beside]
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return tuple(refs), fds


def duplicate(fd: int) -> int:
    """Another descriptor of the same file, CLOEXEC and above those that programs count on.

    Raises:
        MachineError: no descriptor is left.
    """
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        raise _no_descriptor("(own)", error) from None


def adopt(fd: int, size: int, role: int, epoch: int) -> Segment:
    """What another process handed over, checked, and held by a descriptor of our own that can't be
    written through.

    Raises:
        PeerError: it is something else, or could be resized under us.
        MachineError: no descriptor is left.
    """
    check(fd, size)
    return Segment(readonly(fd), size, role, epoch)


def check(fd: int, size: int) -> None:
    """Verify that a received descriptor is a sealed memory file of exactly this size, or of this
    size and an overflow area.

    Raises:
        PeerError: it is something else, or could be resized under us.
    """
    try:
        info = os.fstat(fd)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise PeerError(f"descriptor {fd} is no memory file: {error.strerror}") from None
    if not stat.S_ISREG(info.st_mode) or info.st_size not in (size, size + OVERFLOW_BYTES):
        raise PeerError(f"a segment of {info.st_size} bytes was handed over as one of {size}")
    if seals & _SEALS != _SEALS:
        raise PeerError(f"a segment of {size} bytes isn't sealed against resizing ({seals:#x})")


class Mapping:
    """A segment mapped whole, its data area twice; unmapped when nobody looks at it any more.

    Args:
        fd: descriptor; may be closed afterwards.
        size: bytes, as the kernel said.
        writable: for one's own outbox.

    Attributes:
        base: address of the header page.
        data: view of the data area, 2 * capacity bytes.

    Raises:
        PeerError: no sealed segment of this size.
        MachineError: it can't be mapped.
    """

    __slots__ = ("base", "data")

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        check(fd, size)
        if size < HEADER_BYTES:
            raise CorruptRingError(f"a segment of {size} bytes has no header page")
        base = lib.dsec_map(fd, size, int(writable))
        if base == ffi.NULL:
            raise MachineError(
                f"can't map a segment of {size:,} bytes: {os.strerror(ffi.errno)}",
                "Raise the limit of memory maps: `sysctl vm.max_map_count`.",
            )
        length = 2 * size - HEADER_BYTES
        self.base = ffi.gc(base, functools.partial(lib.dsec_unmap, size), length)
        view = memoryview(ffi.buffer(self.base, length))[HEADER_BYTES:]
        self.data = view if writable else view.toreadonly()

    def abandon(self) -> None:
        """Never unmap it: a forked child hasn't got it, and what lies there by then is not it."""
        ffi.gc(self.base, None)


class ProgressWord:
    """What a runner says it is doing, read from its outbox's header page.

    Maps one page read-only and keeps no descriptor. A value that is no Phase is the runner's
    fault and raises, as everything does that a peer may not write.

    Args:
        fd: any descriptor of the segment; may be closed afterwards.
    """

    __slots__ = ("_fields", "_page")

    def __init__(self, fd: int) -> None:
        self._page: CData | None = _map_page(fd)
        self._fields = ffi.new("uint32_t *"), ffi.new("uint64_t *"), ffi.new("int64_t *")

    def read(self) -> tuple[Phase, int, int]:
        """Return phase, since when (CLOCK_MONOTONIC, nanoseconds), and sequence number.

        Raises:
            LocalError: closed.
            CorruptRingError: the phase is none.
        """
        if self._page is None:
            raise LocalError("this progress word was closed")
        phase, seq, since = self._fields
        lib.dsec_progress_read(self._page, phase, seq, since)
        try:
            return Phase(phase[0]), int(since[0]), int(seq[0])
        except ValueError:
            raise CorruptRingError(f"a progress word names phase {phase[0]}") from None

    def close(self) -> None:
        """Unmap the page. Idempotent."""
        page, self._page = self._page, None
        if page is not None:
            lib.dsec_unmap_page(page)

    def __del__(self) -> None:
        self.close()


class CrashRecord(NamedTuple):
    """What a runner's last-gasp handler wrote (crash.py).

    Attributes:
        signal: the fatal signal.
        address: that the instruction touched; 0 where the signal was sent and no fault.
        phase: as the progress word said, IDLE where it said nothing sensible.
        seq: sequence number, as the progress word said.
        code: si_code of the signal.
        ip: instruction pointer.
        epoch: of the segment.
        time_ns: CLOCK_MONOTONIC.
        sender: process that sent the signal: 0 if it was a fault, or the process itself; -1 if it
            has no number here.
    """

    signal: int
    address: int
    phase: Phase
    seq: int
    code: int
    ip: int
    epoch: int
    time_ns: int
    sender: int = 0


def read_crash(fd: int) -> CrashRecord | None:
    """Read the crash record from a dead runner's outbox; None if it left none."""
    page = _map_page(fd)
    try:
        info = ffi.new("dsec_crash_info *")
        if lib.dsec_crash_read(page, info) != lib.DSEC_OK:
            return None
        phase = Phase(info.phase) if info.phase in Phase._value2member_map_ else Phase.IDLE
        return CrashRecord(
            info.signo, info.address, phase, info.seq, info.code, info.ip, info.epoch,
            info.time_ns, info.sender,
        )  # fmt: skip
    finally:
        lib.dsec_unmap_page(page)


def role_name(role: int) -> str:
    """`env` for Role.ENV and so on, also for a number that a peer made up."""
    return Role(role).name.lower() if role in Role._value2member_map_ else f"role {role}"
