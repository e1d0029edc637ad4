"""Deadlines, with a clock that tests own; lateness against a model that looks at every tick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.failover.detect import (
    FINISH_MAX_S,
    LATE_EVENTS_MAX,
    LATE_MIN_S,
    LOOK_MAX_S,
    PEER_ENDED_S,
    STOPPED_LOOKS_MAX,
    Deadlines,
    Idle,
    Lateness,
    Overdue,
    Pulse,
    Stillness,
    Word,
)
from dsec.ipc.frames import Phase

TICK_S = 0.25
LIMITS = {Phase.RESET: 30.0, Phase.STEP: 10.0, Phase.CLOSE: 5.0}


class Watchman:
    """Ticks a Deadlines as the supervisor does, and keeps what it says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.deadlines: Deadlines[str] = Deadlines(TICK_S)
        self.words: dict[str, Word] = {}
        self.said: list[tuple[str, Overdue | Idle]] = []
        self.looks = 0
        self.tick(0.0)

    def tick(self, seconds: float = TICK_S) -> None:
        now = self.now = self.now + seconds
        self.deadlines.lateness.tick(now)
        for key, followed in self.deadlines.due(now):
            self.looks += followed
            verdict = self.deadlines.judge(key, now, self.words[key] if followed else None)
            if verdict is not None:
                self.said.append((key, verdict))

    def go(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.tick()


def test_an_armed_deadline_passes_once() -> None:
    watchman = Watchman()
    watchman.deadlines.arm("env", Phase.CONSTRUCT, 2.0, watchman.now)
    watchman.go(1.75)
    assert watchman.said == []
    watchman.go(10)
    assert watchman.said == [("env", Overdue(Phase.CONSTRUCT, 2.0, 2.0))]


def test_an_answer_in_time_ends_it_and_a_new_one_replaces_the_old() -> None:
    watchman = Watchman()
    deadlines = watchman.deadlines
    deadlines.arm("a", Phase.CONSTRUCT, 2.0, watchman.now)
    deadlines.arm("b", Phase.CONSTRUCT, 2.0, watchman.now)
    watchman.go(1)
    deadlines.drop("a")
    deadlines.drop("never there")
    deadlines.arm("b", Phase.CLOSE, 4.0, watchman.now)
    watchman.go(3.75)
    assert watchman.said == []
    watchman.go(1)
    assert [key for key, _ in watchman.said] == ["b"]


def test_a_key_dropped_between_due_and_judge_is_no_verdict() -> None:
    deadlines: Deadlines[str] = Deadlines(TICK_S)
    deadlines.arm("a", Phase.STEP, 1.0, 0.0)
    assert deadlines.due(5.0) == [("a", False)]
    deadlines.drop("a")
    assert deadlines.judge("a", 5.0) is None


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(("phase", "limit_s"), LIMITS.items())
def test_a_phase_that_lasts_is_overdue_at_the_first_tick_after_its_limit(
    phase: Phase, limit_s: float
) -> None:
    watchman = Watchman()
    watchman.words["env"] = Word(Phase.IDLE, watchman.now, 0)
    watchman.deadlines.follow("env", LIMITS, watchman.now)
    watchman.go(7)
    since = watchman.now + 0.1
    watchman.words["env"] = Word(phase, since, 1)
    watchman.go(limit_s)
    assert watchman.said == [] or isinstance(watchman.said[0][1], Idle)
    watchman.said.clear()
    watchman.tick()
    [(key, verdict)] = watchman.said
    assert isinstance(verdict, Overdue)
    assert (key, verdict.phase, verdict.limit_s) == ("env", phase, limit_s)
    assert limit_s <= verdict.elapsed_s <= limit_s + TICK_S


def test_a_busy_runner_is_looked_at_no_more_often_than_its_shortest_limit() -> None:
    watchman = Watchman()
    watchman.deadlines.follow("env", LIMITS, watchman.now)
    for _ in range(240):
        watchman.words["env"] = Word(Phase.STEP, watchman.now, 1)
        watchman.tick()
    assert watchman.said == []
    assert watchman.looks <= 60 / 5 + 1


def test_a_runner_without_limits_is_looked_at_now_and_then_and_never_overdue() -> None:
    watchman = Watchman()
    watchman.words["policy"] = Word(Phase.ACT, watchman.now, 1)
    watchman.deadlines.follow("policy", {}, watchman.now)
    watchman.go(100)
    assert watchman.said == []
    assert watchman.looks == 100 / LOOK_MAX_S


def test_idling_is_told_but_never_overdue() -> None:
    watchman = Watchman()
    watchman.words["reward"] = Word(Phase.IDLE, watchman.now, 1)
    watchman.deadlines.follow("reward", LIMITS, watchman.now)
    watchman.go(16)
    assert [verdict for _, verdict in watchman.said] == [Idle(5, 5), Idle(10, 5), Idle(15, 5)]


@pytest.mark.guarantee("G11")
def test_a_supervisor_that_was_stopped_finds_nobody_hung() -> None:
    watchman = Watchman()
    watchman.words["env"] = Word(Phase.STEP, watchman.now, 1)
    watchman.deadlines.follow("env", LIMITS, watchman.now)
    watchman.deadlines.arm("other", Phase.CONSTRUCT, 5.0, watchman.now)
    watchman.go(4)
    watchman.tick(600.0)
    assert watchman.said == []
    watchman.go(30)
    assert {key for key, _ in watchman.said} == {"env", "other"}, "what hangs is still found"
    for _, verdict in watchman.said:
        assert isinstance(verdict, Overdue)
        assert 600 + verdict.limit_s <= verdict.elapsed_s + TICK_S


def test_punctual_ticks_lend_nothing() -> None:
    lateness = Lateness(TICK_S)
    assert [lateness.tick(n * (TICK_S + LATE_MIN_S / 2)) for n in range(100)] == [0.0] * 100
    assert lateness.after(0.0) == 0.0


DELAYS = st.lists(st.one_of(st.just(0.0), st.floats(LATE_MIN_S * 2, 30.0)), max_size=50)


@given(DELAYS, st.floats(0, 1))
def test_lateness_after_a_moment_is_the_late_part_of_every_later_interval(
    delays: list[float], fraction: float
) -> None:
    lateness = Lateness(TICK_S)
    now, late = 0.0, []
    lateness.tick(now)
    for delay in delays:
        now += TICK_S + delay
        assert lateness.tick(now) == pytest.approx(delay)
        late.append((now - delay, now))
    moment = now * fraction
    expected = sum(max(0.0, end - max(begin, moment)) for begin, end in late)
    assert lateness.after(moment) == pytest.approx(expected)


@given(st.lists(st.floats(LATE_MIN_S * 2, 5.0), min_size=LATE_EVENTS_MAX, max_size=200))
def test_what_is_forgotten_of_lateness_only_ever_lends(delays: list[float]) -> None:
    lateness = Lateness(TICK_S)
    now, late = 0.0, []
    lateness.tick(now)
    for delay in delays:
        now += TICK_S + delay
        lateness.tick(now)
        late.append((now - delay, now))
    for moment in (0.0, now / 3, now / 2, now):
        least = sum(max(0.0, end - max(begin, moment)) for begin, end in late)
        assert lateness.after(moment) >= least - 1e-6
    assert lateness.after(now) == 0.0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["go", "late", "word", "arm", "drop", "follow"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([Phase.IDLE, Phase.STEP, Phase.RESET, Phase.LEARN]),
        st.floats(0.5, 40),
    ),
    max_size=40,
)


