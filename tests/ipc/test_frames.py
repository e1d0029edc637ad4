"""Every frame round-trips; anything else is a FrameError."""

from __future__ import annotations

import functools
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import FrameError
from dsec.ipc import frames
from dsec.ipc.frames import FRAME_BYTES_MAX, AnyFrame
from tests.ipc import strategies

FRAME_TYPES: tuple[type[Any], ...] = get_args(AnyFrame)

# What fields annotated `Any` carry: the config's own kwargs, as msgpack knows them.
loose = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts),
    max_leaves=5,
)


def of_type(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """A strategy for a field's type, built from what msgspec says about it."""
    info = msgspec.inspect
    match kind:
        case info.AnyType():
            return loose
        case info.NoneType():
            return st.none()
        case info.BoolType():
            return st.booleans()
        case info.IntType():
            return st.integers(-(2**63), 2**64 - 1)
        case info.FloatType():
            return st.floats(allow_nan=False)
        case info.StrType():
            return st.text(max_size=8)
        case info.BytesType():
            return st.binary(max_size=16)
        case info.VarTupleType(item_type=item):
            return st.lists(of_type(item), max_size=3).map(tuple)
        case info.TupleType(item_types=items):
            return st.tuples(*map(of_type, items))
        case info.DictType(key_type=key, value_type=value):
            return st.dictionaries(of_type(key), of_type(value), max_size=3)
        case info.UnionType(types=types):
            return st.one_of([of_type(each) for each in types])
        case info.StructType(cls=cls):
            return of_struct(cls)
    raise AssertionError(f"this test doesn't know fields of {kind}")


@functools.cache
def of_struct(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Deferred and kept, for a struct may hold others of its own kind."""

    def built() -> st.SearchStrategy[Any]:
        description = msgspec.inspect.type_info(cls)
        assert isinstance(description, msgspec.inspect.StructType)
        return st.builds(cls, **{field.name: of_type(field.type) for field in description.fields})

    return st.deferred(built)


any_frame: st.SearchStrategy[AnyFrame] = st.sampled_from(FRAME_TYPES).flatmap(of_struct)


@pytest.mark.parametrize("cls", FRAME_TYPES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_round_trip(cls: type[Any], data: st.DataObject) -> None:
    frame = data.draw(of_struct(cls))
    back = frames.decode(frames.encode(frame))
    assert type(back) is cls and back == frame


def test_every_frame_of_the_module_is_in_the_vocabulary() -> None:
    defined = {
        each
        for each in vars(frames).values()
        if isinstance(each, type) and issubclass(each, frames.Frame) and each is not frames.Frame
    }
    assert defined == set(FRAME_TYPES)
    tags = [cls.__struct_config__.tag for cls in FRAME_TYPES]
    assert len(set(tags)) == len(tags)


@given(any_frame, st.data())
def test_damaged_bytes_raise_frame_error_or_are_another_frame(
    frame: AnyFrame, data: st.DataObject
) -> None:
    try:
        decoded = frames.decode(data.draw(strategies.damaged(frames.encode(frame))))
    except FrameError:
        return
    assert type(decoded) in FRAME_TYPES


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError, match="not a control frame"):
        frames.decode(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"t": "no_such_frame"},
        {"t": "hello"},
        {"t": "hello", "pid": "x"},
        {"t": "hello", "pid": 1.5},
        {"t": "hello", "pid": 1, "more": 2},
        {"pid": 1},
        {"t": "wire", "agent": "a", "spaces": b"", "segments": [{"role": 1}]},
        {"t": "constructed", "spaces": b"", "ring_bytes": {"a": 1}},
        [1],
        None,
    ],
)
def test_wrong_fields_raise_frame_error(fields: Any) -> None:
    with pytest.raises(FrameError):
        frames.decode(msgspec.msgpack.encode(fields))


def test_deep_nesting_raises_frame_error() -> None:
    head = msgspec.msgpack.encode({"t": "start"})[1:]
    data = b"\x82" + head + b"\xa6kwargs\x81\xa1a" + b"\x91" * 50_000
    with pytest.raises(FrameError):
        frames.decode(data)


def test_a_frame_that_is_too_large_is_refused_by_its_sender() -> None:
    with pytest.raises(FrameError, match="Drain frame of"):
        frames.encode(frames.Drain("x" * FRAME_BYTES_MAX))
