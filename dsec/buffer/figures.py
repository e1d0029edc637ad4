"""What a trajectory buffer tells of itself and what it hands out: batches, sizes, holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Transitions drawn from a buffer; n of them.

    Attributes:
        obs, next_obs: (n, *shape) of the dtype, structure and kind (numpy, or tensors on their
            device) that was pushed. Where `done`, next_obs is obs: what a finished episode led to
            was never pushed, and no target may use it.
        action: (n, *shape), likewise.
        reward: (n,), of the reward dtype.
        done: bool (n,).
        returns: float64 (n,), the discounted return from each step on.
        step: int64 (n,), the step's number among those of its agent, from 0.
        agent: the agent of each.
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    done: Any
    returns: Any
    step: NDArray[np.int64]
    agent: list[str]


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and steps of a buffer.

    Attributes:
        total: bytes that count against the threshold: the four that follow.
        full: observations and actions that are whole.
        waiting: those that wait for their chunk to be full, and what it takes to find all others.
        compressed: blocks of the arena that are in use, or preallocated.
        index: rewards, flags, where episodes begin.
        stored: bytes of `compressed` that chunks lie in.
        steps: steps whose reward is there.
        observed: steps whose observation is there.
        plain: what a list of the observed steps' observations would take.
    """

    total: int
    full: int
    waiting: int
    compressed: int
    index: int
    stored: int
    steps: int
    observed: int
    plain: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a buffer will take, known before it takes it; in bytes.

    Attributes:
        fixed: at once.
        preallocated: at once, for the compressed tier.
        most: if nothing can be compressed; never more than the threshold.
        plain: what a list of as many observations and actions would take.
    """

    fixed: int
    preallocated: int
    most: int
    plain: int


class Hold:
    """Keeps what it was made for; `with buffer.hold(...)`, or `release()`. Again is no error."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def release(self) -> None:
        """Let the steps go the way of all others."""
        self._release()

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def mib(nbytes: int) -> str:
    """A number of bytes for a message: `2,048 MiB`, or `0.25 MiB`."""
    size = nbytes / MIB
    return f"{size:,.0f} MiB" if size >= 10 else f"{size:.3g} MiB"