@given(EVENTS)
def test_a_queue_finds_what_a_look_at_everything_would_find(
    events: list[tuple[str, str, Phase, float]],
) -> None:
    """A model that judges every key at every tick: same verdicts, same ticks."""
    watchman = Watchman()
    model: dict[str, tuple[bool, Phase, float, float]] = {}
    words: dict[str, Word] = dict.fromkeys("ab", Word(Phase.IDLE, watchman.now, 0))
    watchman.words = words
    late: list[tuple[float, float]] = []

    def used(since: float) -> float:
        now = watchman.now
        return now - since - sum(max(0.0, end - max(begin, since)) for begin, end in late)

    def tick(extra: float = 0.0) -> None:
        watchman.said.clear()
        watchman.tick(TICK_S + extra)
        now = watchman.now
        if extra:
            late.append((now - extra, now))
        overdue = set()
        for key, (armed, phase, since, limit_s) in list(model.items()):
            if not armed:
                phase, since, _ = words[key]
                limit_s = LIMITS.get(phase, float("inf"))
            if (armed or phase != Phase.IDLE) and used(since) >= limit_s - 1e-9:
                overdue.add(key)
                del model[key]
        assert {key for key, verdict in watchman.said if isinstance(verdict, Overdue)} == overdue

    for what, key, phase, seconds in events:
        now = watchman.now
        match what:
            case "go":
                for _ in range(int(seconds)):
                    tick()
            case "late":
                tick(seconds)
            case "word":
                words[key] = Word(phase, now, words[key].seq + 1)
            case "arm":
                watchman.deadlines.arm(key, phase, round(seconds * 8) / 8 + 0.0625, now)
                model[key] = (True, phase, now, round(seconds * 8) / 8 + 0.0625)
            case "drop":
                watchman.deadlines.drop(key)
                model.pop(key, None)
            case "follow":
                watchman.deadlines.follow(key, LIMITS, now)
                model[key] = (False, Phase.IDLE, 0.0, 0.0)


