"""The codec of infos: exact round trips, named refusals, and hostile bytes."""

from __future__ import annotations

import collections
import datetime
import enum
import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LayoutError, ValueCodecError
from dsec.ipc import values
from tests.ipc import strategies


@given(strategies.any_value)
def test_round_trip_is_exact(value: Any) -> None:
    assert strategies.same(values.decode(values.encode(value)), value)


@given(strategies.any_value)
def test_the_same_value_has_the_same_bytes(value: Any) -> None:
    assert values.encode(value) == values.encode(values.decode(values.encode(value)))


@given(strategies.any_value, st.data())
def test_damaged_bytes_raise_or_decode_to_what_can_be_encoded(
    value: Any, data: st.DataObject
) -> None:
    try:
        decoded = values.decode(data.draw(strategies.damaged(values.encode(value))))
    except ValueCodecError:
        return
    repr(decoded)
    values.encode(decoded)


@given(st.binary(max_size=48))
def test_arbitrary_bytes_raise_or_decode_to_what_can_be_encoded(data: bytes) -> None:
    try:
        decoded = values.decode(data)
    except ValueCodecError:
        return
    repr(decoded)
    values.encode(decoded)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"r": 1.5, "l": 20, "name": "x", "done": True, "none": None, "raw": b"\0"},
        {"big": 2**64, "small": -(2**63) - 1, "edge": [2**64 - 1, -(2**63)]},
        {"x": np.float64(1.5), "y": np.float32(math.nan), "b": np.bool_(True)},
        {"s": np.str_("a\0"), "bytes": np.bytes_(b"b\0"), "void": np.void(b"abc")},
        {"t": (1, [2, (3,)], ()), "set": {1, "a", (2,)}, "frozen": frozenset()},
        {1: {2: {3: [np.int8(-1)]}}, -5: None},
        {"when": np.datetime64("2026-08-01T12:00:00.5"), "nat": np.timedelta64("NaT", "s")},
        {"lone": "\udc80", "text": "\U0001f600 \u00e9"},
        np.array(["a", "\u4e2d\u6587"]),
        np.zeros((0, 3), "float16"),
        np.array(5, ">i4"),
        np.array([1, 2], "datetime64[25us]"),
        np.array([(1, 2.5, "ab")], [("a", "i4"), ("b", "f8", ()), ("c", "U2")]),
        np.zeros(2, np.dtype([("p", [("q", "u1", (2, 2))])], align=True)),
        [np.longlong(3), np.longdouble(2.5), np.clongdouble(1j), np.ulonglong(9)],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::-2],
        np.broadcast_to(np.float32(1), (2, 2)),
    ],
)
def test_examples_round_trip(value: Any) -> None:
    assert strategies.same(values.decode(values.encode(value)), value)


def test_bits_of_nan_are_kept() -> None:
    (nan,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000001234))
    back = values.decode(values.encode({"x": nan}))["x"]
    assert struct.pack("<d", back) == struct.pack("<d", nan)


def test_a_subclass_of_dict_comes_back_as_dict_in_its_order() -> None:
    value = collections.OrderedDict([("b", 1), ("a", collections.defaultdict(list, k=[1]))])
    assert strategies.same(values.decode(values.encode(value)), {"b": 1, "a": {"k": [1]}})


def test_decoded_arrays_are_writable_and_own_their_memory() -> None:
    data = bytearray(values.encode({"x": np.arange(3)}))
    array = values.decode(memoryview(data))["x"]
    data[:] = bytes(len(data))
    array += 1
    assert array.tolist() == [1, 2, 3]


class Colour(enum.IntEnum):
    RED = 1


class Odd(enum.Enum):
    FACE = object()


Point = collections.namedtuple("Point", "x y")


def test_a_member_of_an_enumeration_is_its_value() -> None:
    """Simulators put them into infos, and whoever reads may not have their class."""

    class Side(enum.Enum):
        LEFT = "left"

    told = values.decode(values.encode({"colour": Colour.RED, "sides": [Side.LEFT, None]}))
    assert told == {"colour": 1, "sides": ["left", None]}
    assert type(told["colour"]) is int


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [0, 1, 2, object()]}, r'info\["a"\]\[3\]: a builtins.object has no place'),
        ({"a": {"b": Odd.FACE}}, r'info\["a"\]\["b"\]: a builtins.object has no place'),
        ({"p": Point(1, 2)}, r'info\["p"\]: .*Point has no place'),
        ({"p": datetime.datetime(2026, 1, 1)}, r'info\["p"\]: a datetime.datetime'),
        ({"p": bytearray(b"x")}, r'info\["p"\]: a builtins.bytearray'),
        ({"p": 1j}, r'info\["p"\]: a builtins.complex'),
        ({"p": np.array([None])}, r'info\["p"\]: a numpy value of dtype object'),
        ({"p": np.zeros(1, [("a", "O")])}, r'info\["p"\]: a numpy value of dtype object'),
        ({"p": np.ma.masked_array([1])}, r'info\["p"\]: a numpy.*MaskedArray'),
        ({"p": np.zeros(0, "S70000")}, r'info\["p"\]: an empty array'),
        ({"p": {1.5: 0}}, r'info\["p"\]: key 1.5 is a float'),
        ({"p": {True: 0}}, r'info\["p"\]: key True is a bool'),
        ({"p": {2**64: 0}}, r'info\["p"\]: an int key of 65 bits'),
        ({"p": {10**5000: 0}}, r'info\["p"\]: an int key of 16610 bits'),
        ({"p": {"\udc80": 0}}, r'info\["p"\]: key .* lone surrogate'),
        ({"\udc80": 0}, r"info: key .* lone surrogate"),
        ({"p": ({object()},)}, r'info\["p"\]\[0\]\["{}"\]: a builtins.object'),
        ({"p": np.zeros(1, [(("title", "a"), "i4")])}, r'info\["p"\]: a numpy dtype with titles'),
    ],
)
def test_what_has_no_place_is_named_with_its_path(value: Any, told: str) -> None:
    with pytest.raises(ValueCodecError, match=told):
        values.encode(value)


