"""Atoms of a CartPole agent's kind for `bench asa`, of real generators and a real environment.

Owns the making only: what dsec.sml.atom has a place for is filled from Python's and numpy's own
state. Every number gives another atom, and `touched` says whether the three Mersenne Twisters of
the agent's processes were drawn from; untouched ones are stored as their seed.
"""

from __future__ import annotations

import random
import struct
import uuid
from typing import Any

import gymnasium
import numpy as np

from dsec.sml.atom import (
    Atom,
    Faith,
    Generator,
    Manifest,
    RandomState,
    RewardWindow,
    Role,
    Seed,
    Snapshot,
)

WINDOW = 200


def agent_state(number: int) -> dict[str, Any]:
    """What somebody would pickle who had no atoms: each thing as Python hands it out."""
    policy_random = random.Random(number)
    reward_random = random.Random(number + 1)
    legacy = np.random.RandomState(number % 2**32)
    for each in (policy_random, reward_random, legacy):
        each.random() if isinstance(each, random.Random) else each.random_sample()
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=number)
    for _ in range(7):
        env.step(env.action_space.sample())
    inner: Any = env.unwrapped
    return {
        "agent": f"cartpole-{number % 8:03d}",
        "id": number,
        "seq": number,
        "policy_random": policy_random.getstate(),
        "reward_random": reward_random.getstate(),
        "numpy": legacy.get_state(),
        "generators": [
            inner.np_random.bit_generator.state,
            env.action_space.np_random.bit_generator.state,
        ],
        "env": (np.asarray(inner.state), inner.steps_beyond_terminated, 7),
        "rewards": [1.0] * WINDOW,
        "policy": policy_random.randbytes(200),
    }


def atom_of(state: dict[str, Any], *, touched: bool = True) -> Atom:
    """The atom of such a state."""
    number = state["id"]
    twisters = [
        _twister(Role.POLICY, "python", state["policy_random"][1], number, touched),
        _twister(Role.REWARD, "python", state["reward_random"][1], number + 1, touched),
        _twister(
            Role.ENV, "numpy", (*state["numpy"][1].tolist(), state["numpy"][2]), number, touched
        ),
    ]
    found = [
        _pcg("env.unwrapped.np_random", state["generators"][0], number),
        _pcg("env.action_space.np_random", state["generators"][1], number),
    ]
    values, beyond, elapsed = state["env"]
    env = struct.pack("<4d?q", *values, beyond is not None, elapsed)
    manifest = Manifest(
        number,
        uuid.UUID(int=number),
        state["agent"],
        number % 8,
        number // WINDOW,
        0,
        state["seq"],
        struct.pack("<QQ", number, number * 31),
        bytes(16),
    )
    return Atom(
        manifest,
        RandomState(tuple(twisters + found)),
        (Snapshot("attributes/1", env, Faith.PROVEN, "60 steps compared"),),
        RewardWindow(WINDOW, number, 1, struct.pack(f"<{WINDOW}d", *state["rewards"])),
        Snapshot("attributes/1", state["policy"], Faith.PROVEN, "actions compared"),
    )


def _twister(role: Role, kind: str, words: tuple[int, ...], seed: int, touched: bool) -> Generator:
    if not touched:
        return Generator(role, kind, "", "MT19937", Seed(struct.pack("<Q", seed)))
    return Generator(
        role, kind, "", "MT19937", None, struct.pack("<624I", *words[:624]), int(words[624])
    )


def _pcg(where: str, state: dict[str, Any], seed: int) -> Generator:
    inner = state["state"]
    words = inner["state"].to_bytes(16, "little") + inner["inc"].to_bytes(16, "little")
    return Generator(
        Role.ENV,
        "numpy.Generator",
        where,
        "PCG64",
        Seed(struct.pack("<Q", seed)),
        words,
        0,
        bool(state["has_uint32"]),
        state["uinteger"],
    )
