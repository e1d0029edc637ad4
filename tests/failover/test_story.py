"""One failover told as one event, with a clock that the test owns."""

from __future__ import annotations

import pytest

from dsec.failover.story import Story
from dsec.ipc.frames import Role, TakenOver
from dsec.report import Death

pytestmark = pytest.mark.guarantee("G6")
SAID = TakenOver(True, "state", 41, 7, 0.5, 0.25, "", "1")


def death(epoch: int, cause: str = "killed by SIGSEGV in step", at: float = 0.0) -> Death:
    return Death("a", Role.ENV, epoch, 9, cause, "signal", at=at)


def test_a_crash_that_left_its_time_is_measured_from_there() -> None:
    story = Story(10.0, "killed by SIGSEGV in step")
    story.fenced(10.002)
    story.resumed(10.003, 1, SAID, poisoned=False)
    story.reaped(death(0, at=9.999))
    event = story.failover()
    assert event.detect_ms == pytest.approx(1.0)
    assert event.fence_ms == pytest.approx(2.0)
    assert event.total_ms == pytest.approx(4.0)
    assert (event.restore_ms, event.replay_ms, event.replayed) == (0.5, 0.25, 7)
    assert (event.agent, event.epoch, event.seq, event.action_last) == ("a", 1, 41, "1")
    assert (event.exact, event.level, event.poisoned, event.tried) == (True, "state", False, ())


@pytest.mark.parametrize("at", [0.0, 11.0])
def test_where_nothing_says_when_it_happened_it_counts_from_its_being_noticed(at: float) -> None:
    story = Story(10.0, "killed")
    story.reaped(death(0, at=at))
    story.resumed(10.003, 1, SAID, poisoned=False)
    event = story.failover()
    assert event.detect_ms is None
    assert event.total_ms == pytest.approx(3.0)


def test_successors_that_failed_are_named_whoever_was_reaped_first() -> None:
    story = Story(10.0, "hung")
    story.reaped(death(1, "killed by SIGKILL in construct"))
    story.reaped(death(0, "hung in step"))
    assert not story.is_over
    story.resumed(10.3, 2, SAID, poisoned=True)
    assert story.is_over
    event = story.failover()
    assert event.death.cause == "hung in step"
    assert event.tried == ("killed by SIGKILL in construct",)
    assert event.poisoned


def test_who_is_given_up_is_told_why() -> None:
    story = Story(10.0, "x")
    story.reaped(death(0, "one"))
    story.reaped(death(1, "two"))
    assert [each.cause for each in story.given_up("enough")] == [
        "one",
        "two (not replaced: enough)",
    ]
    assert [each.cause for each in story.given_up("")] == ["one", "two"]