# ---------------------------------------------------------------- servers, and who is still


def test_a_server_that_owes_nothing_may_be_silent() -> None:
    pulse = Pulse()
    assert [pulse.beats("S", 5, 1, owes=False) for _ in range(3)] == [True] * 3


def test_one_that_owes_an_answer_shows_life_by_working_or_waiting_for_a_disk() -> None:
    pulse = Pulse()
    assert pulse.beats("R", 5, 1, owes=True)
    assert pulse.beats("R", 6, 1, owes=True), "it computed"
    assert pulse.beats("S", 6, 2, owes=True), "it said something"
    assert pulse.beats("D", 6, 2, owes=True), "it waits for a disk"
    assert not pulse.beats("S", 6, 2, owes=True)


def test_a_stopped_server_always_owes_a_sign() -> None:
    pulse = Pulse()
    pulse.beats("S", 5, 1, owes=False)
    assert not pulse.beats("T", 5, 1, owes=False)


def test_a_server_that_is_stopped_while_the_run_ends_is_ended_after_some_looks() -> None:
    pulse = Pulse()
    for _ in range(STOPPED_LOOKS_MAX):
        pulse.beats("T", 5, 1, owes=True)
        assert pulse.fails(ending=True, finishing_s=0.0) == ""
    pulse.beats("T", 5, 1, owes=True)
    assert pulse.fails(ending=False, finishing_s=0.0) == ""
    assert pulse.fails(ending=True, finishing_s=0.0) == "stopped (SIGSTOP) while the run ends"
    pulse.beats("S", 5, 1, owes=True)
    assert pulse.fails(ending=True, finishing_s=0.0) == "", "it goes on"


def test_even_a_lively_server_has_a_limit_for_its_last_task() -> None:
    pulse = Pulse()
    assert pulse.fails(ending=True, finishing_s=FINISH_MAX_S) == ""
    assert "to finish" in pulse.fails(ending=True, finishing_s=FINISH_MAX_S + 1)


def test_who_is_seen_stopped_twice_in_a_row_hangs() -> None:
    still = Stillness()
    idle = Idle(3.0, 1.0)
    assert still.judge("T", idle, ended=False) == ""
    assert still.judge("S", idle, ended=False) == ""
    assert still.judge("T", idle, ended=False) == ""
    assert still.judge("T", idle, ended=False) == "stopped (SIGSTOP) while idle for 3.0 s"


def test_who_waits_long_after_a_peer_has_ended_waits_for_nothing() -> None:
    still = Stillness()
    assert still.judge("S", Idle(PEER_ENDED_S + 1, 1.0), ended=False) == ""
    assert still.judge("S", Idle(PEER_ENDED_S - 1, 1.0), ended=True) == ""
    assert "after a peer had ended" in still.judge("S", Idle(PEER_ENDED_S + 1, 1.0), ended=True)
