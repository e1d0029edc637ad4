"""dsec.failover.codecs: ways to turn a living object into bytes and back, one file for each.

    codec, notes = find_codec(env, seed=7)
    data = codec.capture()
    codec_named(codec.name, other_env).restore(data)

Owns the choice among them. `attributes` is the compiled plan over Python objects; `ale` and
`mujoco` are the same plan with the state that those packages keep in C; `pickle` is the last
resort.
"""

from __future__ import annotations

from typing import Any

from dsec.errors import SnapshotError
from dsec.failover.codecs import ale, mujoco
from dsec.failover.codecs.contract import Codec
from dsec.failover.codecs.plan import AttributePlan

__all__ = ["Codec", "codec_named", "find_codec"]

_NATIVE_TAGS = ((ale.Emulator.tag, "ale"), (mujoco.Data.tag, "mujoco"))


def codec_named(name: str, env: Any) -> Codec:
    """The codec of this name for an environment constructed as the captured one was.

    Raises:
        SnapshotError: there is no codec of this name.
    """
    if name not in ("attributes", "ale", "mujoco"):
        raise SnapshotError(f"no codec is called {name!r}")
    natives = {**ale.kinds(), **mujoco.kinds()}
    return AttributePlan(env, name=name, natives=natives)


def find_codec(env: Any, *, seed: int, check: bool = True) -> tuple[Codec | None, tuple[str, ...]]:
    """The best codec that holds this environment, and why not a better one."""
    plan = AttributePlan(env, natives={**ale.kinds(), **mujoco.kinds()})
    try:
        plan.compile()
    except SnapshotError as error:
        return None, (f"no codec holds this environment: {error}",)
    plan.name = next((name for tag, name in _NATIVE_TAGS if tag in plan.holds), "attributes")
    return plan, ()
