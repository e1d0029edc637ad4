"""What `check_env` finds, as plain values: the schema of `dsec-kernel check --json`. Data only.

Times end in their unit. A number that wasn't measured is None.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

SCHEMA: Final = 1


class Determinism(msgspec.Struct, frozen=True):
    """Whether two seeded courses in fresh processes came out the same, bit for bit.

    Attributes:
        verdict: `yes`; `hash seed`: only with the same PYTHONHASHSEED, which all runners have;
            `no`.
        steps: how many were compared.
        step: the first step that differs (0: the reset); None if none does.
        what: of that step, as `observation`, `reward`, `terminated`, `truncated`, or `length`.
    """

    verdict: str
    steps: int
    step: int | None = None
    what: str = ""


class Holds(msgspec.Struct, frozen=True):
    """What the environment has open: names, process numbers, targets of descriptors."""

    threads: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


class Growth(msgspec.Struct, frozen=True):
    """What it gains in `batch` steps or resets: of two batches that which gained less.

    Attributes:
        measured: how many were made in the second batch; with fewer than `batch` the figures are
            extrapolated.
    """

    batch: int
    measured: int
    memory_kib: float
    descriptors: float
    threads: float
    children: float


class CodecTrial(msgspec.Struct, frozen=True):
    """A way to turn its state into bytes, as the trial found it."""

    name: str
    faithful: bool
    why: str = ""
    capture_us: float | None = None
    restore_us: float | None = None
    bytes: int | None = None


class Trial(msgspec.Struct, frozen=True):
    """Whether a copy of it, made in another way, goes on as it does; and if not, why."""

    faithful: bool
    why: str = ""


class Survival(msgspec.Struct, frozen=True):
    """One fault in a real run.

    Attributes:
        kind, step: what was planned.
        happened: it was seen to happen.
        survived: a successor went on.
        exact: with the very same trajectory.
        cause: of the death, as the kernel tells it.
        why: it was not exact.
        ms: from the fault until the successor could go on (of a hang: from its deadline).
    """

    kind: str
    step: int
    happened: bool
    survived: bool = False
    exact: bool = False
    cause: str = ""
    why: str = ""
    ms: float | None = None


class CheckReport(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        env: as it was named.
        sound: nothing is in `problems`.
        problems: sentences, the reasons for exit code 1.
        notes: sentences that are good to know.
        level, codec: how the kernel would keep its state by itself (standby: auto).
        step_us: median.
        opened: after construction; `stepped`: after the course.
        identical: the run with faults recorded what one without them did.
        lost: transitions that the run with faults lost.
        left: what was there when it had ended.
    """

    env: str
    sound: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    observation_space: str
    action_space: str
    construct_ms: float
    step_us: float
    deterministic: Determinism
    opened: Holds
    stepped: Holds
    per_1000_steps: Growth | None
    per_100_resets: Growth | None
    codecs: tuple[CodecTrial, ...]
    replay: Trial | None
    fork: Trial | None
    level: str
    codec: str
    faults: tuple[Survival, ...]
    identical: bool | None
    lost: int
    left: tuple[str, ...]
    seconds: float
    seed: int
    schema: int = SCHEMA

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
