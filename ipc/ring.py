"""Rings as Python sees them: `Outbox` writes one, `Reader` reads a `Peer`'s.

With segment.py, overflow.py, group.py, join.py and crash.py this is the one place that touches
cffi. Shared words are loaded and stored only in C; this file turns return codes into exceptions and
otherwise stays out of the way: `next`, `release`, `claim` and `commit` are one call each.

A mapping lives as long as a view of it: closing a handle makes its methods raise, and the memory is
unmapped when the last memoryview or array on it is gone.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, NoReturn

from dsec.errors import CorruptRingError, LocalError, RecordTooLarge
from dsec.ipc._ring import ffi, lib
from dsec.ipc.faults import describe, fail
from dsec.ipc.overflow import Area
from dsec.ipc.segment import Mapping, role_name

if TYPE_CHECKING:
    from dsec.ipc.group import GroupSegment

KIND_OBS = lib.DSEC_KIND_OBS
KIND_ACTION = lib.DSEC_KIND_ACTION
KIND_REWARD = lib.DSEC_KIND_REWARD
KIND_END = lib.DSEC_KIND_END

FLAG_BOUNDARY = lib.DSEC_FLAG_BOUNDARY
FLAG_END = lib.DSEC_FLAG_END
FLAG_URGENT = lib.DSEC_FLAG_URGENT
FLAG_OVERFLOW = lib.DSEC_FLAG_OVERFLOW
FLAG_REQUEST = lib.DSEC_FLAG_REQUEST

RECORD_HEADER_BYTES = lib.DSEC_HEAD
SPIN_DEFAULT = 1000

_claim = lib.dsec_claim
_commit = lib.dsec_commit
_enter = lib.dsec_enter
_next = lib.dsec_next
_try_next = lib.dsec_try_next
_release = lib.dsec_release
_unpack = struct.Struct("<QQIIHH").unpack_from  # dsec_record: seq offset nbytes epoch kind flags


def stride(nbytes: int) -> int:
    """Bytes that a record with a payload of `nbytes` takes in a ring."""
    return int(lib.dsec_stride(nbytes))


def watch_signal(signo: int) -> None:
    """Let this signal cut ring waits short even when it arrives while they poll.

    Call it after the Python handler is installed: that is kept and called. Without it a signal
    still interrupts a sleeping wait, but one that lands during the polling is only seen when the
    wait ends.

    Raises:
        LocalError: the signal can't be handled.
    """
    code = lib.dsec_watch_signal(signo)
    if code:
        raise LocalError(f"signal {signo} can't be watched: {os.strerror(code)}")


class Peer:
    """Another role's outbox, mapped read-only.

    Args:
        fd: descriptor of the segment; may be closed afterwards.
        size: bytes, as the kernel said.
        role: whose it is, as the kernel said.

    Attributes:
        buffer: read-only view of the data area, mapped twice: 2 * capacity bytes.
        area: where the ends of large records lie (overflow.py).

    Raises:
        PeerError: no sealed segment of this size.
        CorruptRingError: its header is not what it must be.
        MachineError: it can't be mapped.
    """

    __slots__ = ("_mapping", "area", "c", "capacity", "epoch", "role")

    def __init__(self, fd: int, size: int, role: int) -> None:
        self._mapping: Mapping | None = Mapping(fd, size, writable=False)
        self.c = ffi.new("dsec_peer *")
        fault = ffi.new("dsec_fault *")
        if lib.dsec_peer_open(self.c, self._mapping.base, size, role, fault):
            raise CorruptRingError(describe(fault))
        self.area = Area(fd, size, writable=False)
        self.role = role
        self.capacity = int(self.c.capacity)
        self.epoch = int(self.c.epoch)

    @property
    def buffer(self) -> memoryview:
        if self._mapping is None:
            raise LocalError(f"the {role_name(self.role)} peer was closed")
        return self._mapping.data

    def close(self) -> None:
        """Forget the mapping; readers of it raise LocalError from now on. Idempotent."""
        lib.dsec_peer_close(self.c)
        self._mapping = None
        self.area.close()


class Outbox:
    """The segment that this process writes: its ring, its cursors on others, its progress word.

    Opening an outbox that a dead incarnation left continues its ring at the tail: what was never
    committed does not exist, everything committed stays.

    Args:
        fd: descriptor, open for writing; may be closed afterwards.
        size: bytes.
        role: this process' role.
        epoch: written into each record; the segment's own by default.

    Attributes:
        buffer: writable view of the data area, mapped twice: 2 * capacity bytes.
        capacity: bytes of the ring.

    Raises:
        PeerError, CorruptRingError, MachineError: as for Peer.
    """

    __slots__ = ("_group", "_mapping", "_peers", "area", "c", "capacity", "role")

    def __init__(self, fd: int, size: int, role: int, *, epoch: int | None = None) -> None:
        self._mapping: Mapping | None = Mapping(fd, size, writable=True)
        self.c = ffi.new("dsec_outbox *")
        if lib.dsec_outbox_open(
            self.c, self._mapping.base, size, role, -1 if epoch is None else epoch
        ):
            raise CorruptRingError(describe(self.c.fault))
        self.area = Area(fd, size, writable=True)
        self.role = role
        self.capacity = int(self.c.capacity)
        self._peers: dict[int, Peer] = {}
        self._group: GroupSegment | None = None

    @property
    def buffer(self) -> memoryview:
        if self._mapping is None:
            raise LocalError(f"the {role_name(self.role)} outbox was closed")
        return self._mapping.data

    @property
    def tail(self) -> int:
        """Position after the last record committed."""
        return int(self.c.tail)

    @property
    def epoch(self) -> int:
        return int(self.c.epoch)

    @property
    def at(self) -> int:
        """Number of the record that the progress word names."""
        return int(self.c.seq)

    @property
    def spin(self) -> int:
        """How often a wait polls (with sched_yield between) before it sleeps; 0 = sleep at once."""
        return int(self.c.poll.spin)

    @spin.setter
    def spin(self, polls: int) -> None:
        self.c.poll.spin = polls

    @property
    def record_bytes_max(self) -> int:
        """Largest payload that `claim` takes: a record may take half the ring."""
        low, high = 0, self.capacity // 2
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if stride(middle) <= self.capacity // 2 else (low, middle - 1)
            )
        return low

    def add_reader(self, peer: Peer, *, eventfd: int = -1) -> None:
        """Let that role's cursor hold this writer back, and wake it when it sleeps.

        A second call for the same role replaces the first.

        Args:
            peer: the reading role's outbox.
            eventfd: written instead of the futex wake-up, for a reader that sleeps in an event
                loop (`Reader.arm`). The caller keeps it open.

        Raises:
            CorruptRingError: the cursor is outside the ring.
            LocalError: closed, or the role can't read this ring.
        """
        code = lib.dsec_add_follower(self.c, peer.c, eventfd)
        if code:
            fail(code, self.c.fault, f"{role_name(self.role)} outbox")
        self._peers[peer.role] = peer

    def remove_reader(self, role: int) -> None:
        """Forget a reader: its cursor no longer holds this writer back. Unknown roles are fine."""
        lib.dsec_remove_follower(self.c, role)
        self._peers.pop(role, None)

    def claim(self, nbytes: int, timeout_s: float) -> int:
        """Find room for a payload, waiting for the slowest reader where there is none.

        Nobody sees anything before `commit`. A second claim replaces the first.

        Returns:
            Offset into `buffer` at which `nbytes` may be written.

        Raises:
            RingTimeout: no room within the limit; nothing changed.
            RingInterrupted: a signal came; look at the control channel and claim again.
            RecordTooLarge: the record would take more than half the ring.
            CorruptRingError: a reader's cursor is outside the ring; names that reader.
            LocalError: closed.
        """
        offset = _claim(self.c, nbytes, timeout_s)
        if offset < 0:
            self._fail_claim(offset, nbytes)
        return offset

    def commit(self, seq: int, kind: int, flags: int, nbytes: int) -> None:
        """Publish the claimed record and wake the readers that wait for it.

        Args:
            seq: sequence number.
            kind: KIND_OBS ... KIND_END.
            flags: FLAG_END and FLAG_URGENT wake every sleeping reader, however much it waits for.
            nbytes: payload bytes really written, at most those claimed.

        Raises:
            LocalError: nothing is claimed, or an argument is out of range. Nothing is published.
        """
        code = _commit(self.c, seq, kind, flags, nbytes)
        if code:
            fail(code, self.c.fault, f"{role_name(self.role)} outbox")

    def enter(self, phase: int, seq: int) -> None:
        """Say in the progress word which user code runs from now on."""
        _enter(self.c, phase, seq)

    def note(self, seq: int, episodes: int, lost: int) -> None:
        """Note what is counted from record `seq` on, which is published next, for a successor: see
        `recall.tally`. Who takes over notes it of the last record that is published.

        Args:
            episodes: that have ended.
            lost: records that stand for a step whose outcome nobody knows.
        """
        lib.dsec_tally_note(self.c, seq, episodes, lost)

    def join_group(self, group: GroupSegment) -> None:
        """Ring this vector's doorbell after each commit."""
        self.c.group = group.page
        self._group = group

    def close(self) -> None:
        """Forget the mapping; readers that used this outbox raise LocalError. Idempotent."""
        lib.dsec_outbox_close(self.c)
        self._mapping = None
        self.area.close()
        self._group = None
        self._peers.clear()

    def abandon(self) -> None:
        """In a forked child, which has the handle and not the mapping: forget both."""
        if self._mapping is not None:
            self._mapping.abandon()
        self.close()

    def _fail_claim(self, code: int, nbytes: int) -> NoReturn:
        if code == lib.DSEC_TOO_LARGE:
            raise RecordTooLarge(
                f"a record of {nbytes:,} bytes on the {role_name(self.role)} ring of "
                f"{self.capacity:,}; at most {self.record_bytes_max:,} fit. Use more ring_slots"
            )
        fail(code, self.c.fault, f"room on the {role_name(self.role)} ring")


