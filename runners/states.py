"""What a caller asks for beside steps: an agent's state, taken and put back.

Owns the two requests that are about all of a role's state. Both come in the action ring like any
other request (requests.py), so a state is put back at one place in the order of steps, in every
role, and again by a successor that replays what came after its predecessor's last snapshot.

    snapshot   answered by the environments' states; the reward role keeps its own (cuts.py)
    restore    env: codec, parts, observation; reward: codec and data, or None; anew: a text, from
               which whatever is random in the states is seeded, or empty
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs import (
    ambient,
    codec_named,
    examine,
    object_codec_named,
    seeded_anew,
)
from dsec.ipc.layout import FLAG_ASIDE, FLAG_FRESH
from dsec.runners import seeds
from dsec.runners.loop import Session
from dsec.runners.stage import Stage

NOT_BEGUN = "nothing has been reset yet, so there is no state to keep: call reset() first"


def take(stage: Stage) -> dict[str, Any]:
    """The state of a stage's environments, by a codec that has been tried on them.

    Raises:
        SnapshotError: none holds it, or nothing was reset yet; says why.
    """
    session = stage.session
    if any(seed is not None for seed in stage.first_seeds):
        raise SnapshotError(NOT_BEGUN)
    if not stage.codec:
        seed = seeds.derive(session.start.seed, "protection")
        examined = examine(stage.envs[0], seed=seed)
        if examined.codec is None:
            why = "; ".join(examined.notes)
            raise SnapshotError(f"no codec holds this environment's state: {why}")
        stage.codec = examined.codec.name
    parts = [codec_named(stage.codec, env).capture() for env in stage.envs]
    return {"codec": stage.codec, "parts": parts, "episode": stage.episodes}


def put(stage: Stage, asked: dict[str, Any], views: Any, flags: Any) -> None:
    """Let a stage's environments be in the state of a request, whose observation is written.

    Raises:
        SnapshotError: it is none of such environments.
    """
    given, record = asked["env"], stage.record
    parts = given["parts"]
    if len(parts) != len(stage.envs):
        raise SnapshotError(f"states of {len(parts)} environments for {len(stage.envs)}")
    observation = given["observation"]
    if len(observation) < record.fixed_bytes:
        raise SnapshotError(
            f"an observation of {len(observation)} bytes where {record.fixed_bytes} are due"
        )
    states = _anew(given["codec"], parts, asked["anew"], "env")
    for env, state in zip(stage.envs, states, strict=True):
        codec_named(given["codec"], env).restore(state)
    _put_ambient(stage.session, asked)
    stage.episodes = given["episode"]
    stage.restored()
    seen = record.views(bytearray(observation[: record.fixed_bytes]))
    record.open_tail(seen.obs, observation[record.fixed_bytes :])
    for i in range(len(stage.envs)):
        record.layout.write(views, i, record.layout.read(seen.obs, i))
    stage.over = [False for _ in stage.envs]
    flags[...] = FLAG_ASIDE | FLAG_FRESH


def put_actor(actor: Any, asked: dict[str, Any], session: Session) -> None:
    """The same for a reward, where the request has something of it.

    Raises:
        SnapshotError: it is no state of such an object.
    """
    given = asked["reward"]
    if given is None:
        return
    [state] = _anew(given["codec"], [given["data"]], asked["anew"], "reward")
    object_codec_named(given["codec"], actor).restore(state)
    _put_ambient(session, asked)


def _put_ambient(session: Session, asked: dict[str, Any]) -> None:
    """Last of all, what is the process's own, where an atom has that apart."""
    state = ambient.decoded(asked["random"])
    if asked["anew"]:

        def number(kind: str, bits: int) -> int:
            role = session.role.name.lower()
            return seeds.derive(asked["anew"], role, "fork", kind, bits=bits)

        state = session.ambient.anew(state, number)
    session.ambient.restore(state)


def _anew(codec: str, parts: Sequence[bytes], seed: str, role: str) -> Sequence[bytes]:
    if not seed:
        return parts
    return [
        seeded_anew(codec, part, seeds.derive(seed, role, "fork", i, bits=128))
        for i, part in enumerate(parts)
    ]
