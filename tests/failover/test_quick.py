"""Captures in C: the very bytes that a plan writes in Python, whatever the objects go through."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.failover.codecs import codec_named, generators
from dsec.failover.codecs.plan import QUICK_AFTER, AttributePlan
from tests.failover.test_plan import Thing, World, shape


def plain_plan(root: Any) -> AttributePlan:
    plan = AttributePlan(root, globals_too=False)
    plan._quick_at = 1 << 60
    return plan


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_an_environment_is_captured_in_c_as_in_python(name: str) -> None:
    env = gymnasium.make(name)
    env.reset(seed=1)
    env.action_space.seed(2)
    plans = codec_named("attributes", env, globals_too=False), plain_plan(env)
    plan = plans[0]
    assert isinstance(plan, AttributePlan)
    quick = 0
    for step in range(300):
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
        if step == 250:
            env.reset(seed=step)  # another generator, for which Python has to look
        quick += plan._quick is not None
        assert plan.capture() == plans[1].capture(), step
    env.close()
    assert quick > 200, "most of them were made in C"


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 3), min_size=8, max_size=24))
def test_a_graph_is_brought_back_from_captures_in_c_and_in_python(seed: int, changes: Any) -> None:
    world = World(seed)
    spare = copy.deepcopy(world.root)
    plan = AttributePlan(world.root)
    plan._quick_at = 1
    for count in changes:
        for _ in range(count):
            world.change()
        plan._quick_after, plan._quick_at = 1, min(plan._quick_at, plan._captures + 1)
        data = plan.capture()
        fresh = copy.deepcopy(spare)
        AttributePlan(fresh).restore(data)
        assert shape(fresh) == shape(world.root)


def quick_plan(root: Any) -> AttributePlan:
    plan = AttributePlan(root, globals_too=False)
    for _ in range(QUICK_AFTER):
        plan.capture()
    assert plan._quick is not None
    return plan


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937])
def test_generators_whose_words_are_read_from_memory(kind: Any) -> None:
    assert kind is np.random.MT19937 or kind in generators.PLACES, "as this numpy has them"
    root = Thing()
    root.generator = np.random.Generator(kind(5))
    plan, plain = quick_plan(root), plain_plan(root)
    draw = root.generator
    for change in (
        draw.random,
        lambda: draw.integers(0, 9, dtype=np.uint32),
        lambda: draw.integers(0, 9, dtype=np.uint32),
        lambda: draw.spawn(1),
        lambda: setattr(draw.bit_generator, "state", kind(6).state),
    ):
        change()
        assert plan.capture() == plain.capture()


def test_what_is_mutated_behind_the_attributes_is_seen() -> None:
    root = Thing()
    root.array, root.numbers, root.inner = np.zeros(3), [1, 2.5], Thing()
    root.scalar, root.flag = np.float32(1.5), np.bool_(True)
    plan, plain = quick_plan(root), plain_plan(root)
    changes = (
        lambda: root.array.__setitem__(1, 5.0),
        lambda: root.numbers.__setitem__(0, -7),
        lambda: root.numbers.append(3),
        lambda: setattr(root.inner, "x", 1),
        lambda: setattr(root, "scalar", np.float32(-2)),
        lambda: setattr(root, "scalar", np.float64(-2)),
        lambda: setattr(root, "array", np.ones(3)),
        lambda: setattr(root, "array", root.array[::-1]),
        lambda: setattr(root.array.base, "shape", (3, 1)),
        lambda: root.__dict__.update(inner=root),
    )
    for change in changes:
        change()
        for _ in range(QUICK_AFTER):
            mine, other = Thing(), Thing()
            AttributePlan(mine).restore(plan.capture())
            AttributePlan(other).restore(plain.capture())
            assert shape(mine) == shape(other) == shape(root)
