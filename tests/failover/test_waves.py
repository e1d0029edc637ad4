"""The order of start: never too many at a time, nobody forgotten, nobody held for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.waves import HOLD_MAX_S, SLOT_S, Waves


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


def test_one_that_is_slow_holds_nobody_for_long() -> None:
    waves = Waves("abcd", 2)
    assert [waves.next(0.0, anyone), waves.next(0.0, anyone)] == ["a", "b"]
    waves.ready("a", 0.1)
    assert waves.next(0.1, anyone) == "c"
    assert waves.next(0.1, anyone) is None
    assert waves.next(SLOT_S, anyone) == "d", "b no longer counts"
    waves.ready("c", SLOT_S)
    waves.drop("d")
    assert waves.release(SLOT_S) == ["a", "c"]


def test_who_can_not_start_holds_the_ready_no_longer_than_the_limit() -> None:
    waves = Waves("abc", 2)
    assert waves.next(0.0, lambda key: key == "b") == "b"
    assert waves.next(0.0, lambda key: key == "b") is None
    waves.ready("b", 1.0)
    assert waves.release(0.9 + HOLD_MAX_S) == []
    assert waves.release(1.0 + HOLD_MAX_S) == ["b"]


@given(st.integers(1, 5), st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=30))
def test_everybody_starts_and_steps_once(starting_max: int, plan: list[tuple[float, bool]]) -> None:
    """Agents take a time each, or fail; whoever is ready is released once, in the end."""
    waves = Waves(range(len(plan)), starting_max)
    now, under_way, released = 0.0, dict[int, float](), list[int]()
    begun, since = list[int](), dict[int, float]()
    for _ in range(10_000):
        while (key := waves.next(now, lambda _: True)) is not None:
            begun.append(key)
            under_way[key] = now + plan[key][0]
            since[key] = now
            young = [each for each in under_way if since[each] > now - SLOT_S]
            assert len(young) <= starting_max
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
