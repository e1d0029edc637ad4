"""dsec.failover.codecs: ways to turn a living object into bytes and back, one file for each.

    found = examine(env, seed=7, make=lambda: make_env(settings))
    data = found.codec.capture()
    codec_named(found.codec.name, other_env).restore(data)

Owns the choice among them. `attributes` is the compiled plan over Python objects; `ale` and
`mujoco` are the same plan with the state that those packages keep in C; `pickle` is the last
resort. None is given out before it has been tried in a scratch process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs import actors, ale, mujoco, pickled, selfcheck, tensors
from dsec.failover.codecs.anew import seeded_anew
from dsec.failover.codecs.beginnings import BeginningCodec, Restarted
from dsec.failover.codecs.contract import Codec
from dsec.failover.codecs.plan import AttributePlan
from dsec.failover.codecs.selfcheck import LIMIT_S
from dsec.failover.codecs.writing import Kind

__all__ = [
    "BeginningCodec",
    "Codec",
    "Examined",
    "beginning_of",
    "codec_named",
    "episodes_repeat",
    "examine",
    "find_codec",
    "find_object_codec",
    "object_codec_named",
    "seeded_anew",
]

_NATIVE_TAGS = ((ale.Emulator.tag, "ale"), (mujoco.Data.tag, "mujoco"))


@dataclass(frozen=True, slots=True)
class Examined:
    """What protects an environment, and what everything costs.

    Attributes:
        codec: bound to the environment; None if none holds it faithfully (then only a fork does).
        notes: sentences for people: why others, or all, were refused; what was not tried.
        checked: whether the codec has been tried in a scratch process.
        step_us, capture_us, restore_us, fork_us: medians in microseconds; 0.0 if not measured.
        state_bytes: of one captured state.
    """

    codec: Codec | None
    notes: tuple[str, ...] = ()
    checked: bool = False
    step_us: float = 0.0
    capture_us: float = 0.0
    restore_us: float = 0.0
    fork_us: float = 0.0
    state_bytes: int = 0


def _natives() -> dict[type, Kind]:
    return {**ale.kinds(), **mujoco.kinds(), **tensors.kinds()}


def codec_named(name: str, env: Any, *, globals_too: bool = True) -> Codec:
    """The codec of this name for an environment constructed as the captured one was.

    Args:
        globals_too: with the global generators of the process; without them for who keeps those
            apart (ambient.py).

    Raises:
        SnapshotError: there is no codec of this name.
    """
    if name == "pickle":
        return pickled.PickleCodec(env, globals_too=globals_too)
    if name not in ("attributes", "ale", "mujoco"):
        raise SnapshotError(f"no codec is called {name!r}")
    ale.prepare(env)
    return AttributePlan(env, name=name, natives=_natives, globals_too=globals_too)


def beginning_of(env: Any) -> BeginningCodec:
    """How an environment's episodes begin, as bytes (see beginnings.py)."""
    return BeginningCodec(env, _natives)


def episodes_repeat(
    env: Any, *, seed: int, make: Callable[[], Any], limit_s: float = LIMIT_S
) -> selfcheck.Verdict:
    """Try whether an episode comes out the same when it is done again from its beginning: in this
    environment's copy, and in one that `make` constructs in another process. As `examine`, this
    disturbs nothing here. `capture_us` includes the reset."""
    return selfcheck.check(
        env, lambda each: Restarted(each, beginning_of(each)), seed=seed, make=make, limit_s=limit_s
    )


def _named_plan(env: Any) -> AttributePlan:
    """The plan, compiled, under the name of what it found.

    Raises:
        SnapshotError: something in the environment can't be held.
    """
    ale.prepare(env)
    plan = AttributePlan(env, natives=_natives)
    plan.compile()
    plan.name = next((name for tag, name in _NATIVE_TAGS if tag in plan.holds), "attributes")
    return plan


