"""Descriptions of spaces: exact round trips, named refusals, and hostile bytes."""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import Space
from gymnasium import spaces as gs
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LayoutError, PeerError
from dsec.ipc.spaces import DEPTH_MAX, VALUE_BYTES_MAX, decode_spaces, encode_spaces
from dsec.ipc.variable import Variable
from tests.ipc import strategies

DISCRETE = gs.Discrete(2)


def assert_exact(a: Space[Any], b: Space[Any]) -> None:
    """`==` of Box compares bounds approximately; this compares bits."""
    assert type(a) is type(b)
    if isinstance(a, gs.Dict):
        assert isinstance(b, gs.Dict)
        assert list(a.spaces) == list(b.spaces)
        for key in a.spaces:
            assert_exact(a[key], b[key])
    elif isinstance(a, gs.Tuple):
        assert isinstance(b, gs.Tuple)
        assert len(a.spaces) == len(b.spaces)
        for x, y in zip(a.spaces, b.spaces, strict=True):
            assert_exact(x, y)
    else:
        assert a.dtype == b.dtype and a.shape == b.shape
        for name in ("low", "high", "bounded_below", "bounded_above", "n", "start", "nvec"):
            # Gymnasium gives the flags of a 0-d box as an array or a numpy bool, by mood.
            left, right = (np.asarray(getattr(space, name, None)) for space in (a, b))
            assert strategies.same(left, right) or left.dtype == object, name


@given(strategies.any_space, strategies.any_space)
def test_round_trip_is_exact(observation: Space[Any], action: Space[Any]) -> None:
    decoded = decode_spaces(encode_spaces(observation, action))
    assert decoded == (observation, action)
    for before, after in zip((observation, action), decoded, strict=True):
        assert_exact(before, after)
        assert strategies.order(before) == strategies.order(after)


@given(strategies.varied_space, st.data())
def test_damaged_bytes_raise_peer_error_or_decode(space: Space[Any], data: st.DataObject) -> None:
    whole = encode_spaces(space, DISCRETE)
    try:
        decoded = decode_spaces(data.draw(strategies.damaged(whole)))
    except PeerError:
        return
    assert all(isinstance(part, Space) for part in decoded)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_peer_error(data: bytes) -> None:
    with pytest.raises(PeerError, match="not a description of spaces"):
        decode_spaces(data)


def test_infinite_bounds_of_an_integer_box_stay_unbounded() -> None:
    box = gs.Box(-math.inf, math.inf, (2,), np.int32)
    back, _ = decode_spaces(encode_spaces(box, DISCRETE))
    assert isinstance(back, gs.Box)
    assert not back.bounded_below.any() and not back.bounded_above.any()
    assert not back.is_bounded()


def test_an_image_box_is_described_in_few_bytes() -> None:
    box = gs.Box(0, 255, (210, 160, 3), np.uint8)
    assert len(encode_spaces(box, DISCRETE)) < 256


def test_distinct_bounds_are_compressed() -> None:
    low = np.tile(np.arange(64, dtype=np.float32), 1000)
    encoded = encode_spaces(gs.Box(low, low + 1, dtype=np.float32), DISCRETE)
    assert len(encoded) < low.nbytes / 10
    assert_exact(decode_spaces(encoded)[0], gs.Box(low, low + 1, dtype=np.float32))


def test_numbers_as_keys_and_discrete_of_another_dtype() -> None:
    space = gs.Dict({1: gs.Discrete(3, dtype=np.uint8), 0: DISCRETE})  # type: ignore[dict-item]
    back, _ = decode_spaces(encode_spaces(space, DISCRETE))
    assert_exact(back, space)


def test_unsorted_keys_and_sort_keys_survive() -> None:
    space = gs.Dict(OrderedDict([("z", DISCRETE), ("a", DISCRETE)]))
    back, _ = decode_spaces(encode_spaces(space, DISCRETE))
    assert isinstance(back, gs.Dict)
    assert list(back.spaces) == ["z", "a"]
    assert getattr(back, "sort_keys", True) == getattr(space, "sort_keys", True)


class Custom(gs.Space[Any]):
    """A space that only its author knows."""


def test_a_space_of_ones_own_is_named_with_its_path() -> None:
    nested = gs.Dict({"a": gs.Tuple([DISCRETE, Custom()])})
    with pytest.raises(LayoutError, match=r'observation\["a"\]\[1\]: a Custom space'):
        encode_spaces(nested, DISCRETE)
    inside = gs.Sequence(gs.OneOf([DISCRETE, Custom()]))
    with pytest.raises(LayoutError, match=r"action\[...\]\[1\]: a Custom space"):
        encode_spaces(DISCRETE, inside)


