"""A structured codec for what environments put into info dicts: exact, bounded, never unpickling.

This file owns the encoding of loose values (msgpack with the extension types below). It knows no
space, no ring and no journal. What is decoded equals what was encoded in value and type: tuple
stays tuple, float32 stays float32, an int of 300 bits stays itself, NaN keeps its bits. Only a
subclass of dict comes back as a dict, a member of an enumeration as its value (whoever reads may
not have its class), and an array in C order. Anything that has no place here is refused with its
path, as in `info["a"][3]`, rather than changed into something near it.

A runner wrote the bytes, so decoding trusts nothing: each size is compared with the bytes that
are there before anything of that size exists, and what comes out is again what `encode` accepts.

A tuple or set is a msgpack array that begins with a marker, an extension without payload; so one
pass of the C decoder reads everything, and only what holds extensions needs a second look.
"""

from __future__ import annotations

import enum
import math
import re
from typing import Any, Final, NoReturn

import msgspec
import numpy as np
from msgspec.msgpack import Ext
from numpy.typing import NDArray

from dsec.errors import ValueCodecError

DEPTH_MAX = 64
EMPTY_ITEMSIZE_MAX = 64 * 1024  # numpy allocates one item even for an array of none
_PATH_STEPS_SHOWN = 8

_TUPLE, _SET, _FROZENSET, _INT, _STR, _ARRAY, _SCALAR, _NP_STR, _NP_BYTES = range(1, 10)

# One code for each numpy number, because infos are full of them. Only ever append.
_NUMBERS = {64 + i: np.dtype(char) for i, char in enumerate("?bBhHiIlLqQefdgFDG")}
_NUMBER_CODES = {dtype.type: code for code, dtype in _NUMBERS.items()}

_INT_MIN: Final = -(1 << 63)
_INT_MAX: Final = (1 << 64) - 1
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_DTYPE = re.compile(r"[<>|](?:[biufc]\d{1,2}|[SUV]\d{1,9}|[mM]8(?:\[\d{0,9}[a-zA-Z]{1,2}\])?)")
_CODE_POINT_MAX = 0x10FFFF


class _Marker:
    """Stands at the head of a decoded list that is something else."""

    __slots__ = ("make",)

    def __init__(self, make: type[tuple[Any, ...]] | type[set[Any]] | type[frozenset[Any]]) -> None:
        self.make = make


_MARKERS = {_TUPLE: _Marker(tuple), _SET: _Marker(set), _FROZENSET: _Marker(frozenset)}


