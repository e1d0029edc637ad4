"""Publish a record whose size isn't known before it is written.

Owns the choice between the ring and the overflow area (ipc/overflow.py), and the waits that either
may take. Knows no space: the caller has written the record's fixed part where it claimed room for
it, and brings the rest as bytes.
"""

from __future__ import annotations

from dsec.errors import RingInterrupted, RingTimeout
from dsec.ipc.overflow import Spill
from dsec.ipc.ring import FLAG_OVERFLOW, Outbox
from dsec.runners.loop import RING_SLICE_S, Session


class Publisher:
    """Commits records with a tail; one for each outbox."""

    def __init__(self, session: Session, outbox: Outbox) -> None:
        self._session = session
        self._outbox = outbox
        self._spill = Spill(outbox)

    def commit(self, seq: int, kind: int, flags: int, fixed: int, tail: bytes) -> None:
        """Commit the claimed record, whose first `fixed` bytes are written, with this tail.

        A claim that follows another starts where that did, so what is written stays.

        Raises:
            RecordTooLarge: the tail fits neither ring nor overflow area.
            MachineError: there is no memory for it.
        """
        outbox = self._outbox
        descriptor = b""
        if tail and self._spill.wants(fixed, len(tail)):
            descriptor = self._put(tail)
            tail = descriptor
            flags |= FLAG_OVERFLOW
        nbytes = fixed + len(tail)
        if tail:
            at = self._session.claim(outbox, nbytes) + fixed
            outbox.buffer[at : at + len(tail)] = tail
        outbox.commit(seq, kind, flags, nbytes)
        if descriptor:
            self._spill.keep(descriptor)

    def _put(self, tail: bytes) -> bytes:
        while True:
            try:
                return self._spill.put(tail, RING_SLICE_S)
            except (RingTimeout, RingInterrupted):
                self._session.look()
