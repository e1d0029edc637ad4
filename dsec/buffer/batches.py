"""Batches of transitions, drawn from the lanes of a buffer and put together.

Owns which transitions can be drawn and what a batch is made of; what is in a lane is lane.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsec.buffer import spans
from dsec.buffer.figures import Batch
from dsec.buffer.lane import Lane
from dsec.buffer.leaves import Tree, alongside, joined
from dsec.buffer.spans import Span
from dsec.errors import LocalError


def draw(
    random: np.random.Generator, ranges: Sequence[list[Span]], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw steps, each with the same probability and independently of the others.

    Args:
        ranges: of each lane, what can be drawn of it.

    Returns:
        int64 (size,) twice: the place of a lane, and the step there.

    Raises:
        LocalError: there is nothing to draw from yet.
    """
    counts = [spans.count(each) for each in ranges]
    total = sum(counts)
    if not total:
        raise LocalError("there is nothing to sample yet: push a step and its successor first")
    drawn = random.integers(total, size=size)
    bounds = np.cumsum([0, *counts])
    of = np.searchsorted(bounds, drawn, side="right") - 1
    steps = np.empty(size, np.int64)
    for i in np.unique(of):
        rows = of == i
        steps[rows] = spans.nth(ranges[i], drawn[rows] - bounds[i])
    return of, steps


def batch(
    lanes: Sequence[Lane],
    trees: tuple[Tree, Tree],
    decay: float,
    of: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> Batch:
    """The transitions at these steps of these lanes.

    Args:
        trees: the structure of observations, and of actions.
        decay: of the returns.
        of, steps: as `draw` returns them.
    """
    n, picked = len(steps), np.unique(of)
    parts = [(np.flatnonzero(of == i), lanes[i]) for i in picked]
    found = [_rows(lane, decay, steps[rows]) for rows, lane in parts]
    if len(found) == 1:
        columns = found[0]
    else:
        back = np.argsort(np.concatenate([rows for rows, _ in parts]))
        columns = [joined(column, back) for column in zip(*found, strict=True)]
    obs, action = trees
    k, tail = len(obs.leaves), len(obs.leaves) + len(action.leaves)
    reward, done, returns = columns[tail + k :]
    return Batch(
        obs=obs.build(columns[:k]),
        action=action.build(columns[k:tail]),
        reward=reward,
        next_obs=obs.build(columns[tail : tail + k]),
        done=done,
        returns=returns,
        step=steps,
        agent=[lanes[i].agent for i in of] if len(picked) > 1 else [lanes[picked[0]].agent] * n,
    )


def _rows(lane: Lane, decay: float, steps: NDArray[np.int64]) -> list[Any]:
    """Observations and actions, next observations, reward, done and return of steps."""
    n, places = len(steps), steps % lane.tiers.length
    done = lane.dones[places]
    after = np.where(done, steps, steps + 1)
    read = lane.read(np.concatenate([steps, after]))
    k = len(lane.obs.leaves)
    returns = lane.returns(decay, steps)
    now = [leaf[:n] for leaf in read]
    last = [lane.rewards[places], done, returns]
    kind = lane.obs.leaves[0]  # rewards and flags come as tensors where observations do
    return [*now, *(leaf[n:] for leaf in read[:k]), *(alongside(each, kind) for each in last)]
