"""Values without a fixed size: exact round trips, named refusals, and hostile bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space
from gymnasium import spaces as gs
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LayoutError, PeerError
from dsec.ipc.layout import EnvRecord, Layout
from dsec.ipc.variable import Variable
from tests.ipc import strategies
from tests.ipc.strategies import same

BOX = gs.Box(-1, 1, (3,), np.float32)
ROW = np.arange(3, dtype=np.float32)
DICT = gs.Dict({"at": BOX, "word": gs.Text(9)})


@given(strategies.varied_space, st.integers(1, 3), st.integers(0, 2**32))
def test_a_record_gives_back_what_gymnasium_batches(space: Space[Any], n: int, seed: int) -> None:
    record = EnvRecord(space, n)
    values = strategies.samples(space, n + 1, seed)
    memory = bytearray(record.fixed_bytes)
    views = record.views(memory)
    for i in range(n):
        record.layout.write(views.obs, i, values[i])
    infos = [{"i": i} for i in range(n)]
    tail = record.encode_tail(views.obs, {n - 1: values[n]}, infos)
    found = record.views(bytes(memory))
    extras = record.open_tail(found.obs, tail)
    batch = concatenate(space, values[:n], create_empty_array(space, n))
    copy = record.layout.copy(found.obs)
    assert same(copy, batch)
    for i in range(n):
        one, other = record.layout.read(found.obs, i), record.layout.read(views.obs, i)
        assert same(one, other)
    finals, told = record.decode_extras(extras)
    assert told == infos
    again = record.views(bytearray(record.fixed_bytes))
    record.layout.write(again.obs, 0, finals[n - 1])
    record.layout.write(views.obs, 0, values[n])
    first = record.layout.read(views.obs, 0)
    assert same(record.layout.read(again.obs, 0), first)
    patched = record.layout.patched(record.layout.copy(found.obs), 0, finals[n - 1])
    others = concatenate(space, [values[n], *values[1:n]], create_empty_array(space, n))
    assert same(patched, others)


@given(strategies.varied_space, st.integers(0, 2**32), st.data())
def test_damaged_bytes_raise_peer_error_or_decode(
    space: Space[Any], seed: int, data: st.DataObject
) -> None:
    layout = Layout(space, 2)
    views = layout.views(bytearray(layout.nbytes))
    for i, value in enumerate(strategies.samples(space, 2, seed)):
        layout.write(views, i, value)
    damaged = data.draw(strategies.damaged(layout.pack(views)))
    try:
        layout.unpack(views, damaged)
        layout.copy(views)
    except PeerError:
        return


@pytest.mark.parametrize("count", [0, 1, 10_000])
@pytest.mark.parametrize("stack", [False, True])
def test_a_sequence_of_any_length(count: int, *, stack: bool) -> None:
    rows = np.random.default_rng(1).random((count, 3)).astype(np.float32)
    variable = Variable(gs.Sequence(BOX, stack=stack), "x")
    value: Any = rows if stack else tuple(rows)
    data = variable.encode(value)
    assert len(data) < rows.nbytes + 100, "many like arrays cost what they hold"
    assert same(variable.decode(data), value)


@pytest.mark.parametrize("count", [0, 1, 1 << 20])
def test_a_text_of_any_length(count: int) -> None:
    variable = Variable(gs.Text(5), "x")
    text = "\u00e9\x00" * count
    assert variable.decode(variable.encode(text)) == text


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (gs.Text(3), "longer than three"),
        (gs.Text(3, charset="ab"), "xyz"),
        (gs.Sequence(BOX), (ROW * np.nan,)),
        (gs.Sequence(BOX), (ROW.astype(np.float64), ROW)),
        (gs.Sequence(gs.Discrete(3)), (1, np.int64(2), 70)),
        (gs.OneOf([BOX, gs.Discrete(2)]), (1, 5)),
        (gs.Sequence(gs.Box(0, 1, ())), (np.array(0.5, np.float32), np.array(1, np.float32))),
        (gs.Sequence(BOX, stack=True), np.zeros((0, 3), np.float32)),
        (gs.Graph(BOX, gs.Discrete(2)), gs.GraphInstance(np.zeros((0, 3)), None, None)),
    ],
)
def test_what_gymnasium_passes_on_is_passed_on_as_it_is(space: Space[Any], value: Any) -> None:
    """Bounds, lengths, alphabets and dtypes are not its vector environments' business."""
    variable = Variable(space, "x")
    assert same(variable.decode(variable.encode(value)), value)


