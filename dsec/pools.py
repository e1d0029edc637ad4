"""The pools of Agent State Atoms on this machine: what they hold, why, and what may go.

The public face of dsec.sml.survey, for the command dsec-rdma-gc and for programs that do the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dsec.sml.reclaim import Retention, Share, Why
from dsec.sml.survey import Survey, pools
from dsec.sml.survey import collect as _collect
from dsec.sml.survey import look as _look

__all__ = ["Retention", "Share", "Survey", "Why", "collect", "pools", "survey"]


def survey(names: Sequence[str] = (), retention: Retention | None = None) -> list[Survey]:
    """Look at pools; changes nothing.

    Args:
        names: which; by default all that there are.
        retention: what is to be kept of a pool; by default the last two atoms of each agent.

    Raises:
        PoolAbsent: there is none of one of these names.
    """
    return [_look(name, retention or Retention(), time.time()) for name in names or pools()]


def collect(
    name: str, retention: Retention | None = None, *, persisted_too: bool = False
) -> Survey:
    """Free what nobody holds of a pool whose kernel is gone, or the whole pool.

    Args:
        retention: as in `survey`.
        persisted_too: take away the whole pool also where it was kept for a later run
            (pool.persist), unless an atom in it is held. Atoms on disk stay.

    Raises:
        PoolAbsent: there is none of this name.
        PoolOwned: its kernel lives.
    """
    kept = retention or Retention()
    return _collect(name, kept, time.time(), persisted_too=persisted_too)
