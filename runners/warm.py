"""What a zygote does once before its first fork, so that its runners need not do it each.

Owns the list of our own and our libraries' first times: modules that are imported when they are
needed, C functions whose types are built at their first call, caches. What is there before the
fork is shared by all runners; what each sets up for itself costs each its time and its memory, a
page at a time. Rule: nothing of the user's is constructed here, and nothing stays open.
"""

from __future__ import annotations

import os

from dsec.ipc import frames, segment
from dsec.ipc.frames import EnvSettings, Role, SegmentRef, Start, Wire
from dsec.ipc.layout import encode_spaces, ring_bytes
from dsec.runners import seeds
from dsec.runners.construct import make_env
from dsec.runners.wiring import connect

_SLOTS = 4


def warm_up() -> None:
    """Make, wire and forget an agent that nobody asked for."""
    seeds.reseed_globals("0" * 32, "warm")
    env = make_env(EnvSettings(id="CartPole-v1"))
    spaces = encode_spaces(env.observation_space, env.action_space)
    sizes = ring_bytes(env.observation_space, env.action_space, 1, _SLOTS)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()
    segments = {
        role: segment.create("dsec:warm", role, sizes.get(role, 0), epoch=0)
        for role in (Role.ENV, Role.POLICY, Role.REWARD, Role.RECORDER)
    }
    refs = tuple(
        SegmentRef(each.role, each.size, each.epoch, index)
        for index, each in enumerate(segments.values())
    )
    for role in (Role.ENV, Role.POLICY, Role.REWARD):
        fds = [
            os.dup(each.fd) if owner is role else segment.readonly(each.fd)
            for owner, each in segments.items()
        ]
        wire = frames.decode(frames.encode(Wire("warm", spaces, refs)))
        assert isinstance(wire, Wire), "what was encoded as Wire"
        wiring = connect(role, wire, fds)
        wiring.follow(policy_learns=False)
        wiring.close()
    for each in segments.values():
        each.close()
    frames.decode(frames.encode(Start("warm", Role.ENV, 0, "0" * 32)))
