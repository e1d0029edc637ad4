"""Objects read in C: it comes out as an encoder writes it, or it is said that they are others."""

from __future__ import annotations

import struct
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.ipc import items
from dsec.ipc.items import Items, Node, Slot
from dsec.ipc.watch import Watch

encode = msgspec.msgpack.encode
_PLAIN = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats()


def of(*nodes: Node, loose: Any = (), tell: Any = lambda number: None) -> Items:
    return Items(nodes, Watch([()] * len(nodes)), b"<", b">", loose, tell)


def of_dict(held: dict[Any, Any]) -> Items:
    slots = [Slot(items.PLAIN, b"", None, key) for key in held]
    return of(Node(items.DICT, held, slots))


@given(st.lists(_PLAIN, max_size=5), st.lists(_PLAIN, max_size=5))
def test_plain_values_come_out_as_an_encoder_writes_them(before: Any, after: Any) -> None:
    held = dict(zip("abcde", before, strict=False))
    read = of_dict(held)
    assert read.take() == b"<" + b"".join(map(encode, before)) + b">"
    for key, value in zip(held, after, strict=False):
        held[key] = value
    assert read.take() == b"<" + b"".join(map(encode, held.values())) + b">"
    numbers = [*before]
    read = of(Node(items.LIST, numbers, [Slot(items.PLAIN, b"")] * len(numbers)))
    numbers[: len(after)] = after[: len(numbers)]
    assert read.take() == b"<" + b"".join(map(encode, numbers)) + b">"


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.update(c=1),
        lambda held: held.pop("b"),
        lambda held: held.update(a=held.pop("a")),  # another order
        lambda held: held.update(a="text"),
        lambda held: held.update(a=np.float64(1)),
        lambda held: held.update(a=1 << 63),
        lambda held: held.update(b=[]),
    ],
)
def test_another_form_is_said_to_be_one(change: Any) -> None:
    held: dict[str, Any] = {"a": 1, "b": []}
    slots = [Slot(items.PLAIN, b"", None, "a"), Slot(items.SAME, b"b", held["b"], "b")]
    read = of(Node(items.DICT, held, slots))
    assert read.take() == b"<\x01b>"
    change(held)
    assert read.take() is None


@given(st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 32) - 1))
def test_numbers_in_memory(wide: int, word: int) -> None:
    memory = np.frombuffer(wide.to_bytes(16, "little") + struct.pack("<I", word), np.uint8).copy()
    at = memory.ctypes.data
    slots = [Slot(items.WIDE, b"", None, at), Slot(items.WORD, b"", None, at + 16)]
    still = Slot(items.STILL, b"", memory.tobytes(), at)
    read = of(Node(items.MEMORY, memory, [*slots, still], b"!"))
    expected = encode(wide if wide < 1 << 63 else hex(wide)) + encode(word)
    assert read.take() == b"<" + expected + b"!>"
    memory[17] ^= 1
    assert read.take() is None


def test_arrays_by_form_and_never_twice() -> None:
    fixed, first, second = np.arange(3.0), np.zeros(2, np.int16), np.zeros(2, np.int16)
    held: dict[str, Any] = {"a": first, "b": second}
    slots = [Slot(items.LOOSE, key.encode(), None, key, at) for at, key in enumerate(held)]
    nodes = Node(items.DICT, held, slots), Node(items.ARRAY, fixed, after=b"f")
    read = of(*nodes, loose=[(first, b"1"), (second, b"2")])
    held["a"], held["b"], fixed[1] = np.array([1, 2], np.int16), np.array([3, 4], np.int16), 7.0
    assert read.take() == b"".join(
        (b"<abf", fixed.tobytes(), b">1", held["a"].tobytes(), b"2", held["b"].tobytes())
    )
    whole = np.zeros(4, np.int16)
    others = (
        held["a"],  # the same twice
        fixed,  # one that is known
        whole[:2],  # a view
        np.zeros(4, np.int16)[::2],
        np.zeros(3, np.int16),
        np.zeros((2, 1), np.int16),
        np.zeros(2, np.uint16),
        np.zeros(2, ">i2"),
        [1, 2],
    )
    before = sys.getrefcount(whole)
    for other in others:
        held["b"] = other
        assert read.take() is None, other
        held["b"] = second
        assert read.take() is not None
    held["b"] = others = None
    assert sys.getrefcount(whole) == before - 1, "the tuple's own"
    second = np.zeros(2, np.int16)
    second.flags.writeable = False
    held["b"] = second
    assert read.take() is None, "read-only, and the other one was not"


def test_who_reads_in_python_is_asked_and_believed() -> None:
    texts = [b"short", b"long" * 1000, None, b"x"]
    read = of(Node(items.TOLD), tell=lambda number: texts[0])
    for text in texts:
        texts[0] = text
        assert read.take() == (None if text is None else b"<" + text + b">")


def test_reads_again_only_what_has_changed() -> None:
    from dsec.failover.codecs.memory import of_dict as shown

    held = {"a": 1}
    watch = Watch([shown(held)])
    read = Items(
        [Node(items.DICT, held, [Slot(items.PLAIN, b"", None, "a")], watched=bool(shown(held)))],
        watch, b"<", b">", (), lambda number: None,
    )  # fmt: skip
    for value in (1, 1, 2, 2, 1):
        held["a"] = value
        assert read.take() == b"<" + encode(value) + b">"
