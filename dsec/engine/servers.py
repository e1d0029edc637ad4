"""Which servers a run has beside its agents: made here, and handed to the kernel, which knows no
names of any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsec import tree
from dsec.engine.recorder import Recorder

if TYPE_CHECKING:
    from dsec.hooks import Attendant
    from dsec.kernel.supervisor import Supervisor


def servers(run: Supervisor) -> list[Attendant]:
    """The servers of a run."""
    return [Recorder(run)] if tree.has_recorder(run.spec) else []
