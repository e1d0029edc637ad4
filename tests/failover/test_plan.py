"""The attribute plan on object graphs that nobody would write: against a model that walks them.

The plan lives long, caches what it saw and is compiled again when the graph changes its shape. The
oracle is `shape`: the whole graph as nested tuples in which an object met before is a number, so
that values, types, order and aliasing all count.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.errors import SnapshotError
from dsec.failover.codecs.plan import AttributePlan


class Thing:
    """Attributes come and go."""


class Slotted:
    """With slots, one of which the subclass adds beside a dict."""

    __slots__ = ("first", "second")


class Both(Slotted):
    """Slots and a dict."""


class Pairs(dict[Any, Any]):
    """A dict with attributes."""


def shape(root: Any) -> Any:
    """Everything about a graph that a restore must bring back."""
    seen: dict[int, int] = {}
    alive: list[Any] = []

    def walk(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str | bytes):
            return (type(value).__name__, value)
        if isinstance(value, float):
            return (type(value).__name__, value.hex())
        if isinstance(value, np.generic):
            return (value.dtype.str, value.tobytes())
        if isinstance(value, tuple):
            return ("tuple", *map(walk, value))
        if id(value) in seen:
            return ("again", seen[id(value)])
        seen[id(value)] = len(seen)
        alive.append(value)
        name = type(value).__name__
        if isinstance(value, np.ndarray):
            base = walk(value.base) if value.base is not None else None
            return (name, value.dtype.str, value.shape, value.tobytes(), base is not None)
        if isinstance(value, np.random.Generator):
            return (name, str(value.bit_generator.state), str(value.bit_generator.seed_seq))
        if isinstance(value, random.Random):
            return (name, value.getstate())
        parts: list[Any] = [name]
        if isinstance(value, dict):
            parts += [(walk(key), walk(each)) for key, each in value.items()]
        elif isinstance(value, list | deque):
            parts += map(walk, value)
        elif isinstance(value, bytearray):
            parts.append(bytes(value))
        for field in ("first", "second"):
            if isinstance(value, Slotted):
                parts.append((field, walk(getattr(value, field, "unset"))))
        parts += [(key, walk(each)) for key, each in getattr(value, "__dict__", {}).items()]
        return tuple(parts)

    return walk(root)


def new_object(draw: random.Random) -> Any:
    kind = draw.randrange(14)
    match kind:
        case 0:
            return Thing()
        case 1:
            return []
        case 2:
            return {}
        case 3:
            return deque(maxlen=draw.choice([None, 3]))
        case 4:
            return np.zeros(draw.randrange(4), draw.choice(["f8", "i2", "?"]))
        case 5:
            return np.asfortranarray(np.ones((2, 3)) * draw.random())
        case 6:
            return np.random.default_rng(draw.randrange(99))
        case 7:
            return Slotted()
        case 8:
            return Both()
        case 9:
            return Pairs()
        case 10:
            return bytearray(b"abc")
        case 11:
            return random.Random(draw.randrange(99))
        case 12:
            return OrderedDict()
        case _:
            return defaultdict(list)


def atom(draw: random.Random) -> Any:
    return draw.choice(
        [
            *(0, 0.0, -0.0, 1, True, 1.0, None, "ä", "", b"x", 1 << 70, -(1 << 65), float("nan")),
            *(np.float64(1), np.float32(1), np.int64(1), np.bool_(True), (1, (2.5, "x")), 7, 8, 9),
        ]
    )


class World:
    """A graph and the random changes that it goes through."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.root = Thing()
        self.root.numbers = np.zeros(3)
        self.root.generator = np.random.default_rng(1)
        self.root.inner = Thing()
        self.root.inner.back = self.root
        self.root.queue = deque([1, 2], maxlen=4)

    def objects(self) -> list[Any]:
        found: dict[int, Any] = {}
        todo: list[Any] = [self.root]
        while todo:
            each = todo.pop()
            if id(each) in found or isinstance(each, str | bytes | int | float | np.generic):
                continue
            if each is None:
                continue
            if isinstance(each, tuple):
                todo += each
                continue
            found[id(each)] = each
            todo += getattr(each, "__dict__", {}).values()
            todo += [getattr(each, name, None) for name in getattr(type(each), "__slots__", ())]
            if isinstance(each, dict):
                todo += each.values()
            elif isinstance(each, list | deque):
                todo += each
        return list(found.values())

    def value(self) -> Any:
        which = self.draw.random()
        if which < 0.5:
            return atom(self.draw)
        if which < 0.7:
            return self.draw.choice(self.objects())
        made = new_object(self.draw)
        return (made, 1) if which > 0.95 else made

    def change(self) -> None:
        draw = self.draw
        target = draw.choice(self.objects())
        key = draw.choice("abcd")
        if isinstance(target, np.random.Generator):
            draw.choice([target.random, lambda: target.spawn(1), target.standard_normal])()
        elif isinstance(target, random.Random):
            draw.choice([target.random, lambda: target.gauss(0, 1)])()
        elif isinstance(target, np.ndarray):
            if target.size:
                target.flat[draw.randrange(target.size)] = draw.randrange(5)
            self.root.view = target[..., ::-1] if target.ndim else target
        elif isinstance(target, bytearray):
            target.append(1)
        elif isinstance(target, list | deque):
            draw.choice([lambda: target.append(self.value()), target.clear])()
        elif isinstance(target, dict):
            self._change_dict(target, key)
        elif type(target) is Slotted or (draw.random() < 0.2 and isinstance(target, Both)):
            setattr(target, draw.choice(["first", "second"]), self.value())
        elif draw.random() < 0.25 and key in target.__dict__:
            delattr(target, key)
        else:
            setattr(target, key, self.value())

    def _change_dict(self, target: dict[Any, Any], key: str) -> None:
        if self.draw.random() < 0.3:
            target.pop(key, None)
        else:
            target[self.draw.choice([key, 5, (1, key)])] = self.value()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12))
