"""Where a return code of the C core becomes an exception, and what that says.

Two faults, two families: a peer that wrote what it may not is a `CorruptRingError` that names the
segment and the position; everything that our caller did is a `LocalError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from dsec.errors import CorruptRingError, LocalError, RingInterrupted, RingTimeout
from dsec.ipc._ring import lib
from dsec.ipc.segment import role_name

if TYPE_CHECKING:
    from dsec.ipc._ring import CData

_FAULTS = {
    lib.DSEC_BAD_MAGIC: "magic number {found:#x} instead of {wanted:#x}",
    lib.DSEC_BAD_VERSION: "layout version {found}; this is {wanted}",
    lib.DSEC_BAD_ROLE: "its header claims role {found} instead of {wanted}",
    lib.DSEC_BAD_SIZE: "its header claims {found} bytes instead of {wanted}",
    lib.DSEC_BAD_TAIL: "tail {found} doesn't fit a reader at {position}",
    lib.DSEC_BAD_CURSOR: "its cursor {found} is outside the ring that ends at {position}",
    lib.DSEC_BAD_POSITION: "the record at {position} claims position {found}",
    lib.DSEC_BAD_MARK: "no record at {position}: mark {found:#x}",
    lib.DSEC_BAD_LENGTH: "the record at {position} claims {found} bytes; {wanted} are published",
    lib.DSEC_BAD_SHORT: "the record at {position} has {found} bytes; {wanted} make one",
    lib.DSEC_BAD_KIND: "the record at {position} has kind {found}",
    lib.DSEC_BAD_SEQ: "the record at {position} has sequence number {found} instead of {wanted}",
    lib.DSEC_BAD_EPOCH: "the record at {position} has epoch {found} after {wanted}",
}


def describe(fault: CData) -> str:
    """Put a dsec_fault into words."""
    text = _FAULTS[fault.what].format(
        found=fault.found, wanted=fault.wanted, position=fault.position
    )
    return f"{role_name(fault.role)} segment: {text}"


def fail(code: int, fault: CData, what: str) -> NoReturn:
    """Raise what `code` means; `what` is what was waited for or worked on."""
    if code == lib.DSEC_TIMEOUT:
        raise RingTimeout(f"timed out waiting for {what}")
    if code == lib.DSEC_INTERRUPTED:
        raise RingInterrupted(f"a signal came while waiting for {what}")
    if code == lib.DSEC_CORRUPT:
        raise CorruptRingError(describe(fault))
    if code == lib.DSEC_CLOSED:
        raise LocalError(f"{what}: used after close")
    if code == lib.DSEC_FULL:
        raise LocalError(f"{what}: a ring has at most {lib.DSEC_ROLES} readers")
    raise LocalError(f"{what}: wrong order of calls, or an argument outside its range")
