"""Which servers a run has beside its agents: made here, and handed to the kernel, which knows no
names of any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec import tree
from dsec.engine.atoms import Atoms
from dsec.engine.recorder import Recorder

if TYPE_CHECKING:
    from dsec.hooks import Attendant
    from dsec.kernel.supervisor import Supervisor


def servers(run: Supervisor) -> list[Attendant]:
    """The servers of a run; a dry one has none."""
    found: list[Attendant] = [Recorder(run)] if tree.has_recorder(run.spec) else []
    if run.spec.pool is not None and not run.spec.dry:
        found.append(Atoms(run, run.spec.pool))
    return found
