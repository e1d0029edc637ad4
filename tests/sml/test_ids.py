"""Ids: global, monotonic, never twice; and the UUIDs that say the same."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LocalError
from dsec.sml import ids
from dsec.sml.ids import BLOCK_IDS, ID_MAX, Lease

IDS = st.integers(0, ID_MAX)
SPACES = st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))


@given(st.integers(0, 1 << 40), st.integers(1, 1000), st.data())
def test_a_deterministic_id_is_step_times_agents_plus_rank(
    step: int, agents: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, agents - 1))
    found = ids.deterministic(step, agents, rank)
    assert found == step * agents + rank
    assert ids.place(found, agents) == (step, rank)


def test_deterministic_ids_order_by_step_and_then_by_rank() -> None:
    given = [ids.deterministic(step, 3, rank) for step in range(5) for rank in range(3)]
    assert given == list(range(15))


@pytest.mark.parametrize("wrong", [(-1, 3, 0), (0, 3, 3), (0, 3, -1), (ID_MAX, 2, 0)])
def test_a_wrong_rank_or_step_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(LocalError):
        ids.deterministic(*wrong)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 9)), min_size=2))
def test_leased_ids_order_as_epoch_block_offset_do(places: list[tuple[int, int, int]]) -> None:
    assert [ids.leased(*each) for each in sorted(places)] == sorted(
        ids.leased(*each) for each in places
    )


def test_the_largest_leased_id_is_the_largest_id() -> None:
    last = ((1 << 14) - 1, (1 << 28) - 1, (1 << 20) - 1)
    assert ids.leased(*last) == ID_MAX
    for index in range(3):
        wrong = [each + (index == i) for i, each in enumerate(last)]
        with pytest.raises(LocalError, match="bits"):
            ids.leased(*wrong)


def test_a_lease_gives_block_after_block() -> None:
    blocks = itertools.count(5)
    lease = Lease(2, lambda: next(blocks))
    first = [lease.take() for _ in range(3)]
    assert first == [ids.leased(2, 5, offset) for offset in range(3)]
    lease._next = lease._end - 1
    assert lease.take() == ids.leased(2, 5, BLOCK_IDS - 1)
    assert lease.take() == ids.leased(2, 6, 0)


@given(SPACES, IDS)
def test_a_uuid_is_its_id_and_its_space(space: tuple[int, int], atom_id: int) -> None:
    found = ids.to_uuid(space, atom_id)
    assert found.version == 8
    assert found.variant == uuid.RFC_4122
    assert ids.from_uuid(space, found) == atom_id


def test_a_uuid_of_somewhere_else_is_nobody() -> None:
    assert ids.from_uuid((1 << 20, 0), ids.to_uuid((1 << 21, 0), 5)) is None
    assert ids.from_uuid((1, 0), uuid.uuid4()) is None
    with pytest.raises(LocalError):
        ids.to_uuid((1, 0), ID_MAX + 1)


def test_how_an_id_is_written_for_people() -> None:
    assert ids.shown(1) == "ASA-000001"
    assert ids.shown(12_345_678) == "ASA-12345678"