def examine(
    env: Any,
    *,
    seed: int,
    make: Callable[[], Any] | None = None,
    check: bool = True,
    limit_s: float = LIMIT_S,
) -> Examined:
    """Find the best codec for an environment, try it, and measure.

    Everything that steps is done in forked copies of this process; `env`, the generators and the
    descriptors here are as before. An environment that acts on the world outside of its process
    (a service, say) acts on it there, too: `check=False` spares it that, and trusts the codec.

    Args:
        env: the outermost wrapper. It has been reset.
        seed: of the actions that are tried.
        make: constructs an environment as this one was; with it, a restore into a fresh one in
            another process is tried as well.
        limit_s: for each codec that is tried.
    """
    notes: list[str] = []
    measured = selfcheck.Verdict("")
    binds: list[tuple[str, Callable[[Any], Codec]]]
    binds = [("attributes", _named_plan), ("pickle", pickled.PickleCodec)]
    for name, bind in binds if check else binds[:1]:  # a pickle is never taken untried
        try:
            codec: Codec = bind(env)
        except SnapshotError as error:
            notes.append(f"codec {name}: {error}")
            continue
        if not check:
            return Examined(codec, tuple(notes))
        again = functools.partial(codec_named, codec.name)
        verdict = selfcheck.check(env, again, seed=seed, make=make, limit_s=limit_s)
        measured = verdict if verdict.step_us else measured
        if verdict.ended:
            notes.append(f"tried with few steps only: {verdict.ended} by itself")
        if not verdict.difference:
            return _examined(codec, notes, verdict)
        notes.append(f"codec {codec.name}: {verdict.difference}")
    if check and not measured.step_us:
        measured = selfcheck.check(env, None, seed=seed, limit_s=limit_s)
    return _examined(None, notes, measured)


def _examined(codec: Codec | None, notes: list[str], verdict: selfcheck.Verdict) -> Examined:
    return Examined(
        codec,
        tuple(notes),
        checked=codec is not None,
        step_us=verdict.step_us,
        capture_us=verdict.capture_us if codec is not None else 0.0,
        restore_us=verdict.restore_us if codec is not None else 0.0,
        fork_us=verdict.fork_us,
        state_bytes=verdict.state_bytes if codec is not None else 0,
    )


def find_codec(env: Any, *, seed: int, check: bool = True) -> tuple[Codec | None, tuple[str, ...]]:
    """The best codec that holds this environment, and why not a better one (see `examine`)."""
    found = examine(env, seed=seed, check=check)
    return found.codec, found.notes


def object_codec_named(name: str, actor: Any, *, globals_too: bool = True) -> Codec:
    """The codec of this name for a policy or reward constructed as the captured one was.
    `globals_too` as in `codec_named`.

    Raises:
        SnapshotError: there is no codec of this name, or it doesn't suit the object.
    """
    if name == actors.StateCodec.name:
        if not actors.tells(actor):
            raise SnapshotError(f"{type(actor).__qualname__} has no get_state and set_state")
        return actors.StateCodec(actor, globals_too=globals_too)
    if name == "pickle":
        return pickled.PickleCodec(actor, globals_too=globals_too)
    if name != "attributes":
        raise SnapshotError(f"no codec is called {name!r}")
    return AttributePlan(
        actor, called=type(actor).__name__, natives=_natives, globals_too=globals_too
    )


def find_object_codec(
    actor: Any,
    *,
    exercise: Callable[[Any, int], Any] | None = None,
    make: Callable[[], Any] | None = None,
    limit_s: float = LIMIT_S,
) -> tuple[Codec | None, tuple[str, ...]]:
    """The best codec for a policy or a reward, and why not a better one.

    Its own `get_state` and `set_state` come first, then the attribute plan, then a pickle.

    Args:
        actor: the object; not changed.
        exercise: uses an object of this kind once, as its runner does, with inputs that depend on
            the number alone, and returns what came of it (an action, say). With it a codec is
            tried in a scratch process, without it it is only seen to capture; a pickle is never
            taken untried.
        make: constructs such an object in the same way; see `examine`.
        limit_s: for each codec that is tried.
    """
    notes: list[str] = []
    names = ("attributes", "pickle") if exercise is not None else ("attributes",)
    for name in (actors.StateCodec.name, *names) if actors.tells(actor) else names:
        bind = functools.partial(object_codec_named, name)
        try:
            codec = bind(actor)
            codec.capture()
        except SnapshotError as error:
            notes.append(f"codec {name}: {error}")
            continue
        if exercise is None:
            return codec, tuple(notes)
        found = selfcheck.check_actor(actor, bind, exercise, make=make, limit_s=limit_s)
        if not found.difference:
            return codec, tuple(notes)
        notes.append(f"codec {name}: {found.difference}")
    return None, tuple(notes)
