"""How the state of an agent's environments is kept: which codec, and what to say where none is.

The codecs and their self-check are `dsec.failover.codecs`'; this file binds one to each environment
of a stage, so that a snapshot is one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dsec.errors import SnapshotError
from dsec.failover.choose import Choice, Costs, choose
from dsec.failover.codecs import (
    Codec,
    Examined,
    beginning_of,
    codec_named,
    episodes_repeat,
    examine,
)
from dsec.failover.codecs.pending import Examination
from dsec.failover.codecs.selfcheck import Verdict
from dsec.ipc.frames import Kept, Protection
from dsec.runners import seeds
from dsec.runners.clone import ForkKeeping
from dsec.runners.construct import make_env
from dsec.runners.episode import EpisodeKeeping
from dsec.runners.guard import BETWEEN_MIN_S, SHARES
from dsec.runners.keeping import Keeping, StateKeeping
from dsec.runners.loop import Session
from dsec.runners.stage import NEXT_STEP, Stage
from dsec.sml.atom import Faith

CODECS_FOR_STATE = ("auto", "state")
"""The standbys with which a state may be kept as bytes."""
SPARED = (*CODECS_FOR_STATE, "replay")
"""Those with which a spare may wait for its predecessor's death."""

CAPTURES: Final = 4
Restore = Callable[[Sequence[bytes | memoryview]], None]


def examination(session: Session, stage: Stage) -> Examination | None:
    """The examination that `protect` needs, begun beside this process; None if it needs none."""
    start = session.start
    if start.failover.standby not in CODECS_FOR_STATE and not start.atoms:
        return None
    return Examination(stage.envs[0], seed=_seed(session))


def _seed(session: Session) -> int:
    return seeds.derive(session.start.seed, "protection")


def protect(
    session: Session, stage: Stage, examined: Examined | None = None
) -> tuple[Keeping | None, StateKeeping | None]:
    """Choose how these environments' state is kept: as the settings say, or (`auto`) by what was
    measured, and where that is not possible by clones of the whole process.

    They must have been reset. The kernel is told what was chosen, why, and why no more.

    Args:
        examined: what an `examination` has found; left out, it is done here where it is needed.

    Returns:
        How it is kept for a successor, and how for an atom; None where it isn't.
    """
    start = session.start
    standby = start.failover.standby
    state: StateKeeping | None = None
    notes: tuple[str, ...] = ()
    told = Protection(standby)
    keeping: Keeping | None = None
    seed = _seed(session)
    if standby in CODECS_FOR_STATE or start.atoms:
        examined = examined or examine(stage.envs[0], seed=seed)
        notes = examined.notes
        if examined.codec is not None:
            state, _ = _bound(session, stage, examined.codec.name, notes)
        level = standby
        if standby == "auto":
            choice, notes = _chosen(session, stage, examined, seed)
            level, interval = choice.level, choice.interval
            told = Protection(level, "", interval, examined.step_us, recovery_ms=choice.recovery_ms)
        if level == "state" and state is not None:
            keeping, state.notes = state, notes
        elif level == "replay" and standby == "auto":
            keeping = _replayed(session, stage, notes)
    if standby == "replay":
        found, notes = _episodes(session, stage, seed)
        keeping = None if found is None else _replayed(session, stage, ())
    if standby == "none":
        return None, state
    if keeping is None:
        keeping = ForkKeeping(session, notes if standby != "fork" else ())
    chosen = {"level": keeping.level, "codec": keeping.codec, "notes": keeping.notes}
    session.channel.send(Kept(0, msgspec.structs.replace(told, **chosen)))
    return keeping, state


def go_on(
    session: Session,
    stage: Stage,
    keeping: Keeping | None,
    *,
    trusted: bool,
    examined: Examined | None = None,
) -> tuple[Keeping | None, StateKeeping | None]:
    """As `protect`, where it may be decided already how the state is kept for a successor.

    Args:
        trusted: no codec has been found wrong.
        examined: as for `protect`.
    """
    if isinstance(keeping, StateKeeping):
        return keeping, keeping
    if keeping is None and trusted:
        return protect(session, stage, examined)
    if session.start.atoms and stage.codec and trusted:
        return keeping, bind(session, stage, stage.codec)[0]
    return keeping, None


