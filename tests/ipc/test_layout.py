"""Layouts against Gymnasium's own batching, checks of values, records and ring sizes."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import Space
from gymnasium import spaces as gs
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LayoutError, LocalError, PeerError, ValueCodecError
from dsec.ipc import values as values_codec
from dsec.ipc.layout import EnvRecord, Layout, RewardRecord, record_bytes, ring_bytes
from tests.ipc import strategies

FLOATS = gs.Box(-1, 1, (3,), np.float32)
NESTED = gs.Dict({"a": gs.Tuple([gs.Discrete(3, start=-3), FLOATS]), "b": gs.MultiBinary([2, 2])})


def batched(space: Space[Any], values: list[Any]) -> Any:
    empty: Any = create_empty_array(space, len(values))
    return concatenate(space, values, empty)


def fresh(layout: Layout, offset: int = 0) -> Any:
    return layout.views(bytearray(offset + layout.nbytes), offset)


@given(strategies.any_space, st.integers(1, 4), st.integers(0, 2**32))
def test_equals_what_gymnasium_batches(space: Space[Any], n: int, seed: int) -> None:
    values = strategies.samples(space, n, seed)
    want = batched(space, values)
    layout = Layout(space, n)
    one_by_one, at_once = fresh(layout), fresh(layout, 64)
    for i, value in enumerate(values):
        layout.write(one_by_one, i, value)
    layout.write_batch(at_once, want)
    assert strategies.same(one_by_one, want)
    assert strategies.same(at_once, want)
    copied = layout.copy(one_by_one)
    assert strategies.same(copied, want)


@given(strategies.any_space, st.integers(1, 4), st.integers(0, 2**32))
def test_read_gives_what_iterating_a_batch_gives(space: Space[Any], n: int, seed: int) -> None:
    want = batched(space, strategies.samples(space, n, seed))
    layout = Layout(space, n)
    views = fresh(layout)
    layout.write_batch(views, want)
    values = [layout.read(views, i) for i in range(n)]
    # Gymnasium's batched Dict space sorts its keys again; ours stay in the space's own order.
    theirs = list(iterate(batch_space(space, n), want))
    assert strategies.same(values, theirs, ordered=False)


@given(strategies.any_space, st.integers(1, 5))
def test_leaves_are_aligned_and_do_not_overlap(space: Space[Any], n: int) -> None:
    layout = Layout(space, n)
    end = 0
    for leaf in layout.leaves:
        assert leaf.offset >= end
        assert leaf.offset % 16 == 0
        end = leaf.offset + leaf.nbytes
        assert leaf.nbytes == n * leaf.dtype.itemsize * math.prod(leaf.shape)
    assert layout.nbytes == end


class Scripted(gymnasium.Env[Any, Any]):
    """Hands out given observations and keeps the actions it gets."""

    def __init__(self, space: Space[Any], action_space: Space[Any], script: list[Any]) -> None:
        self.observation_space = space
        self.action_space = action_space
        self.script = iter(script)
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return next(self.script), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        return next(self.script), 0.0, False, False, {}


@given(strategies.any_space, strategies.any_space, st.integers(1, 3), st.integers(0, 2**32))
def test_equals_the_sync_vector_env(
    space: Space[Any], action_space: Space[Any], n: int, seed: int
) -> None:
    scripts = [strategies.samples(space, 3, seed + i) for i in range(n)]
    envs = [Scripted(space, action_space, script) for script in scripts]
    vector = SyncVectorEnv(
        [lambda env=env: env for env in envs],  # type: ignore[misc]
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    layout, action_layout = Layout(space, n), Layout(action_space, n)
    views, action_views = fresh(layout), fresh(action_layout)
    observed = [vector.reset()[0]]
    for step in range(2):
        actions = batched(action_space, strategies.samples(action_space, n, seed + step))
        observed.append(vector.step(actions)[0])
        action_layout.write_batch(action_views, actions)
        ours = [action_layout.read(action_views, i) for i in range(n)]
        assert strategies.same(ours, [env.actions[step] for env in envs], ordered=False)
    for step, want in enumerate(observed):
        for i in range(n):
            layout.write(views, i, scripts[i][step])
        assert strategies.same(layout.copy(views), want)


def test_views_are_read_only_where_the_memory_is() -> None:
    layout = Layout(NESTED, 2)
    views = layout.views(memoryview(bytes(layout.nbytes)))
    assert not views["a"][1].flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        layout.write(views, 0, NESTED.sample())
    copy = layout.copy(views)
    layout.write(copy, 0, NESTED.sample())


def test_views_share_the_memory_and_copies_do_not() -> None:
    layout = Layout(FLOATS, 2)
    memory = np.zeros(layout.nbytes + 16, np.uint8)
    views = layout.views(memory, 16)
    value = layout.read(views, 1)
    copy = layout.copy(views)
    layout.write(views, 1, np.ones(3, np.float32))
    assert memory[16:].view(np.float32).tolist() == [0, 0, 0, 1, 1, 1]
    assert value.tolist() == [0, 0, 0] and copy[1].tolist() == [0, 0, 0]


def test_memory_that_is_too_small_is_our_mistake() -> None:
    layout = Layout(FLOATS, 2)
    with pytest.raises(LocalError, match="at byte 1"):
        layout.views(bytearray(layout.nbytes), 1)
    with pytest.raises(LocalError, match="0 environments"):
        Layout(FLOATS, 0)


def test_paths_of_leaves_name_the_space() -> None:
    layout = Layout(NESTED, 1, "observation")
    assert [leaf.path for leaf in layout.leaves] == [
        'observation["a"][0]',
        'observation["a"][1]',
        'observation["b"]',
    ]
    with pytest.raises(LayoutError, match=r'value\["x"\]: a Space space'):
        Layout(gs.Dict({"x": Space()}), 1)


def test_limits_are_told_when_the_layout_is_made() -> None:
    with pytest.raises(LayoutError, match=r"value: 64 values take .* at most"):
        Layout(gs.Box(0, 1, (1 << 23,), np.float32), 64)
    space: Space[Any] = gs.Discrete(2)
    for _ in range(40):
        space = gs.Tuple([space])
    with pytest.raises(LayoutError, match="nested deeper"):
        Layout(space, 1)


def test_composites_of_nothing_work() -> None:
    for space, empty in ((gs.Dict({}), {}), (gs.Tuple([]), ())):
        layout = Layout(space, 2)
        views = layout.views(bytearray())
        layout.write(views, 0, empty)
        assert layout.nbytes == 0 and layout.read(views, 1) == empty


BOOL_BOX = gs.Box(0, 1, (2,), np.dtype(bool))  # type: ignore[arg-type]
BOOL_SCALAR = gs.Box(0, 1, (), np.dtype(bool))  # type: ignore[arg-type]
BYTES = gs.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (FLOATS, np.zeros(4, np.float32), r"value: expected float32 \(3,\), got float32 \(4,\)"),
        (FLOATS, np.zeros((1, 3), np.float32), r"expected float32 \(3,\), got float32 \(1, 3\)"),
        (FLOATS, np.float32(0), r"expected float32 \(3,\), got float32 \(\)"),
        (FLOATS, np.zeros(3, complex), r"got complex128 \(3,\)"),
        (FLOATS, None, r"expected float32 \(3,\), got None"),
        (FLOATS, [1, [2, 3], 4], r"got list \("),
        (FLOATS, ["a", "b", "c"], r"got <U1 \(3,\) \(list\)"),
        (BYTES, np.zeros(2, np.float32), r"expected uint8 \(2,\), got float32 \(2,\)"),
        (BYTES, np.zeros(2, np.int64), r"expected uint8 \(2,\), got int64 \(2,\)"),
        (BYTES, [0, 256], r"with values 0 to 256"),
        (BYTES, [-1, 0], r"with values -1 to 0"),
        (gs.Box(-9, 9, (2,), np.int8), np.array([0, 200]), r"int64 \(2,\) with values 0 to 200"),
        (BOOL_BOX, np.zeros(2, np.int8), r"expected bool \(2,\), got int8"),
        (gs.Discrete(3), 1.5, r"expected int64 \(\), got float64 \(\) \(float\)"),
        (gs.Discrete(3), 2**80, r"expected int64 \(\), got 1208925819614629174706176"),
        (gs.Discrete(3), "x", r"expected int64 \(\), got <U1"),
        (NESTED, 3, r"value: expected a dict with keys \['a', 'b'\], got int"),
        (NESTED, {"a": 0}, r"missing: \['b'\], unknown: \[\]"),
        (NESTED, {"a": 0, "b": 0, "c": 0}, r"missing: \[\], unknown: \['c'\]"),
        (NESTED, {"a": (0,), "b": 0}, r'value\["a"\]: expected a tuple of 2 items, got 1 items'),
        (NESTED, {"a": {0, 1}, "b": 0}, r'value\["a"\]: expected a tuple of 2 items, got set'),
        (NESTED, {"a": (0, np.zeros(9)), "b": 0}, r'value\["a"\]\[1\]: expected float32 \(3,\)'),
    ],
)
def test_what_does_not_fit_is_named_with_its_leaf(space: Space[Any], value: Any, told: str) -> None:
    layout = Layout(space, 1)
    with pytest.raises(LayoutError, match=told):
        layout.write(fresh(layout), 0, value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (FLOATS, np.array([0.5, 1, 2], np.float64)),
        (FLOATS, np.array([0.5, 1, 2], np.float16)),
        (FLOATS, np.array([1, 2, 3])),
        (FLOATS, np.array([True, False, True])),
        (FLOATS, [0.5, 1, 2]),
        (FLOATS, np.array([0.5, 1, 2], ">f4")),
        (FLOATS, np.arange(6, dtype=np.float32)[::2]),
        (gs.Box(-9, 9, (2,), np.int8), np.array([-128, 127])),
        (gs.MultiBinary(2), np.array([True, False])),
        (gs.Discrete(3), np.int32(2)),
        (gs.Discrete(3), np.array(2)),
        (gs.Discrete(3), True),
        (gs.Box(0, 1, (), np.float32), 0.5),
        (gs.Box(0, 1, (), np.float32), np.array(0.5)),
        (BOOL_SCALAR, True),
        (gs.Box(0, 1, (), np.float16), 1),
    ],
)
def test_same_kind_casts_are_those_of_the_sync_vector_env(space: Space[Any], value: Any) -> None:
    layout = Layout(space, 2)
    views = fresh(layout)
    for _ in range(2):  # the second time takes the way that the first has learned
        for i in range(2):
            layout.write(views, i, value)
    want = batched(space, [value, value])
    assert strategies.same(views, want)
    at_once = fresh(layout)
    layout.write_batch(at_once, np.stack([np.asarray(value)] * 2))
    assert strategies.same(at_once, want)


def test_pythons_own_integers_fit_any_integer_leaf_that_holds_them() -> None:
    layout = Layout(gs.Tuple([gs.Discrete(9, dtype=np.uint8), BYTES]), 1)
    views = fresh(layout)
    layout.write(views, 0, (255, [0, 255]))
    layout.write_batch(views, ([254], [[1, 254]]))
    assert layout.read(views, 0)[0] == 254
    with pytest.raises(LayoutError, match=r"value\[0\]: .* with values 256 to 256"):
        layout.write(views, 0, (256, [0, 0]))
    with pytest.raises(LayoutError, match=r"value\[0\]: .* with values -1 to -1"):
        layout.write_batch(views, ([-1], [[0, 0]]))


def test_a_batch_of_another_size_is_refused() -> None:
    layout = Layout(NESTED, 2)
    views = fresh(layout)
    with pytest.raises(LayoutError, match=r'value\["a"\]\[0\]: expected int64 \(2,\)'):
        layout.write_batch(views, {"a": (np.zeros(3, int), np.zeros((3, 3))), "b": 0})


# ---------------------------------------------------------------- records


@given(strategies.any_space, st.integers(1, 9), st.integers(0, 2**32))
def test_env_record_parts_do_not_overlap(space: Space[Any], n: int, seed: int) -> None:
    record = EnvRecord(space, n)
    memory = bytearray(record.fixed_bytes)
    views = record.views(memory)
    values = strategies.samples(space, n, seed)
    for i, value in enumerate(values):
        record.layout.write(views.obs, i, value)
    views.reward[:] = np.arange(n)
    views.flags[:] = 3
    again = record.views(memoryview(bytes(memory)))
    assert again.reward.tolist() == list(range(n)) and again.flags.tolist() == [3] * n
    assert strategies.same(again.obs, batched(space, values))
    assert record.reward_off == 0 and record.flags_off == 8 * n
    assert record.obs_off >= 9 * n and record.obs_off % 16 == 0


info_dicts = st.dictionaries(st.text(max_size=3), strategies.any_value, max_size=2)


@given(strategies.any_space, st.integers(1, 3), st.integers(0, 2**32), st.data())
def test_extras_round_trip(space: Space[Any], n: int, seed: int, data: st.DataObject) -> None:
    record = EnvRecord(space, n)
    ended = data.draw(st.sets(st.integers(0, n - 1)))
    layout = Layout(space, n)
    views = fresh(layout)
    layout.write_batch(views, batched(space, strategies.samples(space, n, seed)))
    finals = {i: layout.read(views, i) for i in sorted(ended)}
    infos = data.draw(st.lists(info_dicts, min_size=n, max_size=n))
    encoded = record.encode_extras(finals, infos)
    assert bool(encoded) == bool(finals or any(infos))
    assert strategies.same(record.decode_extras(memoryview(encoded)), (finals, infos))


@given(st.integers(1, 3), st.data())
def test_damaged_extras_raise_peer_error_or_decode(n: int, data: st.DataObject) -> None:
    record = EnvRecord(NESTED, n)
    finals = dict.fromkeys(range(n), strategies.samples(NESTED, 1, 0)[0])
    whole = record.encode_extras(finals, [{"a": np.arange(3)}] * n)
    try:
        got, infos = record.decode_extras(data.draw(strategies.damaged(whole)))
    except (PeerError, ValueCodecError):
        return
    assert len(infos) == n and all(0 <= i < n for i in got)


def test_extras_of_nothing_are_empty() -> None:
    record = EnvRecord(FLOATS, 2)
    assert record.encode_extras({}, [{}, {}]) == b""
    assert record.decode_extras(b"") == ({}, [{}, {}])


def test_extras_name_what_does_not_fit() -> None:
    record = EnvRecord(FLOATS, 2)
    with pytest.raises(LayoutError, match=r"observation: expected float32 \(3,\)"):
        record.encode_extras({0: np.zeros(2)}, [{}, {}])
    with pytest.raises(ValueCodecError, match=r'infos\[1\]\["a"\]: '):
        record.encode_extras({}, [{}, {"a": object()}])
    with pytest.raises(LocalError, match="3 infos for 2"):
        record.encode_extras({}, [{}, {}, {}])
    with pytest.raises(LocalError, match=r"\[2\] for 2"):
        record.encode_extras({2: np.zeros(3)}, [{}, {}])


def test_extras_of_another_record_are_refused() -> None:
    wide, narrow = EnvRecord(FLOATS, 3), EnvRecord(FLOATS, 2)
    last = wide.encode_extras({2: np.zeros(3)}, [{}] * 3)
    with pytest.raises(PeerError, match=r"environments \(2,\) of 2"):
        narrow.decode_extras(last)
    with pytest.raises(PeerError, match="no list of 2"):
        narrow.decode_extras(wide.encode_extras({}, [{"a": 1}, {}, {}]))
    header = bytes(16)
    with pytest.raises(PeerError, match="no dict"):
        narrow.decode_extras(header + values_codec.encode([{}, 1]))
    with pytest.raises(PeerError, match="extras of 3 bytes"):
        narrow.decode_extras(b"abc")


def test_reward_record() -> None:
    record = RewardRecord(3)
    memory = bytearray(record.fixed_bytes + 8)
    record.views(memory, 8)[:] = [1, 2, 3]
    assert np.frombuffer(memory).tolist() == [0, 1, 2, 3]


def test_record_sizes_have_few_classes() -> None:
    assert record_bytes(0) == 64 and record_bytes(32) == 64 and record_bytes(33) == 128
    assert record_bytes(4096 - 32) == 4096
    assert record_bytes(4097 - 32) == 4096 + 512
    assert record_bytes(8192) == 8192 + 1024
    for payload in range(0, 40_000, 7):
        total = record_bytes(payload)
        assert payload + 32 <= total <= max(payload + 32 + 63, (payload + 32) * 9 / 8)
        assert total % 64 == 0


def test_ring_sizes() -> None:
    small = ring_bytes(FLOATS, gs.Discrete(2), 1, 1024)
    assert small == {0: 64 * 1024, 1: 64 * 1024, 2: 64 * 1024, 3: 0}
    frame = gs.Box(0, 255, (64, 64, 3), np.uint8)
    assert ring_bytes(frame, gs.Discrete(2), 1, 1024)[0] == 4 * 1024 * 1024
    assert ring_bytes(frame, gs.Discrete(2), 64, 1024)[0] == 8 * 1024 * 1024
    assert ring_bytes(FLOATS, gs.Discrete(2), 1, 4096)[0] == 256 * 1024
    for slots in (1, 100, 5000):
        for size in ring_bytes(frame, FLOATS, 3, slots).values():
            assert size & (size - 1) == 0
