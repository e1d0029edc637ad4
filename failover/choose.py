"""What `standby: auto` chooses: a level and an interval, from what was measured and may be spent.

Owns the arithmetic, and the sentences in which it is told. Pure: knows no environment, no codec and
no clock, and must import neither numpy nor gymnasium.

The model has two lines. A snapshot of `s` µs every `n` steps of `t` µs costs the share s / (n t)
of the time of stepping. A recovery takes the time to notice and to fence, to restore, and to replay
half of n steps on the average. The budget is a bound and not a goal: a failure is rare and a step
is not, so an interval is as long as the recovery stays as short as anybody would notice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NOTICE_MS = 1.0  # from the fault to the takeover: the signal handler rings, or the pidfd does
WAKE_MS = 0.5  # a sleeping clone runs, and touches its first pages
GOAL_MS = 2.0  # a shorter recovery is not worth a longer step
STEPS_FEW = 4  # nor is one by fewer steps than these
CHEAP = 0.1  # of the budget: below this share of it nobody needs to save
RECOVERY_MS_MAX = 1e9
STEPS_ENDLESS = 1 << 40

LEVELS = ("auto", "state", "fork", "replay", "none")


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured, in microseconds for one record (all environments of the runner).

    Attributes:
        step_us: one step.
        snapshot_us: capture a state and keep it; 0.0 if there is no faithful codec.
        restore_us: put it into a spare.
        fork_us: fork the runner; 0.0 if that is not possible.
        codec: the codec's name, for the sentences.
    """

    step_us: float
    snapshot_us: float = 0.0
    restore_us: float = 0.0
    fork_us: float = 0.0
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """What protects the runner from now on.

    Attributes:
        level: `state`, `fork`, `replay` or `none`.
        interval: steps from one snapshot to the next; 0 where there are none.
        cost: share of the time of stepping that snapshots take, by the arithmetic above.
        recovery_ms: expected from the fault to the next valid observation; 0.0 if nothing is
            carried on, or if it can't be told.
        notes: sentences for people.
    """

    level: str
    interval: int = 0
    cost: float = 0.0
    recovery_ms: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Option:
    level: str
    snapshot_us: float
    fixed_ms: float
    what: str


def choose(
    costs: Costs,
    *,
    budget: float,
    interval_max: int,
    standby: str = "auto",
    episode_steps: int = 0,
) -> Choice:
    """Choose a level and an interval.

    Args:
        costs: as measured; nothing negative.
        budget: the share of the time of a step that protection may cost, in [0, 1].
        interval_max: the most steps between two snapshots; what must be replayed is retained.
        standby: the level asked for. One that isn't `auto` is given if it can be, within the budget
            or not; the notes say so.
        episode_steps: how long episodes are, for the expectation of `replay`; 0 if unknown.

    Raises:
        ValueError: an argument is outside of its range.
    """
    _validate(costs, budget, interval_max, standby)
    if standby == "none":
        return Choice("none", notes=("no standby, as asked: a failure ends the episode",))
    if standby == "replay":
        return _replay(costs, episode_steps, ())
    options = _options(costs)
    notes: list[str] = []
    asked = [option for option in options if standby in ("auto", option.level)]
    if standby != "auto" and not asked:
        notes.append(f"{standby} was asked for and {_missing(standby)}")
        asked, standby = options, "auto"
    found = [_plan(option, costs, budget, interval_max) for option in asked]
    within = [choice for choice in found if choice.cost <= budget]
    if not within and found and standby != "auto":
        dear = found[0]
        notes.append(f"that is more than the budget of {_percent(budget)}; {standby} was asked for")
        return Choice(dear.level, dear.interval, dear.cost, dear.recovery_ms, (*dear.notes, *notes))
    if not within:
        for choice in found:
            notes.append(
                f"{choice.level} would cost {_percent(choice.cost)} even at the longest interval,"
                f" {interval_max} steps; the budget is {_percent(budget)}"
            )
        return _replay(costs, episode_steps, tuple(notes))
    best = min(within, key=lambda choice: choice.recovery_ms)  # the first of equals: state
    for choice in found:
        if choice is not best:
            notes.append(
                f"{choice.level} was not chosen: {_ms(choice.recovery_ms)} with a snapshot every"
                f" {choice.interval} steps"
            )
    return Choice(best.level, best.interval, best.cost, best.recovery_ms, (*best.notes, *notes))