LINK = np.zeros((1, 2), np.int32)


@pytest.mark.parametrize(
    ("space", "value", "told"),
    [
        (gs.Text(3), 5, r"x: expected text, got int"),
        (gs.Text(3), b"abc", r"x: expected text, got bytes"),
        (gs.Text(3), "\ud800", r"x: the text is no Unicode"),
        (gs.Sequence(BOX), [ROW], r"x: expected a tuple, got list of length 1"),
        (gs.Sequence(BOX), (ROW, ROW[:2]), r"x\[...\]: expected float32 \(3,\).*\(item 1\)"),
        (gs.Sequence(BOX), (ROW[:2],), r"x\[...\]: expected float32 \(3,\), got float32 \(2,\)"),
        (gs.Sequence(BOX), (ROW * 1j,), r"x\[...\]: expected float32 \(3,\), got complex"),
        (gs.Sequence(BOX), ([0, 0, 0],), r"expected float32 \(3,\), got list of length 3"),
        (gs.Sequence(BOX), (None,), r"expected float32 \(3,\), got NoneType"),
        (gs.Sequence(gs.Discrete(2)), (0.5,), r"expected int64 \(\), got float"),
        (gs.Sequence(BOX, stack=True), (ROW,), r"expected float32 \(any, 3\), got tuple"),
        (gs.Sequence(BOX, stack=True), ROW, r"expected float32 \(any, 3\), got float32 \(3,\)"),
        (gs.Sequence(DICT), ({"at": ROW},), r"x\[...\]: expected the keys \['at', 'word'\]"),
        (gs.Sequence(DICT), ({"at": ROW, "word": 1},), r'x\[...\]\["word"\]: expected text'),
        (
            gs.Sequence(gs.Tuple([BOX])),
            ((),),
            r"expected a tuple of 1 items, got tuple of length 0",
        ),
        (gs.Graph(BOX, None), (ROW, None, None), r"x: expected a GraphInstance, got tuple"),
        (gs.Graph(BOX, None), gs.GraphInstance(ROW, None, None), r"x.nodes: expected float32"),
        (gs.Graph(BOX, None), gs.GraphInstance(ROW[None], ROW, LINK), r"x.edges: expected none"),
        (
            gs.Graph(BOX, BOX),
            gs.GraphInstance(ROW[None], ROW[None], LINK[0]),
            r"x.edge_links: expected integers \(edges, 2\), got int32 \(2,\)",
        ),
        (gs.OneOf([BOX]), ROW, r"x: expected a tuple of an index below 1 and a value"),
        (gs.OneOf([BOX]), (1, ROW), r"x: expected an index below 1, got 1"),
        (gs.OneOf([BOX]), (True, ROW), r"x: expected an index below 1, got bool"),
        (gs.OneOf([BOX]), (0, ROW[:1]), r"x\[0\]: expected float32 \(3,\), got float32 \(1,\)"),
    ],
)
def test_what_does_not_fit_is_named(space: Space[Any], value: Any, told: str) -> None:
    with pytest.raises(LayoutError, match=told):
        Variable(space, "x").encode(value)


def test_a_batch_must_have_a_value_for_each_environment() -> None:
    layout = Layout(gs.Dict({"t": gs.Text(5)}), 2, "action")
    views = layout.views(bytearray())
    layout.write_batch(views, {"t": np.array(["a", "b"])})
    assert layout.copy(views) == {"t": ("a", "b")}
    for values in (("a",), "ab", None):
        with pytest.raises(LayoutError, match=r'action\["t"\]: expected a tuple of 2 values'):
            layout.write_batch(views, {"t": values})
    with pytest.raises(LayoutError, match=r'environment 1: action\["t"\]: expected text'):
        layout.write_batch(views, {"t": ("a", 1)})


def test_a_value_is_taken_at_once() -> None:
    """An environment may fill the same buffer at each step."""
    layout = Layout(gs.Sequence(BOX), 1)
    views = layout.views(bytearray())
    buffer = ROW.copy()
    layout.write(views, 0, (buffer, buffer))
    buffer[:] = 7
    assert same(layout.read(views, 0), (ROW, ROW))
