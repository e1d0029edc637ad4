"""The codecs on real environments: a captured state goes on bit for bit, anywhere."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dsec.errors import SnapshotError
from dsec.failover.codecs import codec_named, find_codec
from tests.failover import worlds


def started(name: str, seed: int = 5) -> Any:
    env = worlds.WORLDS[name]()
    env.reset(seed=seed)
    env.action_space.seed(seed)
    return env


def codec_for(env: Any) -> Any:
    codec, notes = find_codec(env, seed=1, check=False)
    assert codec is not None, notes
    return codec


@pytest.mark.parametrize("name", worlds.WORLDS)
def test_a_spare_goes_on_where_the_other_stopped(name: str) -> None:
    env, spare = started(name), worlds.WORLDS[name]()
    codec = codec_for(env)
    actions = worlds.actions_for(env, 240)
    worlds.future(env, actions[:40])
    data = codec.capture()
    expected = worlds.future(env, actions[40:], reset_at=60)
    codec_named(codec.name, spare).restore(data)
    assert worlds.future(spare, actions[40:], reset_at=60) == expected
    env.close()
    spare.close()


@pytest.mark.parametrize("name", worlds.WORLDS)
def test_the_same_object_goes_back_and_is_captured_again(name: str) -> None:
    """Captures of a plan that has been compiled for long, and after a restore."""
    env = started(name)
    codec = codec_for(env)
    actions = worlds.actions_for(env, 300, seed=3)
    for start in range(0, 200, 20):
        worlds.future(env, actions[start : start + 20])
        data = codec.capture()
        expected = worlds.future(env, actions[start : start + 40], reset_at=13)
        codec.restore(data)
        assert worlds.future(env, actions[start : start + 40], reset_at=13) == expected
        codec.restore(data)
    env.close()


@pytest.mark.parametrize("name", worlds.BOX2D)
def test_box2d_is_refused_with_the_attribute_and_the_class(name: str) -> None:
    env = worlds.made(name)()
    env.reset(seed=1)
    codec, notes = find_codec(env, seed=1, check=False)
    assert codec is None
    assert "world.this" in notes[0] and "SwigPyObject" in notes[0]
    env.close()


def test_capturing_changes_nothing() -> None:
    env, twin = started("five wrappers"), started("five wrappers")
    codec = codec_for(env)
    globals_before = random.getstate(), np.random.get_state()
    actions = worlds.actions_for(env, 100)
    seen = []
    for action in actions:
        codec.capture()
        seen += worlds.future(env, [action])
    assert seen == worlds.future(twin, actions)
    now = random.getstate(), np.random.get_state()
    assert worlds.exactly(now) == worlds.exactly(globals_before)


def test_bytes_that_are_no_state_are_refused_and_change_nothing() -> None:
    env = started("CartPole-v1")
    codec = codec_for(env)
    data = codec.capture()
    for bad in (b"", b"\x00", data[:-5], data + b"x", data[:100] + bytes(100) + data[200:]):
        with pytest.raises(SnapshotError):
            codec.restore(bad)
    assert codec.capture() == data


def test_the_state_of_another_environment_is_refused() -> None:
    data = codec_for(started("Pendulum-v1")).capture()
    with pytest.raises(SnapshotError):
        codec_for(started("CartPole-v1")).restore(data)