class _RefusedError(Exception):
    """Raised where a value can't go on; the callers add their steps while it passes them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def told(self, name: str) -> str:
        steps = self.steps[::-1]
        if len(steps) > _PATH_STEPS_SHOWN:
            steps = [*steps[:_PATH_STEPS_SHOWN], "..."]
        return f"{name}{''.join(steps)}: {self.reason}"


_encoder = msgspec.msgpack.Encoder()


def encode(value: Any, name: str = "info") -> bytes:
    """Encode a value: None, bool, int, float, str, bytes, list, tuple, set, frozenset, dict with
    str or int keys, numpy scalar, or numpy array of any dtype without objects; nested at will. A
    member of an enumeration is its value.

    Args:
        value: what to encode.
        name: what to call it in an error.

    Raises:
        ValueCodecError: something in it is none of these, or it is nested deeper than DEPTH_MAX
            (as it is if it contains itself); the path is named.
    """
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str or type(item) not in _PLAIN:
                break
        else:
            try:
                return _encoder.encode(value)
            except (OverflowError, UnicodeEncodeError):
                pass  # a large int or a lone surrogate, which the careful way knows how to write
    try:
        return _encoder.encode(_wire(value, 0))
    except _RefusedError as refused:
        raise ValueCodecError(refused.told(name)) from None


def _wire(value: Any, depth: int) -> Any:
    """Return the value in terms of msgpack and extensions."""
    kind = type(value)
    if kind is int:
        return value if _INT_MIN <= value <= _INT_MAX else Ext(_INT, _int_bytes(value))
    if kind is str:
        return value if _is_utf8(value) else Ext(_STR, value.encode("utf-8", "surrogatepass"))
    if kind in _PLAIN:
        return value
    code = _NUMBER_CODES.get(kind)
    if code is not None:
        return Ext(code, value.tobytes())
    if isinstance(value, np.generic):
        return _wire_scalar(value)
    if kind is np.ndarray:
        return Ext(_ARRAY, _array_head(value.dtype, value.shape) + value.tobytes())
    if depth >= DEPTH_MAX:
        raise _RefusedError(f"nested deeper than {DEPTH_MAX} (does it contain itself?)")
    if isinstance(value, dict):
        return _wire_dict(value, depth)
    if kind is list:
        return _wire_items(value, depth)
    if kind is tuple:
        return [Ext(_TUPLE, b""), *_wire_items(value, depth)]
    if kind is set or kind is frozenset:
        # Sorted by their bytes, because the order of a set differs from process to process.
        items = sorted((_wire_item("{}", item, depth) for item in value), key=_encoder.encode)
        return [Ext(_SET if kind is set else _FROZENSET, b""), *items]
    if isinstance(value, enum.Enum):
        return _wire(value.value, depth + 1)
    raise _RefusedError(
        f"a {kind.__module__}.{kind.__qualname__} has no place here; use None, bool, int, float,"
        " str, bytes, list, tuple, set, dict, or numpy arrays and scalars"
    )


def _wire_dict(value: dict[Any, Any], depth: int) -> dict[Any, Any]:
    wired: dict[str | int, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            _check_number_key(key)
        elif not key.isascii() and not _is_utf8(key):
            raise _RefusedError(f"key {key!r} holds a lone surrogate")
        # Numbers make up most of an info that comes with each step; they take the short way.
        kind = type(item)
        if kind is float:
            wired[key] = item
        elif kind in _NUMBER_CODES:
            wired[key] = Ext(_NUMBER_CODES[kind], item.tobytes())
        else:
            wired[key] = _wire_item(key, item, depth)
    return wired


def _check_number_key(key: Any) -> None:
    if type(key) is not int:
        raise _RefusedError(f"key {key!r} is a {type(key).__name__}; use str or int")
    if not _INT_MIN <= key <= _INT_MAX:
        # Not shown: Python refuses to write numbers of thousands of digits.
        raise _RefusedError(f"an int key of {key.bit_length()} bits; at most 64 are possible")


def _wire_items(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    return [_wire_item(i, item, depth) for i, item in enumerate(value)]


def _wire_item(step: str | int, item: Any, depth: int) -> Any:
    try:
        return _wire(item, depth + 1)
    except _RefusedError as refused:
        refused.steps.append(f'["{step}"]' if isinstance(step, str) else f"[{step}]")
        raise


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _wire_scalar(value: np.generic) -> Ext:
    if type(value) is np.str_:
        return Ext(_NP_STR, value.encode("utf-8", "surrogatepass"))
    if type(value) is np.bytes_:
        return Ext(_NP_BYTES, bytes(value))
    return Ext(_SCALAR, _array_head(value.dtype, ()) + value.tobytes())


def _array_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    if not math.prod(shape) and dtype.itemsize > EMPTY_ITEMSIZE_MAX:
        raise _RefusedError(f"an empty array of items of {dtype.itemsize} bytes")
    head = _encoder.encode((_dtype_spec(dtype), shape))
    return len(head).to_bytes(4, "little") + head


def _dtype_spec(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as text, or as `[itemsize, [[name, offset, shape, spec], ...]]`."""
    if dtype.names is None:
        if not _DTYPE.fullmatch(dtype.str):
            raise _RefusedError(f"a numpy value of dtype {dtype} has no place here")
        return dtype.str
    fields = []
    for name in dtype.names:
        assert dtype.fields is not None
        if len(dtype.fields[name]) > 2:
            raise _RefusedError(f"a numpy dtype with titles ({dtype}) has no place here")
        sub, offset = dtype.fields[name][:2]
        fields.append([name, offset, sub.shape, _dtype_spec(sub.base)])
    return [dtype.itemsize, fields]


# ---------------------------------------------------------------- decoding

_head_decoder = msgspec.msgpack.Decoder(tuple[Any, tuple[int, ...]])


