"""dsec.doctor: what this machine can do for dsec-kernel, and what to change.

`examine` reads the machine and judges it; `judge` is the pure half, from Readings to Lines. Nothing
is changed on the machine, and nothing is started but one program that asks for a namespace.
"""

from __future__ import annotations

from dsec.doctor.machine import checks as _machine
from dsec.doctor.reader import read
from dsec.doctor.readings import Limit, Link, Readings
from dsec.doctor.remote import checks as _remote
from dsec.doctor.report import Line, Report, Verdict, Wants

__all__ = ["Limit", "Line", "Link", "Readings", "Report", "Verdict", "Wants", "examine", "judge"]


def judge(readings: Readings, wants: Wants) -> Report:
    """What the readings mean for what is wanted. Pure."""
    return Report((*_machine(readings, wants), *_remote(readings, wants)))


def examine(wants: Wants) -> Report:
    """Read this machine and judge it. Takes some tens of milliseconds; raises nothing: what can't
    be read is a line that says so."""
    return judge(read(), wants)