def test_a_long_lived_plan_brings_back_every_graph(seed: int, rounds: int, changes: int) -> None:
    world = World(seed)
    spare = copy.deepcopy(world.root)
    plan = AttributePlan(world.root)
    for _ in range(rounds):
        for _ in range(changes):
            world.change()
        data = plan.capture()
        expected = shape(world.root)
        assert shape(world.root) == expected, "looking changes nothing"
        fresh = copy.deepcopy(spare)
        AttributePlan(fresh).restore(data)
        assert shape(fresh) == expected
        AttributePlan(spare).restore(data)  # into what an earlier state was restored to
        assert shape(spare) == expected
        AttributePlan(fresh).restore(plan.capture())
        assert shape(fresh) == expected


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.data())
def test_mutated_bytes_never_crash(seed: int, data: st.DataObject) -> None:
    world = World(seed)
    for _ in range(8):
        world.change()
    good = bytearray(AttributePlan(world.root).capture())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    spare = World(seed).root
    with contextlib.suppress(SnapshotError):
        AttributePlan(spare).restore(bytes(good))


def test_an_attribute_that_changes_for_ever_settles() -> None:
    root = Thing()
    root.things = [Thing() for _ in range(5)]
    plan = AttributePlan(root)
    for number in range(40):
        root.things[number % 5] = Thing()
        root.frame = np.full(4, number)
        spare = Thing()
        AttributePlan(spare).restore(plan.capture())
        assert shape(spare) == shape(root)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((each for each in ()), "a Python generator"),
        (memoryview(b"x"), "memory that others may share"),
        (iter([1]), "list_iterator"),
        ({frozenset({1}): [lambda: 1, compile("1", "x", "eval")]}, "code"),
    ],
)
def test_what_can_not_be_held_is_named_with_its_way(value: Any, reason: str) -> None:
    root = Thing()
    root.outer = {"key": [1, Thing()]}
    root.outer["key"][1].inner = value
    with pytest.raises(SnapshotError, match=reason) as caught:
        AttributePlan(root).compile()
    assert str(caught.value).startswith("env.outer['key'][…].inner") or "[" in str(caught.value)
