"""Which dsec this is: version and place, so that the processes of a run can tell whether all run
the same one.

Two copies meet where one is installed and another lies in the working directory or on PYTHONPATH.
Their frames and segments may differ, and then anything may happen; so whoever starts a process
tells it who it is, and that one refuses before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import dsec

VARIABLE = "DSEC_ORIGIN"  # in the environment of everything that a run starts
MISMATCH = "VersionMismatch"  # the type of the error


def origin() -> str:
    """`0.1.0 in /usr/lib/python3/site-packages/dsec`."""
    return f"{dsec.__version__} in {Path(dsec.__file__).resolve().parent}"


def mismatch(environment: Mapping[str, str] = os.environ) -> str:
    """Why this process can't serve the one that started it; empty if it can."""
    theirs, ours = environment.get(VARIABLE, origin()), origin()
    if theirs == ours:
        return ""
    return (
        f"the supervisor is dsec-kernel {theirs}, and what it starts is {ours}: remove one of them,"
        " or take it out of PYTHONPATH and the working directory"
    )
