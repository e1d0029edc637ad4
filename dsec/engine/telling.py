"""From the kernel's reports to what a program is told of them. Pure.

Owns the words and the bounds: a cause is one sentence, a report is never longer than a message.
"""

from __future__ import annotations

from dsec.engine import talk
from dsec.engine.advice import advice
from dsec.report import Death, Failover

REPORT_CHARS_MAX = 40_000


def lost(death: Death) -> talk.Lost:
    """An agent has ended by a fault."""
    error = death.error
    lines = [death.cause, error.traceback if error is not None else death.stderr_tail]
    return talk.Lost(
        agent=death.agent,
        cause=death.cause.partition("\n")[0],
        report="\n".join(filter(None, [*lines, advice(death)]))[:REPORT_CHARS_MAX],
        error=error.type if error is not None else "",
        message=error.message if error is not None else "",
        lookup=error is not None and error.lookup,
    )


def survived(failover: Failover) -> talk.Survived:
    """A role that was lost goes on."""
    return talk.Survived(
        agent=failover.agent,
        role=failover.role.name.lower(),
        cause=failover.death.cause.partition("\n")[0],
        seq=failover.seq,
        level=failover.level,
        exact=failover.exact,
        why=failover.why,
        replayed=failover.replayed,
        total_ms=failover.total_ms,
    )
