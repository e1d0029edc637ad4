"""dsec.testing: find out what an environment survives, and prove it in tests of one's own.

    report = check_env("CartPole-v1")          what `dsec-kernel check` does
    plan = FaultPlan.load("plan.json")         faults that a run has again, one by one

Above all other rooms but the command line. Nothing here is loaded before it is used: what needs
Hypothesis or pytest (the extra `testing`) is in modules of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsec.testing.check import check_env as check_env
    from dsec.testing.leaks import Snapshot as Snapshot
    from dsec.testing.report import CheckReport as CheckReport

_HOMES = {
    "CheckReport": "dsec.testing.report",
    "Snapshot": "dsec.testing.leaks",
    "check_env": "dsec.testing.check",
}
__all__ = ["CheckReport", "Snapshot", "check_env"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