def test_string_arrays_of_variable_width_are_refused() -> None:
    dtypes: Any = getattr(np, "dtypes", None)
    if not hasattr(dtypes, "StringDType"):
        pytest.skip("this numpy has no StringDType")
    with pytest.raises(ValueCodecError, match="has no place"):
        values.encode(np.array(["a"], dtypes.StringDType()))


def test_the_name_in_the_error_is_the_callers() -> None:
    with pytest.raises(LayoutError, match=r"infos\[1\]: a builtins.object"):
        values.encode([{}, object()], "infos")


def test_cycles_and_depth_end_in_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueCodecError, match=r"info\[0\].*\.\.\..*contain itself"):
        values.encode(loop)
    table: dict[str, Any] = {}
    table["self"] = (table,)
    with pytest.raises(ValueCodecError, match="contain itself"):
        values.encode(table)
    deep: Any = 0
    for _ in range(values.DEPTH_MAX):
        deep = [deep]
    assert values.decode(values.encode(deep)) == deep
    with pytest.raises(ValueCodecError, match="nested deeper"):
        values.encode([deep])


def ext(code: int, data: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))


def array_ext(spec: Any, shape: Any, raw: bytes, code: int = 6) -> bytes:
    head = msgspec.msgpack.encode((spec, shape))
    return ext(code, len(head).to_bytes(4, "little") + head + raw)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # a list of 2**32 - 1 items, none there
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x06",
        b"\x91" * 100_000 + b"\xc0",
        b"\x91" * 100 + b"\xc0",
        b"\x81\xc0\x01",  # {None: 1}
        b"\x81\xa1a\x81\xc3\x01",  # {"a": {True: 1}}
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        ext(1, b""),  # a marker alone
        ext(1, b"x"),
        b"\x92\x01" + ext(1, b""),  # a marker that isn't first
        b"\x92" + ext(2, b"") + b"\x90",  # a set of a list
        ext(99 + 20, b""),
        ext(64, b""),
        ext(72, b"123"),
        ext(5, b"\xff"),
        ext(6, b""),
        ext(6, b"\xff\xff\xff\xff"),
        array_ext("|O", [1], bytes(8)),
        array_ext("O", [1], bytes(8)),
        array_ext("|T16", [1], bytes(16)),
        array_ext("<f8", [2], bytes(8)),
        array_ext("<f8", [-1], bytes(8)),
        array_ext("<f8", [-1, -1], bytes(8)),
        array_ext("<f8", [2**62, 4], b""),
        array_ext("<f8", [0, 2**62], b""),
        array_ext("<f8", [1] * 100, bytes(8)),
        array_ext("|S999999999", [0], b""),
        array_ext("<U1", [1], b"\xff\xff\xff\xff"),
        array_ext("<U1", [1], b"\x00\x00\x11\x00"),
        array_ext("<f3", [1], bytes(3)),
        array_ext("<M8[qq]", [1], bytes(8)),
        array_ext([8, [["a", 0, [], "|O"]]], [1], bytes(8)),
        array_ext([8, [["a", 4, [], "<f8"]]], [1], bytes(8)),
        array_ext([8, [["a", -8, [], "<f8"]]], [1], bytes(8)),
        array_ext([8, [["a", 0, [2**40], "<f8"]]], [1], bytes(8)),
        array_ext([8, [["a", 0, [], "<f8"], ["a", 0, [], "<f8"]]], [1], bytes(8)),
        array_ext([4, [["a", 0, [], "<U1"]]], [1], b"\xff" * 4),
        array_ext(7, [1], bytes(8)),
        array_ext("<f8", [1], bytes(8), code=7),
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueCodecError, match="not an encoded value"):
        values.decode(data)


def test_a_dtype_nested_too_deep_is_refused() -> None:
    spec: Any = "|u1"
    for _ in range(values.DEPTH_MAX + 2):
        spec = [1, [["a", 0, [], spec]]]
    with pytest.raises(ValueCodecError):
        values.decode(array_ext(spec, [1], b"x"))