class Reader:
    """One role's reading of one ring. Its cursor lies in `mine`, the records in `peer`.

    `next` makes the following record the current one and sets the attributes; `release` gives it
    back. Several records may be held: `next` goes on without a release.

    Attributes:
        seq, kind, flags, epoch: of the current record's header.
        nbytes, offset: where its payload is in `peer.buffer`; valid until it is released.

    Raises:
        CorruptRingError: my cursor is not inside the peer's ring.
        LocalError: a handle is closed, or that role has no ring.
    """

    __slots__ = (
        "_view",
        "c",
        "epoch",
        "flags",
        "kind",
        "mine",
        "nbytes",
        "offset",
        "peer",
        "seq",
    )

    def __init__(self, mine: Outbox, peer: Peer) -> None:
        self.c = ffi.new("dsec_reader *")
        self.mine = mine
        self.peer = peer
        code = lib.dsec_reader_open(self.c, mine.c, peer.c)
        if code:
            fail(code, self.c.fault, f"{role_name(peer.role)} ring")
        self._view = memoryview(ffi.buffer(ffi.addressof(self.c, "now")))
        self.seq = self.offset = self.nbytes = self.epoch = self.kind = self.flags = 0

    def next(self, timeout_s: float, then: int = 0) -> None:
        """Wait for the next record and make it the current one.

        The progress word says IDLE while this waits, and (then, seq) when it returns.

        Raises:
            RingTimeout: nothing came within the limit.
            RingInterrupted: a signal came; look at the control channel and wait again.
            CorruptRingError: the writer wrote what it may not; names it.
            LocalError: closed.
        """
        code = _next(self.c, timeout_s, then)
        if code:
            fail(code, self.c.fault, f"a record on the {role_name(self.peer.role)} ring")
        self.seq, self.offset, self.nbytes, self.epoch, self.kind, self.flags = _unpack(self._view)

    def try_next(self, then: int = 0) -> bool:
        """As `next`, without waiting: False if no record is there."""
        code = _try_next(self.c, then)
        if code == -1:
            return False
        if code:
            fail(code, self.c.fault, f"a record on the {role_name(self.peer.role)} ring")
        self.seq, self.offset, self.nbytes, self.epoch, self.kind, self.flags = _unpack(self._view)
        return True

    def pass_by(self, seq: int) -> None:
        """Step over the published records before `seq`, which are held until a release."""
        if code := lib.dsec_pass(self.c, seq):
            fail(code, self.c.fault, f"a record on the {role_name(self.peer.role)} ring")

    def look(self) -> None:
        """Set the attributes to the current record's, which turn.py leaves alone."""
        self.seq, self.offset, self.nbytes, self.epoch, self.kind, self.flags = _unpack(self._view)

    def wait(self, min_records: int, timeout_s: float) -> bool:
        """Sleep until about that many more records of the current size are published.

        An END or urgent record ahead ends the wait at once; half a ring counts as enough.

        Returns:
            False if the limit passed first.

        Raises:
            RingInterrupted, CorruptRingError, LocalError: as for next.
        """
        code = lib.dsec_wait(self.c, min_records, timeout_s)
        if code == lib.DSEC_TIMEOUT:
            return False
        if code:
            fail(code, self.c.fault, f"records on the {role_name(self.peer.role)} ring")
        return True

    def release(self) -> None:
        """Give the current record, and all before it, back to the writer."""
        code = _release(self.c)
        if code:
            fail(code, self.c.fault, f"{role_name(self.peer.role)} ring")

    def release_prior(self) -> None:
        """Give back the records before the current one and keep that one."""
        code = lib.dsec_release_prior(self.c)
        if code:
            fail(code, self.c.fault, f"{role_name(self.peer.role)} ring")

    def arm(self, min_records: int = 1) -> bool:
        """Ask to be woken by eventfd when about that many more records are there.

        Returns:
            False if they are there already: read them, no wake-up will come.
        """
        code = lib.dsec_arm(self.c, min_records)
        if code == lib.DSEC_EMPTY:
            return True
        if code:
            fail(code, self.c.fault, f"{role_name(self.peer.role)} ring")
        return False

    def disarm(self) -> None:
        """Take `arm` back; one wake-up may still be on its way."""
        code = lib.dsec_disarm(self.c)
        if code:
            fail(code, self.c.fault, f"{role_name(self.peer.role)} ring")

    @property
    def available(self) -> int:
        """Bytes published after the current record."""
        return int(lib.dsec_available(self.c))