def decode(data: bytes | memoryview) -> Any:
    """Return what `encode` was given; arrays are fresh and writable.

    Raises:
        ValueCodecError: the bytes are not from `encode`, or not all of them are there.
    """
    try:
        value = _decoder.decode(data)
        if type(value) in _PLAIN:
            return value
        if type(value) is dict:
            for key, item in value.items():
                if type(key) is not str or type(item) not in _PLAIN:
                    break
            else:
                return value
        return _unwire(value, 0)
    except (
        msgspec.DecodeError,
        msgspec.ValidationError,
        ArithmeticError,
        ValueError,
        TypeError,
        RecursionError,
        MemoryError,
        _RefusedError,
    ) as error:
        raise ValueCodecError(f"not an encoded value ({len(data)} bytes): {error}") from None


def _unwire(value: Any, depth: int) -> Any:
    """Return a decoded value with marked lists made what they stand for; refuse the foreign."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, np.ndarray | np.generic):
        return value
    if depth >= DEPTH_MAX:
        raise _RefusedError(f"nested deeper than {DEPTH_MAX}")
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str and type(key) is not int:
                raise _RefusedError("a key is neither str nor int")
            if type(item) not in _PLAIN:
                value[key] = _unwire(item, depth + 1)
        return value
    if kind is list:
        first = value[0] if value else None
        marker = first if isinstance(first, _Marker) else None
        start = 0 if marker is None else 1
        items = [_unwire(item, depth + 1) for item in value[start:]]
        return items if marker is None else marker.make(items)
    raise _RefusedError(f"a {kind.__name__} out of place")


def _extension(code: int, data: memoryview) -> Any:
    number = _NUMBERS.get(code)
    if number is not None:
        if len(data) != number.itemsize:
            _refuse(f"{len(data)} bytes for {number}")
        return np.frombuffer(data, number)[0]
    if code in _MARKERS:
        if data:
            _refuse("a marker with a payload")
        return _MARKERS[code]
    if code == _INT:
        return int.from_bytes(data, "little", signed=True)
    if code == _STR:
        return str(data, "utf-8", "surrogatepass")
    if code == _NP_STR:
        return np.str_(str(data, "utf-8", "surrogatepass"))
    if code == _NP_BYTES:
        return np.bytes_(bytes(data))
    if code == _ARRAY:
        return _array(data)
    if code == _SCALAR:
        array = _array(data)
        if array.shape:
            _refuse("a scalar with axes")
        return array[()]
    return _refuse(f"extension type {code}")


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


def _array(data: memoryview) -> NDArray[Any]:
    raw_at = 4 + int.from_bytes(data[:4], "little")
    if not 4 < raw_at <= len(data):
        _refuse("an array's head is cut off")
    spec, shape = _head_decoder.decode(data[4:raw_at])
    dtype = _dtype(spec, 0)
    raw = data[raw_at:]
    if any(side < 0 for side in shape):
        _refuse("a negative side")
    if math.prod(shape) * dtype.itemsize != len(raw):
        _refuse(f"{len(raw)} bytes for {dtype} {shape}")
    if not raw and dtype.itemsize > EMPTY_ITEMSIZE_MAX:
        _refuse(f"an empty array of items of {dtype.itemsize} bytes")
    array = np.ndarray(shape, dtype, bytearray(raw))
    _check_content(array)
    return array


def _dtype(spec: Any, depth: int) -> np.dtype[Any]:
    if type(spec) is str and _DTYPE.fullmatch(spec):
        return np.dtype(spec)
    if depth >= DEPTH_MAX:
        _refuse(f"a dtype nested deeper than {DEPTH_MAX}")
    itemsize, fields = spec
    names, offsets, formats = [], [], []
    for name, offset, shape, sub in fields:
        names.append(name)
        offsets.append(offset)
        formats.append((_dtype(sub, depth + 1), tuple(shape)))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})


def _check_content(array: NDArray[Any]) -> None:
    """Refuse bits that numpy itself could stumble over later: text that is no text."""
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            _check_content(array[name])
    elif dtype.kind == "U" and array.size and dtype.itemsize:
        word = np.dtype(f"{dtype.str[0]}u4")
        points = np.ascontiguousarray(array).view(word)
        if points.max() > _CODE_POINT_MAX:
            _refuse("a code point beyond Unicode")


_decoder = msgspec.msgpack.Decoder(ext_hook=_extension)