def _validate(costs: Costs, budget: float, interval_max: int, standby: str) -> None:
    numbers = (costs.step_us, costs.snapshot_us, costs.restore_us, costs.fork_us)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError(f"costs are finite and not negative: {costs}")
    if not 0 <= budget <= 1:
        raise ValueError(f"a budget is a share between 0 and 1, not {budget}")
    if interval_max < 1:
        raise ValueError(f"interval_max is at least 1, not {interval_max}")
    if standby not in LEVELS:
        raise ValueError(f"standby is one of {', '.join(LEVELS)}, not {standby!r}")


def _options(costs: Costs) -> list[_Option]:
    """What can be had at all, the preferred one first."""
    options = []
    if costs.snapshot_us > 0:
        what = f"state by the codec {costs.codec}" if costs.codec else "state"
        fixed = NOTICE_MS + costs.restore_us / 1000
        options.append(_Option("state", costs.snapshot_us, fixed, what))
    if costs.fork_us > 0:
        options.append(_Option("fork", costs.fork_us, NOTICE_MS + WAKE_MS, "fork"))
    return options


def _plan(option: _Option, costs: Costs, budget: float, interval_max: int) -> Choice:
    """The interval for one level, and what follows from it."""
    step_us = max(costs.step_us, 1e-3)
    spare_us = max(0.0, (GOAL_MS - option.fixed_ms) * 1000)
    needed = _steps(option.snapshot_us, step_us, budget)
    cheap = _steps(option.snapshot_us, step_us, CHEAP * budget)
    enough = max(STEPS_FEW, math.floor(min(2 * spare_us / step_us, interval_max)))
    interval = min(max(needed, min(cheap, enough)), interval_max)
    cost = option.snapshot_us / (interval * step_us)
    replay_ms = interval * step_us / 2000
    recovery_ms = min(option.fixed_ms + replay_ms, RECOVERY_MS_MAX)
    costing = (
        f"{option.what}, every {interval} steps: {_percent(cost)} of the time of stepping"
        f" (a snapshot takes {_us(option.snapshot_us)}, a step {_us(costs.step_us)})"
    )
    recovering = (
        f"expected recovery {_ms(recovery_ms)}, of which {_ms(replay_ms)} to replay"
        f" {math.ceil(interval / 2)} steps"
    )
    return Choice(option.level, interval, cost, recovery_ms, (costing, recovering))


def _steps(snapshot_us: float, step_us: float, share: float) -> int:
    """The fewest steps over which a snapshot costs no more than this share of their time."""
    if share * step_us <= 0 or snapshot_us / (share * step_us) >= STEPS_ENDLESS:
        return STEPS_ENDLESS
    steps = max(1, math.ceil(snapshot_us / (share * step_us)))
    while snapshot_us / (steps * step_us) > share:  # a division was rounded down
        steps += 1
    return steps


def _replay(costs: Costs, episode_steps: int, notes: tuple[str, ...]) -> Choice:
    """A fresh spare and all actions since the episode began: free, until it is needed."""
    replay_ms = episode_steps * costs.step_us / 2000
    if episode_steps:
        expected = min(NOTICE_MS + replay_ms, RECOVERY_MS_MAX)
        told = (f"replay of the episode from its seed: {_ms(expected)} are to be expected",)
        return Choice("replay", 0, 0.0, expected, (*told, *notes))
    told = ("replay of the episode from its seed, as long as it has lasted",)
    return Choice("replay", 0, 0.0, 0.0, (*told, *notes))


def _missing(level: str) -> str:
    return {"state": "no codec is faithful", "fork": "this runner can't be forked"}[level]


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %"


def _us(number: float) -> str:
    return f"{number:,.0f} µs" if number >= 10 else f"{number:.2g} µs"


def _ms(number: float) -> str:
    return f"{number:,.0f} ms" if number >= 100 else f"{number:.2g} ms"