def _chosen(
    session: Session, stage: Stage, examined: Examined, seed: int
) -> tuple[Choice, tuple[str, ...]]:
    """What `auto` chooses, by what everything costs; and the notes on it, the reason first."""
    start, n = session.start, len(stage.envs)
    costs = Costs(
        step=n * examined.step_us,
        capture=n * examined.capture_us,
        restore=n * examined.restore_us,
        fork=examined.fork_us,
        reach=start.ring_slots,
    )
    notes = examined.notes
    if examined.codec is None:  # with a codec it is never the quicker one, and costs a trial
        found, said = _episodes(session, stage, seed)
        notes += said
        if found is not None:
            begin_us = _capture_us(stage)
            costs = costs._replace(
                begin=begin_us, again=found.restore_us, episode=found.episode_steps
            )
    budget = start.failover.budget * SHARES[session.role]
    choice = choose(costs, budget, BETWEEN_MIN_S * 1e6)
    return choice, (f"auto: {choice.why}", *notes)


def _capture_us(stage: Stage) -> float:
    """What it costs to keep how an episode begins, without the reset that follows."""
    codec = beginning_of(stage.envs[0])
    took = []
    for _ in range(CAPTURES):
        began = time.thread_time()
        codec.capture()
        took.append(time.thread_time() - began)
    return min(took) * 1e6


def _episodes(session: Session, stage: Stage, seed: int) -> tuple[Verdict | None, tuple[str, ...]]:
    """What it costs to do episodes again, if they come out the same then; and why not."""
    if len(stage.envs) > 1:
        return None, ("replay: it is for one environment, not for a vector of them",)
    if session.start.caller:
        return None, ("replay: a caller may change its environment between two steps",)
    settings = session.start.env
    found = episodes_repeat(stage.envs[0], seed=seed, make=lambda: make_env(settings))
    return (None, (f"replay: {found.difference}",)) if found.difference else (found, ())


def _replayed(session: Session, stage: Stage, notes: tuple[str, ...]) -> Keeping:
    stage.watch_beginnings()
    return EpisodeKeeping(session, stage, notes)


def bind(session: Session, stage: Stage, codec: str) -> tuple[StateKeeping, Restore]:
    """The codec of this name for the environments of a stage.

    Raises:
        SnapshotError: there is no such codec for them.
    """
    return _bound(session, stage, codec, ())


def _bound(
    session: Session, stage: Stage, name: str, notes: tuple[str, ...]
) -> tuple[StateKeeping, Restore]:
    codecs: list[Codec] = [codec_named(name, env, globals_too=False) for env in stage.envs]
    stage.codec = name
    if len(codecs) == 1:
        only = codecs[0].capture

        def capture() -> Sequence[bytes]:
            return (only(),)
    else:

        def capture() -> Sequence[bytes]:
            return [codec.capture() for codec in codecs]

    def restore(parts: Sequence[bytes | memoryview]) -> None:
        for codec, part in zip(codecs, parts, strict=True):
            codec.restore(part)

    # No codec is given out for an environment that has not been tried in a scratch process.
    if session.start.caller != NEXT_STEP:
        return StateKeeping(session, capture, name, notes, faith=Faith.PROVEN), restore

    def capture_all() -> Sequence[bytes]:
        return (*capture(), bytes(stage.over))

    def restore_all(parts: Sequence[bytes | memoryview]) -> None:
        *own, over = parts
        if len(over) != len(stage.over):
            raise SnapshotError(f"{len(over)} ends of episodes for {len(stage.over)} environments")
        restore(own)
        stage.over = [bool(each) for each in over]

    return StateKeeping(session, capture_all, name, notes, faith=Faith.PROVEN), restore_all
