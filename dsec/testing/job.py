"""What a probe is told to find out. Apart, because who orders one must not import what probes."""

from __future__ import annotations

import msgspec

from dsec.ipc.frames import EnvSettings


class Job(msgspec.Struct, frozen=True):
    """What is to be found out.

    Attributes:
        env: as a runner constructs it.
        seed: of the environment and of the actions.
        steps: of the course, at most; `seconds` is its limit, too.
        parts: `leaks` and `codecs`, which follow the course.
        ppid: who started the process, and takes it along.
    """

    env: EnvSettings
    seed: int
    steps: int
    seconds: float
    parts: tuple[str, ...] = ()
    ppid: int = 0