class Missions(gs.Space[str]):
    """A space of texts that only its author knows, as MiniGrid has one."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


def test_a_space_of_ones_own_texts_travels_as_a_text() -> None:
    observation = gs.Dict({"at": DISCRETE, "mission": Missions(), "more": gs.Sequence(Missions())})
    back, _ = decode_spaces(encode_spaces(observation, DISCRETE))
    assert isinstance(back, gs.Dict)
    assert isinstance(back["mission"], gs.Text) and isinstance(back["more"], gs.Sequence)
    assert back["mission"].contains("go to the red ball")
    leaf = Variable(Missions(), "observation")
    assert leaf.is_text and leaf.decode(leaf.encode("längere Rede" * 9999)) == "längere Rede" * 9999
    with pytest.raises(LayoutError, match="observation: expected text, got int"):
        leaf.encode(3)


def test_such_a_space_of_actions_is_refused() -> None:
    with pytest.raises(LayoutError, match=r'action\["say"\]: a Missions space can\'t be described'):
        encode_spaces(DISCRETE, gs.Dict({"say": Missions()}))


def test_an_alphabet_that_is_no_unicode_is_named() -> None:
    with pytest.raises(LayoutError, match="observation: the charset holds half a surrogate pair"):
        encode_spaces(gs.Text(5, charset="a\ud800"), DISCRETE)


@given(strategies.varied_space, strategies.varied_space)
def test_what_has_no_fixed_size_round_trips(observation: Space[Any], action: Space[Any]) -> None:
    decoded = decode_spaces(encode_spaces(observation, action))
    assert decoded == (observation, action)
    for before, after in zip((observation, action), decoded, strict=True):
        assert repr(before) == repr(after)


def test_an_alphabet_keeps_its_order_so_a_seed_gives_the_same_texts() -> None:
    space = gs.Text(20, charset="zyxabc")
    back, _ = decode_spaces(encode_spaces(space, DISCRETE))
    space.seed(3)
    back.seed(3)
    assert [space.sample() for _ in range(5)] == [back.sample() for _ in range(5)]


def test_a_key_that_is_no_text_is_named() -> None:
    space = gs.Dict({(1, 2): DISCRETE})  # type: ignore[dict-item]
    with pytest.raises(LayoutError, match=r"observation: key \(1, 2\)"):
        encode_spaces(space, DISCRETE)


def test_nesting_is_limited_on_both_sides() -> None:
    space: Space[Any] = DISCRETE
    for _ in range(DEPTH_MAX):
        space = gs.Tuple([space])
    assert decode_spaces(encode_spaces(space, DISCRETE))[0] == space
    with pytest.raises(LayoutError, match="nested deeper than"):
        encode_spaces(gs.Tuple([space]), DISCRETE)
    deep = b"\x82\xabobservation" + b"\x82\xa1k\xa5tuple\xa5items\x91" * 100_000
    with pytest.raises(PeerError):
        decode_spaces(deep)


def test_size_is_limited_before_anything_is_allocated() -> None:
    side = 1 << 40
    for node in (
        {"k": "multi_binary", "n": side},
        {"k": "multi_binary", "n": [side, side]},
        {
            "k": "multi_discrete",
            "dtype": "<i8",
            "shape": [side],
            "nvec": b"\x01" + bytes(8),
            "start": b"\x01" + bytes(8),
        },
        {
            "k": "box",
            "dtype": "<f4",
            "shape": [1 << 12] * 31,
            "low": b"\x01" + bytes(4),
            "high": b"\x01" + bytes(4),
            "bounded_below": b"\x01\x00",
            "bounded_above": b"\x01\x00",
        },
        {"k": "tuple", "items": [{"k": "multi_binary", "n": VALUE_BYTES_MAX // 2 + 1}] * 2},
    ):
        data = msgspec.msgpack.encode({"observation": node, "action": node})
        with pytest.raises(PeerError, match=r"at most|more than"):
            decode_spaces(data)


def test_a_compressed_bomb_is_cut_at_the_size_of_the_shape() -> None:
    bomb = b"\x02" + zlib.compress(bytes(1 << 24))
    node = {
        "k": "box",
        "dtype": "<f4",
        "shape": [4],
        "low": bomb,
        "high": bomb,
        "bounded_below": b"\x01\x00",
        "bounded_above": b"\x01\x00",
    }
    with pytest.raises(PeerError, match="17 bytes of bounds where 16 belong"):
        decode_spaces(msgspec.msgpack.encode({"observation": node, "action": node}))


@pytest.mark.parametrize("dtype", ["O", "<U4", "f4,f4", "|V8", "<f3", "m8", "c16", "<f4\n"])
def test_dtypes_outside_the_list_are_refused(dtype: str) -> None:
    node = {"k": "discrete", "dtype": dtype, "n": 2, "start": 0}
    with pytest.raises(PeerError):
        decode_spaces(msgspec.msgpack.encode({"observation": node, "action": node}))


def test_too_large_or_with_too_many_axes_is_refused_when_described() -> None:
    with pytest.raises(LayoutError, match="at most"):
        encode_spaces(gs.MultiBinary(VALUE_BYTES_MAX + 1), DISCRETE)
    with pytest.raises(LayoutError, match="32 axes"):
        encode_spaces(gs.MultiBinary([1] * 32), DISCRETE)
    half = gs.MultiBinary(VALUE_BYTES_MAX // 2 + 1)
    with pytest.raises(LayoutError, match=r"observation\[1\]: one value takes more than"):
        encode_spaces(gs.Tuple([half, half]), DISCRETE)


def test_a_key_that_occurs_twice_is_refused() -> None:
    leaf = {"k": "multi_binary", "n": 2}
    node = {"k": "dict", "items": [["a", leaf], ["a", leaf]], "sort_keys": True}
    with pytest.raises(PeerError, match="twice"):
        decode_spaces(msgspec.msgpack.encode({"observation": node, "action": node}))


@pytest.mark.parametrize("bounds", [b"", b"\x03\x00", b"\x00\x00", b"\x01\x00\x00", b"\x02junk"])
def test_bounds_in_an_unknown_form_are_refused(bounds: bytes) -> None:
    node = {"k": "multi_discrete", "dtype": "|u1", "shape": [3], "nvec": bounds, "start": bounds}
    with pytest.raises(PeerError):
        decode_spaces(msgspec.msgpack.encode({"observation": node, "action": node}))


def test_a_flag_that_is_no_bool_is_refused() -> None:
    one, flag = b"\x01" + bytes(4), b"\x01\x02"
    node = {"k": "box", "dtype": "<f4", "shape": [3], "low": one, "high": one}
    node |= {"bounded_below": flag, "bounded_above": flag}
    with pytest.raises(PeerError, match="neither 0 nor 1"):
        decode_spaces(msgspec.msgpack.encode({"observation": node, "action": node}))
