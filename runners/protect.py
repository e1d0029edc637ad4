"""How the state of an agent's environments is kept: which codec, and what to say where none is.

The codecs and their self-check are `dsec.failover.codecs`'; this file binds one to each environment
of a stage, so that a snapshot is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsec.errors import SnapshotError
from dsec.failover.codecs import Codec, codec_named, episodes_repeat, find_codec
from dsec.ipc.frames import Kept, Protection
from dsec.runners import seeds
from dsec.runners.clone import ForkKeeping
from dsec.runners.construct import make_env
from dsec.runners.episode import EpisodeKeeping
from dsec.runners.guard import Keeping, StateKeeping
from dsec.runners.loop import Session
from dsec.runners.stage import NEXT_STEP, Stage

CODECS_FOR_STATE = ("auto", "state")
"""The standbys with which a state may be kept as bytes."""
SPARED = (*CODECS_FOR_STATE, "replay")
"""Those with which a spare may wait for its predecessor's death."""

Restore = Callable[[Sequence[bytes | memoryview]], None]


def protect(session: Session, stage: Stage) -> Keeping | None:
    """Choose how these environments' state is kept, by the settings and by what is possible: by
    a codec that is faithful, or else by clones of the whole process.

    They must have been reset. The kernel is told what was chosen, and why no more.
    """
    standby = session.start.failover.standby
    if standby == "none":
        return None
    keeping: Keeping | None = None
    notes: tuple[str, ...] = ()
    seed = seeds.derive(session.start.seed, "protection")
    if standby == "replay":
        keeping, notes = _replayed(session, stage, seed)
    elif standby != "fork":
        codec, said = find_codec(stage.envs[0], seed=seed)
        notes += said
        if codec is not None:
            keeping, _ = _bound(session, stage, codec.name, notes)
    if keeping is None:
        keeping = ForkKeeping(session, notes)
    chosen = Protection(keeping.level, keeping.codec, notes=keeping.notes)
    session.channel.send(Kept(0, chosen))
    return keeping


def _replayed(session: Session, stage: Stage, seed: int) -> tuple[Keeping | None, tuple[str, ...]]:
    """Episodes that are done again, if they come out the same; and why not."""
    if len(stage.envs) > 1:
        return None, ("replay: it is for one environment, not for a vector of them",)
    if session.start.caller:
        return None, ("replay: a caller may change its environment between two steps",)
    settings = session.start.env
    found = episodes_repeat(stage.envs[0], seed=seed, make=lambda: make_env(settings))
    if found.difference:
        return None, (f"replay: {found.difference}",)
    stage.watch_beginnings()
    return EpisodeKeeping(session, stage), ()


def bind(session: Session, stage: Stage, codec: str) -> tuple[Keeping, Restore]:
    """The codec of this name for the environments of a stage.

    Raises:
        SnapshotError: there is no such codec for them.
    """
    return _bound(session, stage, codec, ())


def _bound(
    session: Session, stage: Stage, name: str, notes: tuple[str, ...]
) -> tuple[Keeping, Restore]:
    codecs: list[Codec] = [codec_named(name, env) for env in stage.envs]
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

    if session.start.caller != NEXT_STEP:
        return StateKeeping(session, capture, name, notes), restore

    def capture_all() -> Sequence[bytes]:
        return (*capture(), bytes(stage.over))

    def restore_all(parts: Sequence[bytes | memoryview]) -> None:
        *own, over = parts
        if len(over) != len(stage.over):
            raise SnapshotError(f"{len(over)} ends of episodes for {len(stage.over)} environments")
        restore(own)
        stage.over = [bool(each) for each in over]

    return StateKeeping(session, capture_all, name, notes), restore_all
