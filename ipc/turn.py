"""A runner's step on its rings in one call: publish an answer, wait for the next record.

Env and policy runners answer one record after the other, each answer of the same size. For them
`Turn.take` is commit, release, claim and next; it says where to read and where to write as rows,
the numbers of a ring's grains, and checks that the record is the one that is due. What is unusual
(no room or no record within the limit, a signal, a record of another kind) it leaves to the calls
of `Outbox` and `Reader`, which do the same one by one.
"""

from __future__ import annotations

from typing import NoReturn

from dsec.ipc._ring import ffi, lib
from dsec.ipc.faults import fail
from dsec.ipc.ring import Reader
from dsec.ipc.segment import role_name

ROW_BITS = 26
ROW_MASK = (1 << ROW_BITS) - 1
FLAGS_SHIFT = 2 * ROW_BITS
_ANY = 0xFFFF_FFFF

_take = lib.dsec_turn_take


class Turn:
    """The answers to one reader's records.

    Args:
        reader: of what is answered; the answers go to the outbox it belongs to.
        kind, nbytes: of the answers.
        due_kind, due_bytes: of the records; `exact` if none may be longer.
        ahead: number of the record that follows answer n, less n.
        phase: for the progress word, while the record is worked on.
        timeout_s: limit of a wait for room, and of one for a record.
    """

    __slots__ = ("_c", "_reader")

    def __init__(
        self,
        reader: Reader,
        *,
        kind: int,
        nbytes: int,
        due_kind: int,
        due_bytes: int,
        exact: bool,
        ahead: int,
        phase: int,
        timeout_s: float,
    ) -> None:
        self._reader = reader
        fields = {
            "reader": reader.c,
            "timeout_s": timeout_s,
            "ahead": ahead,
            "kind": kind,
            "nbytes": nbytes,
            "due_kind": due_kind,
            "due_least": due_bytes,
            "due_most": due_bytes if exact else _ANY,
            "phase": phase,
        }
        self._c = ffi.new("dsec_turn *", fields)

    @property
    def keep(self) -> bool:
        """Are the records kept, and not given back when they are answered?"""
        return bool(self._c.keep)

    @keep.setter
    def keep(self, value: bool) -> None:
        self._c.keep = value

    def take(self, seq: int, flags: int = 0) -> int:
        """Publish answer `seq`, which is claimed and written; wait for the record after it.

        Returns:
            `row | record_row << ROW_BITS | record_flags << FLAGS_SHIFT`: where the next answer
            goes, where the record lies, its flags. -1 if a record came that is not what is due:
            then it is the reader's current one, to be looked at by its attributes.

        Raises:
            RingTimeout, RingInterrupted: the answer is published and what it answers given back;
                go on with `Outbox.claim` and `Reader.next`.
            CorruptRingError, LocalError: as these.
        """
        got = _take(self._c, seq, flags)
        if got < 0:
            if got != lib.DSEC_OTHER:
                self._fail(got)
            self._reader.look()
            return -1
        return got

    def _fail(self, code: int) -> NoReturn:
        reader = self._reader
        box = reader.mine
        if code == lib.DSEC_CORRUPT and box.c.fault.what:
            fail(code, box.c.fault, f"{role_name(box.role)} outbox")
        fail(code, reader.c.fault, f"a turn on the {role_name(reader.peer.role)} ring")
