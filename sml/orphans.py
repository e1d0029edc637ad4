"""Pools that nobody has any more: taken away by whoever finds them.

Owns the proof that there is nobody: neither the lock of a writer nor that of a kernel (named.py),
and a header that says what was meant to be. What can't be read is left for a person to look at.
"""

from __future__ import annotations

import contextlib
import os
import time

from dsec.errors import DsecError, PoolAbsent
from dsec.sml import named
from dsec.sml._pool import ffi, lib

UNFINISHED_S = 60.0
"""The age from which on a segment that never became a pool has no maker any more."""


def discard(name: str) -> bool:
    """Take away what a dead kernel left, unless it may outlive it: for whoever starts a run under
    the same name again, and for the end of a run whose server was killed. Reads the header only.

    Returns:
        Is the name free now?

    Raises:
        PoolOwned: its writer or its kernel lives.
    """
    try:
        segment = named.orphan(name)
    except PoolAbsent:
        return True
    with contextlib.closing(segment):
        flags = _flags(segment)
        if flags is None or flags & lib.ASA_PERSIST:
            return False
        segment.unlink()
        return True


def sweep() -> list[tuple[str, int]]:
    """Take away what kernels of this user have left that were killed with all that belonged to
    them, and pools whose makers died while they made them.

    Returns:
        Names and bytes of what is gone.
    """
    gone = []
    for name in named.names():
        with contextlib.suppress(DsecError), contextlib.closing(named.orphan(name)) as segment:
            if _may_go(segment):
                segment.unlink()
                gone.append((name, segment.size))
    return gone


def _may_go(segment: named.Named) -> bool:
    found, flags = os.fstat(segment.fd), _flags(segment)
    if flags is None or found.st_uid != os.geteuid():
        return False
    if flags & _UNFINISHED:
        return time.time() - found.st_mtime > UNFINISHED_S
    return bool(flags & lib.ASA_BOUND) and not flags & lib.ASA_PERSIST


_UNFINISHED = 1 << 31


def _flags(segment: named.Named) -> int | None:
    """What the header says; None if it is none that this version can read."""
    if not segment.size:
        return _UNFINISHED
    with contextlib.closing(segment.map()) as memory:
        view, base = ffi.new("asa_view *"), ffi.from_buffer("uint8_t[]", memory)
        rc = lib.asa_view_open(view, base, segment.size)
        ffi.release(base)
    if rc == lib.ASA_OK:
        return int(view.flags)
    return _UNFINISHED if view.fault.what == lib.ASA_BAD_UNFINISHED else None
