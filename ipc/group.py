"""Lockstep: step N environments, each in its own process, with one C call.

The caller is the policy of N agents. `Lockstep` sends every lane its action, waits for all of
them, and gathers observations, rewards and flags into the caller's arrays, with the GIL released.
`GroupSegment` is the doorbell page that the env runners of one vector share. This file knows
buffers, not numpy and not spaces: a vector environment says where its fields lie.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dsec.errors import CorruptRingError, LocalError, MachineError, RingTimeout
from dsec.ipc import overflow, segment
from dsec.ipc._ring import ffi, lib
from dsec.ipc.faults import describe, fail
from dsec.ipc.ring import SPIN_DEFAULT, Outbox, Reader
from dsec.ipc.segment import Segment

if TYPE_CHECKING:
    from dsec.ipc._ring import CData

_step = lib.dsec_group_step


class GroupSegment:
    """The doorbell of a vector, mapped for writing by its caller and all its env runners.

    What it says is a hint; anybody in the group may spoil it and nobody is harmed but by a delay
    of some milliseconds.

    Args:
        fd: descriptor from `GroupSegment.create` or a Wire frame; may be closed afterwards.

    Raises:
        PeerError: no sealed segment. CorruptRingError: no doorbell. MachineError: can't be mapped.
    """

    __slots__ = ("page",)

    def __init__(self, fd: int) -> None:
        segment.check(fd, segment.HEADER_BYTES)
        base = lib.dsec_map_page(fd, 1)
        if base == ffi.NULL:
            raise MachineError(
                f"can't map a vector's doorbell: {os.strerror(ffi.errno)}",
                "Raise the limit of memory maps: `sysctl vm.max_map_count`.",
            )
        self.page: CData = ffi.gc(base, lib.dsec_unmap_page, segment.HEADER_BYTES)
        fault = ffi.new("dsec_fault *")
        if lib.dsec_group_open(self.page, fault):
            raise CorruptRingError(describe(fault))

    @staticmethod
    def create(name: str) -> Segment:
        """Make the segment (its maker hands it out and maps it like everybody else)."""
        return segment.create_group(name)


@dataclass(frozen=True, slots=True)
class Piece:
    """One field of every lane's payload, and the array that holds it for all lanes.

    Attributes:
        offset: of the field in the payload of each record, bytes.
        array: C-contiguous buffer of N equal parts, one for each lane.
    """

    offset: int
    array: Any


class Lockstep:
    """N environments stepped together.

    Lanes keep their current observation record until the next step, so that what follows the
    fixed part (final observations, infos) can be read with `extras`. A lane that has sent its last
    observation (`ended`) takes no further part.

    Args:
        lanes: per environment this process' policy outbox (with the env as a reader) and its
            reader of that env.
        actions: where the actions are taken from and where they go in an action record.
        sinks: where rewards, flags and observation leaves lie in an observation record and which
            arrays they are copied to.
        action_bytes: payload of an action record.
        fixed_bytes: least payload of an observation record; what is longer has extras.
        group: the doorbell that the env runners ring; without one the caller wakes up for each.
        spin: polls before it sleeps.

    Raises:
        LocalError: a piece does not divide among the lanes or does not fit its record.
    """

    __slots__ = ("_actions", "_group", "_keep", "_lanes", "_sinks", "_state", "c", "lanes")

    def __init__(
        self,
        lanes: Sequence[tuple[Outbox, Reader]],
        *,
        actions: Sequence[Piece],
        sinks: Sequence[Piece],
        action_bytes: int,
        fixed_bytes: int,
        group: GroupSegment | None = None,
        spin: int = SPIN_DEFAULT,
    ) -> None:
        if not 0 < len(lanes) <= lib.DSEC_LANES_MAX:
            raise LocalError(f"{len(lanes)} lanes; a group has 1 to {lib.DSEC_LANES_MAX}")
        self.lanes = list(lanes)
        self._group = group
        self._state = ffi.new("dsec_lane[]", len(lanes))
        self.c = ffi.new("dsec_group *")
        self.c.lane = self._state
        self.c.nlanes = len(lanes)
        self.c.page = group.page if group is not None else ffi.NULL
        self.c.poll.spin = spin
        self.c.busy = 1  # the first observations are awaited without an action
        for i, (outbox, reader) in enumerate(self.lanes):
            self.replace(i, outbox, reader)
        self.c.action_bytes = action_bytes
        self.c.fixed_bytes = fixed_bytes
        self._actions = self._pieces(actions, action_bytes, writable=False)
        self._sinks = self._pieces(sinks, fixed_bytes, writable=True)
        self.c.action, self.c.nactions = self._actions[0], len(actions)
        self.c.sink, self.c.nsinks = self._sinks[0], len(sinks)

    def _pieces(
        self, pieces: Sequence[Piece], limit: int, *, writable: bool
    ) -> tuple[CData, list[CData]]:
        table = ffi.new("dsec_piece[]", max(1, len(pieces)))
        keep = []
        for entry, piece in zip(table, pieces, strict=False):
            view = memoryview(piece.array)
            part, rest = divmod(view.nbytes, len(self.lanes))
            if rest or not view.c_contiguous or not 0 <= piece.offset <= limit - part:
                raise LocalError(
                    f"an array of {view.nbytes} bytes at offset {piece.offset} doesn't divide "
                    f"among {len(self.lanes)} records of {limit} bytes"
                )
            if writable and view.readonly:
                raise LocalError(f"the array at offset {piece.offset} is read-only")
            memory = ffi.from_buffer("uint8_t[]", piece.array, require_writable=writable)
            entry.memory, entry.offset, entry.nbytes = memory, piece.offset, part
            keep.append(memory)
        return table, keep

    def gather(self, timeout_s: float) -> bool:
        """Wait for the observations that are due: the first ones, or those of a step cut short.

        Returns, raises: as step.
        """
        code = lib.dsec_group_gather(self.c, timeout_s)
        if code < 0:
            self._fail(code)
        return code > 0

    def step(self, timeout_s: float) -> bool:
        """Send the actions, wait for all lanes, gather. One C call.

        Returns:
            True if some lane has extras or has ended; False is the common case.

        Raises:
            RingTimeout: some lanes did not answer; names them (`missing`). Call `gather` to wait
                on, after `drop` or `replace` of those that are dead.
            RingInterrupted: a signal came; look at the control channels and call `gather`.
            CorruptRingError: an env wrote what it may not; names the lane.
            LocalError: closed, or a step is still under way.
        """
        code = _step(self.c, timeout_s)
        if code < 0:
            self._fail(code)
        return code > 0

    @property
    def missing(self) -> list[int]:
        """Lanes that owe an observation, or that have no room for their action."""
        return self._in_state(lib.DSEC_LANE_PENDING, lib.DSEC_LANE_DUE)

    @property
    def ended(self) -> list[int]:
        """Lanes whose current observation is their last."""
        return self._in_state(lib.DSEC_LANE_ENDED)

    @property
    def with_extras(self) -> list[int]:
        """Lanes whose current record is longer than its fixed part."""
        fixed = self.c.fixed_bytes
        return [
            i
            for i, lane in enumerate(self._state)
            if lane.state in (lib.DSEC_LANE_IDLE, lib.DSEC_LANE_ENDED)
            and lane.reader.now.nbytes > fixed
        ]

    def extras(self, lane: int) -> memoryview:
        """What follows the fixed part of the lane's current record; valid until the next step."""
        now, peer = self._state[lane].reader.now, self.lanes[lane][1].peer
        return overflow.tail(peer, now.flags, now.offset, now.nbytes, self.c.fixed_bytes)

    def seq(self, lane: int) -> int:
        """Sequence number of the lane's current observation."""
        return int(self._state[lane].reader.now.seq)

    def flags(self, lane: int) -> int:
        """Flags of the lane's current observation, as in its header."""
        return int(self._state[lane].reader.now.flags)

    def sent(self, lane: int) -> None:
        """The caller has sent this lane something by itself: its answer is due, call `gather`."""
        self._state[lane].state = lib.DSEC_LANE_PENDING
        self.c.busy, self.c.notable = 1, 0

    def drop(self, lane: int) -> None:
        """Leave this lane out from now on; its rows in the arrays stay as they are."""
        self._state[lane].state = lib.DSEC_LANE_OFF

    def replace(self, lane: int, outbox: Outbox, reader: Reader) -> None:
        """Put a new incarnation into this lane. Its next observation is due: call `gather`."""
        self.lanes[lane] = (outbox, reader)
        entry = self._state[lane]
        entry.box, entry.reader = outbox.c, reader.c
        entry.state, entry.started = lib.DSEC_LANE_PENDING, 0
        self.c.busy = 1

    def _in_state(self, *states: int) -> list[int]:
        return [i for i, lane in enumerate(self._state) if lane.state in states]

    def _fail(self, code: int) -> NoReturn:
        if code == lib.DSEC_TIMEOUT:
            raise RingTimeout(f"no observation from lanes {self.missing}")
        bad = int(self.c.bad_lane)
        outbox, reader = self.lanes[bad]
        # A corrupt cursor is found by the outbox, everything else by the reader.
        fault = reader.c.fault if reader.c.fault.what else outbox.c.fault
        fail(code, fault, f"lane {bad} of {len(self.lanes)}")
