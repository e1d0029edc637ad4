"""Atoms for tests: one that has everything, one of a CartPole agent's kind, and any at all."""

from __future__ import annotations

import random
import struct
import uuid

from hypothesis import strategies as st

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
    ToolCall,
)

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BYTES = st.binary(max_size=300)
SNAPSHOTS = st.builds(Snapshot, TEXT, BYTES, st.sampled_from(Faith), TEXT, U32)
SEEDS = st.builds(Seed, BYTES, st.lists(U32, max_size=3).map(tuple), U32, U32)
REALS = st.floats(allow_nan=False)
FLAGS = st.tuples(TEXT, st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | REALS | TEXT)

ATOMS = st.builds(
    Atom,
    st.builds(
        Manifest, U64, st.uuids(), TEXT, U32, U64, U64, U64, BYTES, BYTES, st.none() | U64, U64
    ),
    st.builds(
        RandomState,
        st.lists(
            st.builds(
                Generator, st.sampled_from(Role), TEXT, TEXT, TEXT, st.none() | SEEDS,
                st.none() | BYTES, U32, st.booleans(), U32, REALS,
            ),
            max_size=3,
        ).map(tuple),
        st.lists(FLAGS, max_size=4).map(tuple),
    ),
    st.lists(SNAPSHOTS, max_size=2).map(tuple),
    st.none() | st.builds(RewardWindow, U32, U64, U32, BYTES, BYTES, st.none() | SNAPSHOTS),
    st.none() | SNAPSHOTS,
    st.lists(
        st.builds(ToolCall, U64, U64, TEXT, BYTES, st.none() | BYTES, TEXT, st.booleans()),
        max_size=2,
    ).map(tuple),
    st.lists(st.tuples(TEXT, SNAPSHOTS), max_size=2).map(tuple),
    BYTES,
)  # fmt: skip


def full_atom() -> Atom:
    """Every field set, always the same: golden bytes are kept of it."""
    snapshot = Snapshot("attributes/1", b"state" * 40, Faith.PROVEN, "40 steps compared", 1)
    generators = (
        Generator(
            Role.ENV, "numpy.Generator", "env.unwrapped.np_random", "PCG64",
            Seed(b"\1\2\3\4", (5, 6), 4, 2), bytes(range(32)), 3, True, 17, -0.5,
        ),
        Generator(Role.POLICY, "python", "", "MT19937", Seed(b"\7\0\0\0")),
    )  # fmt: skip
    return Atom(
        Manifest(
            123, uuid.UUID(int=(1 << 127) + 5), "walker-001", 1, 2, 3, 4,
            b"c" * 16, b"k" * 16, 122, 9,
        ),
        RandomState(generators, (("a", True), ("b", -3), ("c", 1.5), ("d", "text"))),
        (snapshot,),
        RewardWindow(200, 40, 2, struct.pack("<4d", 1, 2, 3, 4), struct.pack("<4d", 5, 6, 7, 8),
                     snapshot),
        snapshot,
        (ToolCall(0, 3, "search", b"q", b"r", "", True), ToolCall(1, 3, "send", b"m")),
        (("counter", snapshot),),
    )  # fmt: skip


def cartpole_atom(number: int, *, twisters: int = 3) -> Atom:
    """An atom as an agent of CartPole with a small random policy has it: `twisters` touched
    Mersenne Twisters of python and numpy, the others untouched, and PCG64 in the environment."""
    rng = random.Random(number)
    generators = [
        Generator(
            Role(role), "python" if role else "numpy", "", "MT19937", Seed(rng.randbytes(4)),
            rng.randbytes(2496) if role < twisters else None, rng.randrange(625),
        )
        for role in range(3)
    ]  # fmt: skip
    generators += [
        Generator(
            Role.ENV, "numpy.Generator", where, "PCG64", Seed(rng.randbytes(4)), rng.randbytes(32),
            0, bool(rng.getrandbits(1)), rng.getrandbits(32),
        )
        for where in ("env.unwrapped.np_random", "env.action_space.np_random")
    ]  # fmt: skip
    rewards = struct.pack("<200d", *([1.0] * 200))
    state = struct.pack("<4d", *(rng.gauss(0, 0.05) for _ in range(4))) + bytes(60)
    return Atom(
        Manifest(
            number, uuid.UUID(int=number), f"cartpole-{number % 8:03d}", number % 8, number // 200,
            0, number, rng.randbytes(16), bytes(16),
        ),
        RandomState(tuple(generators)),
        (Snapshot("attributes/1", state, Faith.PROVEN, "60 steps compared"),),
        RewardWindow(200, number, 1, rewards),
        Snapshot("attributes/1", rng.randbytes(200), Faith.PROVEN, "actions compared"),
    )  # fmt: skip
