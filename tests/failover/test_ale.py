"""The emulator's hidden last action, and the random draws from which it is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import SnapshotError
from dsec.failover.codecs import examine, find_codec
from dsec.failover.codecs.ale import Sticky, Twister, prepare
from tests.failover import worlds


def spelled(generator: np.random.MT19937) -> bytes:
    """A state as the emulator writes it: something, a length, the text, eight more bytes."""
    state = generator.state["state"]
    text = " ".join(map(str, [*state["key"].tolist(), state["pos"]])).encode()
    return bytes(range(1, 200)) * 5 + b"\x07" + len(text).to_bytes(4, "little") + text + b"12345678"


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000))
def test_draws_are_told_from_the_state_that_they_left(seed: int, frames: int) -> None:
    generator = np.random.MT19937(seed)
    draws = [int(word) / 2**32 for word in generator.random_raw(2 * frames)]
    twister = Twister(spelled(generator))
    for frame in range(min(frames, 8)):
        assert twister.past(frame) == draws[-2 * (frame + 1)]
    first = twister.future(0)
    assert first in (None, int(generator.random_raw()) / 2**32)


def test_the_emulator_is_only_watched_where_it_is_sticky() -> None:
    plain = worlds.WORLDS["Pong, not sticky"]()
    sticky = worlds.WORLDS["ALE/Pong-v5"]()
    for env in (plain, sticky):
        env.reset(seed=1)
        prepare(env)
        prepare(env)
    assert type(plain.unwrapped.ale) is not Sticky  # type: ignore[attr-defined]
    assert type(sticky.unwrapped.ale) is Sticky  # type: ignore[attr-defined]
    assert type(sticky.unwrapped.ale.ale) is not Sticky  # type: ignore[attr-defined]


def test_a_very_sticky_emulator_needs_a_few_frames_first() -> None:
    env = worlds.WORLDS["Pong, very sticky"]()
    env.reset(seed=1)
    codec, _ = find_codec(env, seed=1, check=False)
    assert codec is not None
    with pytest.raises(SnapshotError, match="took no action since it is watched"):
        codec.capture()
    found = examine(env, seed=1)
    assert found.codec is not None and found.codec.name == "ale", found.notes


def test_a_state_of_another_game_or_stickiness_is_refused() -> None:
    states = []
    envs = [worlds.WORLDS[name]() for name in ("ALE/Pong-v5", "Pong, not sticky")]
    for env in envs:
        env.reset(seed=1)
        codec, _ = find_codec(env, seed=1, check=False)
        assert codec is not None
        worlds.future(env, worlds.actions_for(env, 30))
        states.append(codec)
    with pytest.raises(SnapshotError, match="another Atari game, or of other settings"):
        states[0].restore(states[1].capture())
