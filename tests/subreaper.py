"""Being the process that orphans come to, as a supervisor is."""

from __future__ import annotations

import ctypes

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def set_subreaper(on: bool) -> None:
    """Let orphaned descendants come to this process, or not."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def is_subreaper() -> bool:
    """Whether they do."""
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return bool(value.value)
