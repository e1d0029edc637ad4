"""dsec.engine: the composition root, which puts configuration, kernel and run directory together.

This is what the command line calls and what another program embeds. It is the only room that knows
all the others; it decides nothing about processes (the kernel does) and prints nothing (a `View`
does). The process that calls `run` becomes the supervisor and must never import numpy, Gymnasium
or torch, so nothing here does.
"""

from __future__ import annotations

from dsec.engine.advice import advice
from dsec.engine.aio import Engine
from dsec.engine.calls import Event
from dsec.engine.fork import Fork
from dsec.engine.progress import Snapshot
from dsec.engine.replay import Replay, replay
from dsec.engine.run import Outcome, RunOptions, guard, run, validate
from dsec.engine.showing import View
from dsec.engine.summary import Exit, error_object, totals
from dsec.engine.sync import SyncEngine
from dsec.errors import EngineDied, EngineRefused
from dsec.report import AgentReport, Death, Failover, RunReport

__all__ = [
    "AgentReport",
    "Death",
    "Engine",
    "EngineDied",
    "EngineRefused",
    "Event",
    "Exit",
    "Failover",
    "Fork",
    "Outcome",
    "Replay",
    "RunOptions",
    "RunReport",
    "Snapshot",
    "SyncEngine",
    "View",
    "advice",
    "error_object",
    "guard",
    "replay",
    "run",
    "totals",
    "validate",
]
