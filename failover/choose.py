"""Which level protects an environment for the budget, and with how long a recovery. Pure.

Costs come in, as they were measured; a choice and its reason come out. Every level is asked the
same two questions: can it be had for the budget, and how long would a recovery take? Of those that
can be had the quickest to recover is chosen. How often snapshots are really taken, the guard of
each runner decides from then on, by what they cost there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOLERANCE: Final = 2.0
"""By how much the budget may be missed for want of room in the rings."""
WAKE_MS: Final = 1.0  # to wake a clone, whose pages are copied when it writes to them
LEVELS: Final = ("state", "replay", "fork")  # the earlier one where two are as quick


class Costs(NamedTuple):
    """What things cost, in microseconds of processor time; 0.0: that can't be had.

    Attributes:
        step: of the environment, or of all of a vector.
        capture, restore: of a state by a codec.
        begin, again: to keep how an episode begins, and to begin it once more, reset included.
        fork: of the whole process.
        episode: steps of an episode, on average; 0.0: none has ended.
        reach: steps that the rings hold between two snapshots.
    """

    step: float
    capture: float = 0.0
    restore: float = 0.0
    begin: float = 0.0
    again: float = 0.0
    fork: float = 0.0
    episode: float = 0.0
    reach: int = 1024


class Choice(NamedTuple):
    """A level (`none`: no other can be had), steps from one snapshot to the next, their share of
    the time of the steps, how long a recovery takes on average, and why, as a sentence."""

    level: str
    interval: int
    share: float
    recovery_ms: float
    why: str


def choose(costs: Costs, budget: float, between_min_us: float = 0.0) -> Choice:
    """The level of the quickest recovery that can be had.

    Args:
        budget: share of the time of steps that snapshots may take.
        between_min_us: no snapshot is taken sooner after another.
    """
    step = max(costs.step, 1e-3)
    found, refused = [], []
    for level in LEVELS:
        choice = _offer(level, costs, step, budget, between_min_us)
        if choice is None:
            continue
        if choice.share > budget * TOLERANCE:
            every = f"every {choice.interval:,} steps"
            refused.append(f"{level} would take {choice.share:.0%} of their time, {every}")
        else:
            found.append(choice)
    if not found:
        why = "; ".join(refused) or "there is no way to keep this environment's state"
        return Choice("none", 0, 0.0, 0.0, f"{why}; the budget is {budget:.1%}")
    best = min(found, key=lambda choice: choice.recovery_ms)
    others = [f"{each.level} in {each.recovery_ms:.2g} ms" for each in found if each is not best]
    why = f"recovers in about {best.recovery_ms:.2g} ms for {best.share:.1%} of the time of steps"
    if others:
        why += f", where {' and '.join(others)} would"
    return best._replace(why="; ".join((f"{best.level} {why}", *refused)))


def _offer(
    level: str, costs: Costs, step: float, budget: float, between_min_us: float
) -> Choice | None:
    """What a level would cost and give; None if it can't be had at all."""
    if level == "replay":
        if not costs.begin or not costs.episode:
            return None
        share = costs.begin / (costs.episode * step)
        recovery = (costs.again + costs.episode * step / 2) / 1e3
        return Choice(level, max(1, round(costs.episode)), share, recovery, "")
    taking = costs.capture if level == "state" else costs.fork
    if not taking:
        return None
    wanted = max(taking / budget, between_min_us) / step
    interval = max(1, min(round(wanted), costs.reach))
    back = costs.restore / 1e3 if level == "state" else WAKE_MS
    return Choice(level, interval, taking / (interval * step), back + interval * step / 2e3, "")
