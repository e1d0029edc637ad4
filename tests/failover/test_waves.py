"""The order of start: never too many at a time, nobody forgotten, nobody held for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.waves import HOLD_MAX_S, STALL_S, Waves


def anyone(_: str) -> bool:
    return True


def test_few_agents_step_as_soon_as_they_are_ready() -> None:
    waves = Waves("ab", 2)
    assert [waves.next(0.0, anyone), waves.next(0.0, anyone)] == ["a", "b"]
    assert not waves.ready("b", 0.5)
    assert waves.release(0.5) == ["b"]


def test_in_waves_those_that_are_ready_wait_for_the_others() -> None:
    waves = Waves("abc", 2)
    assert [waves.next(0.0, anyone) for _ in range(3)] == ["a", "b", None]
    assert waves.ready("a", 0.1)
    assert waves.ready("a", 0.2), "said twice"
    assert waves.release(0.2) == []
    assert waves.next(0.2, anyone) == "c"
    waves.ready("c", 0.3)
    assert waves.release(0.3) == [], "b is on its way"
    assert not waves.ready("b", 0.4), "nobody is left to wait for"
    assert waves.release(0.4) == ["a", "c", "b"]
    assert waves.release(0.4) == []


def test_one_that_is_slow_takes_one_place_and_holds_nobody_for_long() -> None:
    waves = Waves("abcd", 2)
    assert [waves.next(0.0, anyone), waves.next(0.0, anyone)] == ["a", "b"]
    waves.ready("a", 0.1)
    assert waves.next(0.1, anyone) == "c"
    waves.ready("c", STALL_S)
    assert waves.next(STALL_S, anyone) == "d", "b counts, as long as others get ready"
    assert waves.next(STALL_S, anyone) is None
    waves.ready("d", STALL_S + 1)
    assert waves.release(2 * STALL_S) == []
    assert waves.release(2 * STALL_S + 1) == ["a", "c", "d"], "nobody has got ready for long"


def test_those_that_all_hang_leave_their_places_to_others() -> None:
    waves = Waves("abcdef", 2)
    assert [waves.next(0.0, anyone), waves.next(1.0, anyone)] == ["a", "b"]
    assert waves.next(STALL_S + 0.9, anyone) is None
    assert waves.next(STALL_S + 1, anyone) == "c"
    assert waves.next(STALL_S + 1, anyone) == "d"
    assert waves.next(STALL_S + 1, anyone) is None


def test_who_is_ready_waits_no_longer_than_the_limit() -> None:
    waves = Waves(range(200), 2)
    now, ready = 0.0, list[int]()
    while not (free := waves.release(now)):
        key = waves.next(now, lambda _: True)
        assert key is not None
        waves.ready(key, now)
        ready.append(key)
        now += 1.0
    assert free == [0]
    assert now == HOLD_MAX_S


@given(st.integers(1, 5), st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=30))
def test_everybody_starts_and_steps_once(starting_max: int, plan: list[tuple[float, bool]]) -> None:
    """Agents take a time each, or fail; whoever is ready is released once, in the end."""
    waves = Waves(range(len(plan)), starting_max)
    now, under_way, released = 0.0, dict[int, float](), list[int]()
    begun = list[int]()
    for _ in range(10_000):
        while (key := waves.next(now, lambda _: True)) is not None:
            begun.append(key)
            under_way[key] = now + plan[key][0]
            assert len(under_way) <= starting_max, "none of them takes as long as to stall"
        for key, at in list(under_way.items()):
            if at <= now:
                del under_way[key]
                if plan[key][1]:
                    waves.ready(key, now)
                else:
                    waves.drop(key)
        released += waves.release(now)
        if not under_way and not waves.waiting:
            break
        now += 0.125
    released += waves.release(now + HOLD_MAX_S)
    assert begun == list(range(len(plan)))
    assert sorted(released) == [key for key, (_, good) in enumerate(plan) if good]
