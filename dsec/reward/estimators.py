"""The statistics behind weights: running moments, and a test for a jump of the variance.

Pure, and plain Python floats in a fixed order, so that a state that was saved and restored goes on
bit for bit. Knows no rewards and no weights.

Sources: B. P. Welford, Note on a method for calculating corrected sums of squares and products,
Technometrics 4 (1962); E. S. Page, Continuous inspection schemes, Biometrika 41 (1954), whose
one-sided CUSUM is applied here to the logarithms of block variances (as D. M. Hawkins, Cumulative
sum control charting, 1981, does for scale).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Final

BLOCK_STEPS: Final = 32
BLOCK_EVENTS: Final = 8
"""A block has at least so many samples, and so many that aren't 0: the variance of a sparse reward
over 32 steps says nothing."""
REFERENCE_BLOCKS: Final = 16
ALLOWANCE: Final = 1.0
STEP_MAX: Final = 3.0
LIMIT: Final = 12.0
"""Of the CUSUM, in standard deviations of a block's logarithm. One block adds 2 at most, so that
six outliers of a heavy-tailed reward, one block after the other, are no alarm yet."""
SPREAD_MIN: Final = 0.1
LEVEL_MIN: Final = 1e-300
LEVEL_MAX: Final = 1e300


@dataclass(slots=True)
class Saved:
    """Something whose whole state is its fields, all of them numbers or such things."""

    def state(self) -> list[Any]:
        """The fields, in order; JSON and msgpack take them as they are."""
        values = (getattr(self, each.name) for each in fields(self))
        return [
            value.state()
            if isinstance(value, Saved)
            else (list(value) if isinstance(value, list) else value)
            for value in values
        ]

    def put_back(self, state: list[Any]) -> None:
        """Take what `state` gave.

        Raises:
            ValueError: it has another number of fields.
        """
        names = [each.name for each in fields(self)]
        for name, value in zip(names, state, strict=True):
            own = getattr(self, name)
            if isinstance(own, Saved):
                own.put_back(value)
            else:
                setattr(self, name, type(own)(value))


@dataclass(slots=True)
class Moments(Saved):
    """Mean and variance of all samples so far (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Take one sample in."""
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.squares += off * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the samples themselves (ddof 0); 0.0 before there are two."""
        return self.squares / self.count if self.count else 0.0


@dataclass(slots=True)
class Scale(Saved):
    """Root mean square of all samples so far: divided by it, zeros stay zeros."""

    count: int = 0
    mean_square: float = 0.0

    def scaled(self, value: float, most: float) -> float:
        """Take one sample in; return it in units of the scale, within -most..most."""
        self.count += 1
        self.mean_square += (value * value - self.mean_square) / self.count
        if not self.mean_square:
            return 0.0
        return max(-most, min(most, value / math.sqrt(self.mean_square)))


@dataclass(slots=True)
class Jump(Saved):
    """Whether the variance of a sequence has jumped up.

    Samples are gathered into blocks. The first ones make the reference: their mean level, and how
    the logarithms of their levels are spread. The logarithm of each later block is compared with
    that, and goes into it unless it counts towards an alarm.

    Attributes:
        seen: the samples of the reference, whose mean the level of a block is about.
        count, events, square: of the current block: samples, those that aren't 0, their square
            deviations.
        levels: mean square deviations of the blocks before there is a reference.
        reference: what levels are compared with; 0.0 before there is one.
        logs: of the blocks that were no alarm.
        sum: Page's cumulative sum; blocks, level, pending: how many blocks it is of, their mean
            level, their logarithms.
    """

    seen: Moments = field(default_factory=Moments)
    count: int = 0
    events: int = 0
    square: float = 0.0
    levels: list[float] = field(default_factory=list)
    reference: float = 0.0
    logs: Moments = field(default_factory=Moments)
    sum: float = 0.0
    blocks: int = 0
    level: float = 0.0
    pending: list[float] = field(default_factory=list)

    def add(self, value: float, samples_min: int) -> float:
        """Take one sample in.

        Args:
            samples_min: how many the reference is made of at least.

        Returns:
            0.0, or at the end of the block that was too much: how many times the reference the
            blocks of the jump had. What follows makes a new reference.
        """
        if not self.logs.count:
            self.seen.add(value)
        off = value - self.seen.mean
        self.count += 1
        self.events += value != 0.0
        self.square += off * off
        if self.count < BLOCK_STEPS or self.events < BLOCK_EVENTS:
            return 0.0
        level = min(self.square / self.count, LEVEL_MAX)
        self.count = self.events = 0
        self.square = 0.0
        if self.logs.count:
            return self._compare(level)
        self.levels.append(level)
        if len(self.levels) >= REFERENCE_BLOCKS and self.seen.count >= samples_min:
            self.reference = math.fsum(self.levels) / len(self.levels)
            for each in self.levels:
                self.logs.add(self._log(each))
            self.levels.clear()
        return 0.0

    def _log(self, level: float) -> float:
        """The logarithm of a level, over the reference; finite where either is 0."""
        least = max(self.reference, LEVEL_MIN)
        return math.log1p(min(level / least, LEVEL_MAX))

    def _compare(self, level: float) -> float:
        """Page's test, one block further."""
        log = self._log(level)
        off = (log - self.logs.mean) / max(math.sqrt(self.logs.variance), SPREAD_MIN)
        self.sum += min(off, STEP_MAX) - ALLOWANCE
        self.pending.append(log)
        if self.sum <= 0.0:
            # It was no jump, so all of it belongs to what is usual; not only what was low.
            for each in self.pending:
                self.logs.add(each)
            self.pending.clear()
            self.sum = self.level = 0.0
            self.blocks = 0
            return 0.0
        self.blocks += 1
        self.level += (level - self.level) / self.blocks
        if self.sum <= LIMIT:
            return 0.0
        found = min(self.level / max(self.reference, LEVEL_MIN), LEVEL_MAX)
        self.put_back(Jump().state())
        return found
