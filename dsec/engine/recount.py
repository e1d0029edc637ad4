"""Steps counted in the journal itself, for a run whose recorder could not tell them to the end.

A recorder that is killed for good, or that a second interrupt doesn't wait for, has written more
than it has told. Only what says how much a block holds is read: the supervisor has no numpy, and
needs none.
"""

from __future__ import annotations

from pathlib import Path

from dsec.errors import JournalError
from dsec.report import RunReport


def recount(report: RunReport, run_dir: Path) -> None:
    """Raise the agents' steps to what the journal in `run_dir` holds; episodes and returns stay as
    they were last told. Nothing changes where there is no journal."""
    from dsec.runners.journal import FILE_NAME, JournalReader

    try:
        with JournalReader(run_dir / FILE_NAME, salvage=True) as journal:
            for each in journal.index.agents:
                agent = report.agents.get(each.declaration.agent)
                if agent is None:
                    continue
                # Of all batches up to the last, the steps that nobody made because of a death.
                lost = journal.trailer(each.batches[-1]).lost if each.batches else 0
                written = each.transitions * each.declaration.num_envs - lost
                agent.steps = max(agent.steps, written)
    except JournalError:
        return
