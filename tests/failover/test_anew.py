"""States with other random streams: every generator that a codec holds, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsec.failover.codecs import object_codec_named, seeded_anew


class Chance:
    """Has generators of every kind, and something else."""

    def __init__(self) -> None:
        self.bits = [np.random.default_rng(1), np.random.Generator(np.random.Philox(2))]
        self.legacy = np.random.RandomState(3)
        self.python = random.Random(4)
        self.weights = np.arange(5.0)

    def draws(self) -> list[float]:
        """One number of each, of a child that was spawned, and of the process's own."""
        own = [each.random() for each in self.bits]
        own += [self.bits[0].spawn(1)[0].random(), self.legacy.rand(), self.python.random()]
        return [*own, np.random.rand(), random.random()]


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    """What a codec restores are this process's global generators, too."""
    python, legacy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(legacy)


def drawn(codec: str, state: bytes) -> list[float]:
    other = Chance()
    object_codec_named(codec, other).restore(state)
    assert other.weights.tolist() == [0, 1, 2, 3, 4]
    return other.draws()


@pytest.mark.parametrize("codec", ["attributes", "pickle"])
def test_every_generator_draws_other_numbers_and_the_same_seed_the_same(codec: str) -> None:
    state = object_codec_named(codec, Chance()).capture()
    before = drawn(codec, state)
    ways: list[Any] = [drawn(codec, seeded_anew(codec, state, seed)) for seed in (7, 7, 8)]
    assert ways[0] == ways[1]
    for a, b, c in zip(before, ways[0], ways[2], strict=True):
        assert len({a, b, c}) == 3


def test_a_sticky_emulator_draws_other_numbers_from_the_same_state() -> None:
    ale_py = pytest.importorskip("ale_py")
    import gymnasium

    from dsec.failover.codecs import codec_named
    from dsec.failover.codecs.ale import Twister

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5")
    codec = codec_named("ale", env)
    env.reset(seed=1)
    for _ in range(20):
        env.step(2)
    state = codec.capture()
    inner: Any = env.unwrapped
    taken = []
    for data in (state, seeded_anew("ale", state, 7), seeded_anew("ale", state, 8)):
        codec.restore(data)
        system = inner.ale.cloneState(include_rng=True).serialize()
        taken.append((inner.ale.getRAM().tolist(), Twister(system).future(0)))
    rams, draws = zip(*taken, strict=True)
    assert rams[0] == rams[1] == rams[2]
    assert len({*draws}) == 3
    env.close()
