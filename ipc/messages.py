"""Bytes through a ring, one C call a message: for those who pass messages and not arrays.

Runners build their records in place (`Outbox.claim`, `Reader.next`) and read them without a copy.
Whoever has a bytes object, or wants one, pays less with `Sender.put` and `Receiver.get`, which
claim, copy and commit, or wait, copy and give back, in one call. The records are ordinary ones:
numbered, woken and bounded as all are. Payloads whose end lies beside the ring (overflow.py) don't
go through here.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from dsec.ipc._ring import ffi, lib
from dsec.ipc.faults import fail
from dsec.ipc.ring import Outbox, Reader
from dsec.ipc.segment import role_name

BURST = 256
"""Most messages that `Receiver.get_many` returns."""
_ROOM = 4096  # payloads up to this are copied by the call that waits for them

_put = lib.dsec_put
_take = lib.dsec_take
_next_many = lib.dsec_next_many
_from_buffer = ffi.from_buffer
_HEADS = struct.Struct("<8xQI12x")  # of a dsec_record: offset, nbytes


class Sender:
    """Writes messages of one kind to an outbox's ring, numbered from `first_seq` on."""

    __slots__ = ("_c", "_outbox")

    def __init__(self, outbox: Outbox, kind: int, *, first_seq: int = 0) -> None:
        self._outbox = outbox
        self._c = ffi.new("dsec_sender *", {"box": outbox.c, "kind": kind, "seq": first_seq})

    @property
    def seq(self) -> int:
        """Number of the next message."""
        return int(self._c.seq)

    def put(self, data: bytes | bytearray | memoryview, timeout_s: float) -> None:
        """Publish one message, waiting for room where there is none.

        Args:
            data: contiguous bytes; copied.

        Raises:
            RingTimeout: no room within the limit; nothing is published.
            RingInterrupted: a signal came; look at the control channel and put it again.
            RecordTooLarge: the record would take more than half the ring.
            CorruptRingError: a reader's cursor is outside the ring.
            LocalError: closed, or the kind is none.
        """
        if type(data) is not bytes:
            data = _from_buffer("uint8_t[]", data)
        code = _put(self._c, data, len(data), timeout_s)
        if code:
            if code == lib.DSEC_TOO_LARGE:
                self._outbox.claim(len(data), 0.0)  # which says how much is too much
            fail(code, self._outbox.c.fault, f"room on the {role_name(self._outbox.role)} ring")


class Receiver:
    """Reads the messages of a reader's ring as bytes objects, each given back once it is copied.

    The reader's own methods may be used in between; its attributes say nothing of what came here.
    """

    __slots__ = ("_c", "_data", "_heads", "_into", "_reader", "_records", "_room")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._into = ffi.new("uint8_t[]", _ROOM)
        self._room = ffi.buffer(self._into)
        fields = {"reader": reader.c, "into": self._into, "room": _ROOM}
        self._c = ffi.new("dsec_receiver *", fields)
        self._records = ffi.new("dsec_record[]", BURST)
        self._heads = memoryview(ffi.buffer(self._records))
        self._data = reader.peer.buffer

    def get(self, timeout_s: float) -> bytes:
        """Wait for the next message.

        Raises:
            RingTimeout, RingInterrupted, CorruptRingError, LocalError: as `Reader.next`.
        """
        n = _take(self._c, timeout_s)
        if n >= 0:
            message: bytes = self._room[0:n]
            return message
        if n != lib.DSEC_TOO_LARGE:
            self._fail(n)
        now = self._reader.c.now
        message = self._data[now.offset : now.offset + now.nbytes].tobytes()
        self._reader.release()
        return message

    def get_many(self, timeout_s: float) -> list[bytes]:
        """Wait for a message, and take with it those that are there, at most BURST.

        Raises:
            RingTimeout, RingInterrupted, CorruptRingError, LocalError: as `Reader.next`.
        """
        n = _next_many(self._reader.c, timeout_s, 0, self._records, BURST)
        if n < 0:
            self._fail(n)
        data = self._data
        heads = _HEADS.iter_unpack(self._heads[: n * _HEADS.size])
        messages = [data[offset : offset + nbytes].tobytes() for offset, nbytes in heads]
        self._reader.release()
        return messages

    def _fail(self, code: int) -> NoReturn:
        role = self._reader.peer.role
        fail(code, self._reader.c.fault, f"a record on the {role_name(role)} ring")
