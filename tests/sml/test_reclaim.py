"""The reclaimer's decisions: what is held stays, the rest goes, every byte has an owner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.errors import LocalError
from dsec.sml.pool import Entry, Label, Marks, Usage
from dsec.sml.reclaim import Holds, Retention, Share, Why, attribute, plan, weight

ROOM = 1000


def entry(
    atom_id: int,
    agent: int = 0,
    *,
    episode: int = 0,
    rollout: int = 0,
    seq: int | None = None,
    created_s: int = 0,
    marks: Marks = Marks.NONE,
    room: int = ROOM,
) -> Entry:
    label = Label(atom_id, agent, episode, rollout, atom_id if seq is None else seq, created_s)
    return Entry(label, room - 48, room, 1, marks)


def usage(entries: list[Entry], data_bytes: int = 1_000_000) -> Usage:
    room = sum(each.room for each in entries)
    return Usage(len(entries), 10_000, room, room, data_bytes, data_bytes)


def decide(entries: list[Entry], retention: Retention, **options: object) -> dict[int, list[Why]]:
    """Why, by id; those that go have a minus."""
    found = plan(entries, usage(entries), retention, 1000.0, **options)  # type: ignore[arg-type]
    assert len(found.frees) + len(found.keeps) == len(entries)
    goes = {-each.entry.label.id: list(each.why) for each in found.frees}
    return goes | {each.entry.label.id: list(each.why) for each in found.keeps}


def test_the_last_of_each_agent_stay() -> None:
    entries = [entry(number, number % 2) for number in range(10, 20)]
    found = decide(entries, Retention(keep_last=2))
    assert {each for each in found if each > 0} == {19, 18, 17, 16}
    assert found[19] == found[18] == [Why.LATEST]
    assert found[17] == [Why.RECENT]
    assert found[-10] == [Why.DONE]


def test_what_is_pinned_or_wanted_stays_and_says_so() -> None:
    holds = Holds()
    holds.hold(3, "trainer", 2000)
    entries = [
        entry(1, marks=Marks.PINNED),
        entry(2, marks=Marks.STANDBY),
        entry(3),
        entry(4),
        entry(5, marks=Marks.PINNED | Marks.STANDBY),
    ]
    found = decide(entries, Retention(keep_last=1), holds=holds)
    assert found == {
        1: [Why.PINNED],
        2: [Why.STANDBY],
        3: [Why.READER],
        -4: [Why.DONE],
        5: [Why.PINNED, Why.STANDBY, Why.LATEST],
    }
    assert -2 in decide(entries, Retention(keep_last=1), holds=holds, standbys=False)


def test_a_lease_ends_by_itself_or_by_its_holder() -> None:
    holds = Holds()
    holds.hold(1, "a", 100)
    holds.hold(1, "b", 50)
    holds.hold(2, "b", 500)
    holds.hold(1, "b", 10)  # not shortened
    assert holds.holders(1, 20) == ["a", "b"]
    assert holds.holders(1, 50) == ["a"]
    holds.expire(100)
    assert holds.holders(1, 0) == []
    assert holds.holders(2, 100) == ["b"]
    holds.release("b")
    assert holds.holders(2, 100) == []
    holds.hold(3, "a", 100)
    holds.release("a", 3)
    holds.release("nobody", 3)
    assert holds.holders(3, 0) == []


def test_the_young_stay() -> None:
    entries = [entry(1, created_s=900), entry(2, created_s=980), entry(3, created_s=999)]
    found = decide(entries, Retention(keep_last=1, keep_s=50))
    assert found[-1] == [Why.DONE]
    assert found[2] == [Why.YOUNG]


def test_what_the_reward_decay_weighs_stays_until_its_episode_ends() -> None:
    entries = [entry(number, seq=number * 50, episode=1) for number in range(1, 11)]
    retention = Retention(keep_last=1, gamma=0.99, weight_min=0.1)
    found = decide(entries, retention)
    # 0.99 ** 229 = 0.1: the last 200 steps are weighed
    assert {each for each in found if each > 0} == {6, 7, 8, 9, 10}
    assert found[6] == [Why.WEIGHED]
    ended = [*entries, entry(11, seq=501, episode=2)]
    assert {each for each in decide(ended, retention) if each > 0} == {11}


def test_weight_is_gamma_for_each_step_and_nothing_across_an_end() -> None:
    latest = entry(9, seq=30, episode=2)
    assert weight(entry(1, seq=10, episode=2), latest, 0.5) == 0.5**20
    assert weight(latest, latest, 0.0) == 1.0
    assert weight(entry(1, seq=10, episode=1), latest, 1.0) == 0.0
    assert weight(entry(1, seq=10, episode=2, rollout=1), latest, 1.0) == 0.0


def test_what_an_agent_that_is_gone_left_goes_with_its_owner_named() -> None:
    entries = [entry(1, 0), entry(2, 1), entry(3, 1, marks=Marks.PINNED)]
    found = decide(entries, Retention(), living={0})
    assert found == {1: [Why.LATEST], -2: [Why.GONE], 3: [Why.PINNED]}


def test_under_pressure_the_least_weighed_and_oldest_go_first() -> None:
    entries = [entry(number, number % 2, seq=number) for number in range(1, 101)]
    full = usage(entries, data_bytes=100 * ROOM)
    retention = Retention(keep_last=60, gamma=0.9, weight_min=0.5, high=0.9, low=0.5)
    found = plan(entries, full, retention, 0.0)
    assert [each.entry.label.id for each in found.frees] == list(range(1, 51))
    assert {each.why for each in found.frees} == {(Why.PRESSURE,)}
    assert found.short_bytes == 0
    relaxed = plan(entries, replace(full, data_bytes=200 * ROOM), retention, 0.0)
    assert relaxed.frees == ()


def test_under_pressure_nothing_held_goes_and_what_is_missing_is_told() -> None:
    entries = [entry(number, marks=Marks.PINNED) for number in range(1, 91)]
    entries += [entry(number, number) for number in range(91, 101)]
    full = usage(entries, data_bytes=100 * ROOM)
    found = plan(entries, full, Retention(high=0.6, low=0.5), 0.0)
    assert found.frees == (), "the latest of a living agent is what it would be restored from"
    assert found.short_bytes == 40 * ROOM


def test_every_byte_has_an_owner() -> None:
    entries = [
        entry(1, 0, room=10),
        entry(2, 0, room=20),
        entry(3, 0, episode=1, room=5),
        entry(4, 1, rollout=2, room=100),
    ]
    assert list(attribute(entries).items()) == [
        ((1, 0, 2), Share(1, 100)),
        ((0, 0, 0), Share(2, 30)),
        ((0, 1, 0), Share(1, 5)),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_last": 0},
        {"keep_s": -1},
        {"gamma": 1.1},
        {"weight_min": 0},
        {"high": 1.2},
        {"low": 0.95},
        {"low": 0.0},
    ],
)
def test_a_retention_that_can_not_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LocalError):
        Retention(**wrong)  # type: ignore[arg-type]


ENTRIES = st.lists(
    st.builds(
        lambda agent, episode, rollout, seq, created, marks, room: Entry(
            Label(0, agent, episode, rollout, seq, created), room, room, 0, marks
        ),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 300),
        st.integers(0, 1000),
        st.sampled_from([Marks.NONE] * 4 + [Marks.PINNED, Marks.STANDBY]),
        st.integers(64, 5000),
    ),
    max_size=30,
).map(
    lambda found: [
        replace(each, label=replace(each.label, id=number)) for number, each in enumerate(found)
    ]
)
RETENTIONS = st.builds(
    Retention,
    st.integers(1, 4),
    st.sampled_from([0.0, 100.0]),
    st.sampled_from([0.9, 1.0]),
    st.sampled_from([0.5, 2.0]),
    st.just(0.9),
    st.sampled_from([0.3, 0.9]),
)


@given(ENTRIES, RETENTIONS, st.integers(1000, 100_000), st.sets(st.integers(0, 3)))
def test_whatever_there_is_the_promises_hold(
    entries: list[Entry], retention: Retention, data_bytes: int, living: set[int]
) -> None:
    full = usage(entries, data_bytes)
    found = plan(entries, full, retention, 1000.0, living=living)
    everything = [each.entry for each in (*found.frees, *found.keeps)]
    assert sorted(each.label.id for each in everything) == [each.label.id for each in entries]
    freed = {each.entry.label.id for each in found.frees}
    for each in entries:
        if each.marks:
            assert each.label.id not in freed
    for agent in living:
        own = [each.label.id for each in entries if each.label.agent == agent]
        assert not own or max(own) not in freed
    assert all(each.why for each in (*found.frees, *found.keeps))
    left = sum(each.entry.room for each in found.keeps)
    if any(each.why == (Why.PRESSURE,) for each in found.frees):
        assert full.room_bytes > retention.high * data_bytes
    if left > retention.high * data_bytes:
        assert found.short_bytes == left - int(retention.high * data_bytes)
        assert all(each.held or Why.LATEST in each.why for each in found.keeps)
    assert sum(each.bytes for each in attribute(entries).values()) == full.room_bytes
