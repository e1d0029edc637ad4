"""The plan of failover: what follows what, cell by cell. What must hold in any history of it is in
test_recovery_histories.py."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dsec.failover.plan import (
    CRASH_MORE_S,
    SPARE_AFTER_S,
    SPARES_MAX,
    Act,
    AnyEvent,
    Do,
    Event,
    Lost,
    Plan,
    Protected,
    Reaped,
    Seat,
    Standby,
    State,
    decide,
    why_final,
)
from dsec.ipc.frames import ErrorInfo, Phase, Role
from dsec.report import Death

ENV = Role.ENV


def plan_of(restarts: int = 10, **seat: object) -> Plan:
    return Plan(restarts, 60.0, {ENV: Seat(**seat)})  # type: ignore[arg-type]


def run(plan: Plan, *events: AnyEvent, now: float = 0.0) -> tuple[Plan, list[Act]]:
    """Let events happen; return the plan and the acts of the last one."""
    acts: tuple[Act, ...] = ()
    for event in events:
        plan, acts = decide(plan, ENV, event, now)
    return plan, list(acts)


def lost(seq: int = 5, phase: Phase = Phase.STEP) -> Lost:
    return Lost(seq, phase)


def died(**facts: object) -> Death:
    return Death("a", ENV, 0, 1, "died", **{"kind": "signal", **facts})  # type: ignore[arg-type]


EVENTS: tuple[AnyEvent, ...] = (
    *Event,
    lost(),
    lost(phase=Phase.CLOSE),
    Reaped(""),
    Reaped("why"),
    Lost(5, Phase.IDLE, planned=True),
    Protected("state"),
    Protected("none"),
)


@pytest.mark.parametrize(
    ("state", "standby", "event"),
    list(itertools.product(State, Standby, EVENTS)),
    ids=lambda each: getattr(each, "name", repr(each)),
)
def test_every_cell_has_an_outcome(state: State, standby: Standby, event: AnyEvent) -> None:
    seat = Seat(state=state, standby=standby, spare=True, unreaped=1)
    plan, acts = run(plan_of(), event)
    plan, acts = decide(replace(plan, seats={ENV: seat}), ENV, event, 0.0)
    assert set(plan.seats) == {ENV}
    if state is State.OVER:
        assert not acts
        assert plan.seats[ENV].state is State.OVER
    if state is not State.TAKEN:
        assert Do.RESUME not in [act.do for act in acts], "nobody has restored anything"


@pytest.mark.guarantee("G5")
def test_with_a_spare_it_takes_over_while_the_lost_one_is_fenced() -> None:
    plan, acts = run(plan_of(standby=Standby.UP, spare=True), lost())
    assert acts == [Act(Do.PROMOTE, False)]
    taken, acts = run(plan, Event.TAKEN)
    assert acts == [Act(Do.HURRY, CRASH_MORE_S)], "the lost one may still write, but not for long"
    _, acts = run(taken, Reaped(""))
    assert acts == [Act(Do.RESUME), Act(Do.LATER, SPARE_AFTER_S)]
    _, acts = run(plan, Reaped(""), Event.TAKEN)
    assert acts == [Act(Do.RESUME), Act(Do.LATER, SPARE_AFTER_S)], "or the other way round"


@pytest.mark.guarantee("G5")
def test_who_will_execute_nothing_more_is_not_waited_for_until_it_is_reaped() -> None:
    plan, _ = run(plan_of(standby=Standby.UP, spare=True), lost(), Event.TAKEN)
    plan, acts = run(plan, Event.FENCED)
    assert acts == [Act(Do.RESUME), Act(Do.LATER, SPARE_AFTER_S)]
    plan, acts = run(plan, Reaped("", fenced=True))
    assert acts == []
    assert (plan.seats[ENV].unreaped, plan.seats[ENV].fenced) == (0, 0)


@pytest.mark.guarantee("G5")
def test_one_that_is_fenced_says_nothing_of_another() -> None:
    plan, _ = run(plan_of(), lost(7), Event.FENCED, Event.READY, lost(8))
    assert plan.seats[ENV].unreaped == 2
    plan, acts = run(plan, Event.RESTED, Event.READY, Event.TAKEN)
    assert Do.RESUME not in [act.do for act in acts], "the second may still write"
    plan, acts = run(plan, Reaped("", fenced=True))
    assert acts == [], "that was the first"
    assert run(plan, Event.FENCED)[1] == run(plan, Reaped(""))[1] == [Act(Do.RESUME)]


@pytest.mark.guarantee("G7")
def test_who_is_doomed_is_given_up_when_the_fenced_one_is_reaped() -> None:
    plan, acts = run(plan_of(0), lost(), Event.FENCED)
    assert acts == []
    assert run(plan, Reaped("", fenced=True))[1] == [Act(Do.GIVE_UP, "")]


def test_without_a_standby_a_successor_is_made_first() -> None:
    plan, acts = run(plan_of(), lost())
    assert acts == [Act(Do.FORK)]
    plan, acts = run(plan, Event.READY)
    assert acts == [Act(Do.TAKE, False)]
    assert run(plan, Reaped(""), Event.TAKEN)[1] == [Act(Do.RESUME)]


def test_a_spare_that_is_still_being_made_becomes_the_successor() -> None:
    plan, acts = run(plan_of(standby=Standby.COMING, spare=True), lost())
    assert acts == [Act(Do.ADOPT)]
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, False)]


@pytest.mark.guarantee("G7")
def test_no_restarts_or_no_more_end_in_giving_up_once_the_death_is_known() -> None:
    plan, acts = run(plan_of(0), lost())
    assert acts == []
    assert run(plan, Reaped(""))[1] == [Act(Do.GIVE_UP, "")]
    plan, _ = run(plan_of(1), lost(1), Event.READY, Reaped(""), Event.TAKEN)
    plan, acts = run(plan, lost(9), Reaped(""))
    assert acts == [Act(Do.GIVE_UP, "all 1 restarts in 60 s are used up")]
    plan, _ = run(plan_of(1), lost(1), Event.READY, Reaped(""), Event.TAKEN)
    _, acts = run(plan, lost(9), now=61.0)
    assert acts == [Act(Do.FORK)], "a period later the budget is whole again"


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize(
    ("death", "said"),
    [
        (died(exit_code=125, kind="exit"), "exit code 125"),
        (died(kind="corrupt"), "ring"),
        (died(kind="exception", error=ErrorInfo("dsec.errors.PeerError", "")), "ring"),
        (died(kind="import"), "find"),
        (died(kind="exception", error=ErrorInfo("E", "", lookup=True)), "find"),
        (died(), ""),
        (died(kind="exception", error=ErrorInfo("KeyError", "")), ""),
    ],
)
def test_some_deaths_are_final(death: Death, said: str) -> None:
    final = why_final(death)
    assert said in final
    assert bool(said) == bool(final)
    plan, _ = run(plan_of(standby=Standby.UP), lost())
    _, acts = run(plan, Reaped(final))
    assert (acts == [Act(Do.GIVE_UP, final)]) == bool(final)


@pytest.mark.guarantee("G7")
def test_who_makes_progress_is_replaced_at_once_and_who_does_not_waits() -> None:
    plan = plan_of(100)
    for seq in range(5):
        plan, acts = run(plan, lost(seq))
        assert acts == [Act(Do.FORK)]
        plan, _ = run(plan, Event.READY, Reaped(""), Event.TAKEN)
    waits = []
    for _ in range(4):
        plan, acts = run(plan, lost(4))
        assert acts[0].do is Do.REST
        waits.append(acts[0].value)
        plan, acts = run(plan, Reaped(""), Event.RESTED)
        assert acts == [Act(Do.FORK)]
        plan, _ = run(plan, Event.READY, Event.TAKEN)
    assert waits == sorted(waits)
    assert len(set(waits)) == 4


@pytest.mark.guarantee("G7")
def test_a_step_that_kills_twice_is_poison() -> None:
    plan, _ = run(plan_of(), lost(7), Event.READY, Reaped(""), Event.TAKEN)
    plan, _ = run(plan, lost(7), Reaped(""), Event.RESTED)
    plan, acts = run(plan, Event.READY)
    assert acts == [Act(Do.TAKE, True)]
    plan, _ = run(plan, Event.TAKEN, lost(8), Reaped(""))
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, False)], "it got on"


@pytest.mark.guarantee("G7")
def test_an_answer_that_kills_each_who_gives_it_is_the_end() -> None:
    """There is no record that could be put in its place."""
    plan = Plan(100, 60.0, {ENV: Seat(), Role.POLICY: Seat()})
    acts: tuple[Act, ...] = ()
    for death in range(3):
        plan, acts = decide(plan, Role.POLICY, Lost(7, Phase.ACT), float(death))
        assert (plan.seats[Role.POLICY].state is State.DOOMED) == (death == 2)
        for event in (Reaped(""), Event.RESTED, Event.READY, Event.TAKEN):
            plan, told = decide(plan, Role.POLICY, event, float(death))
            acts = told or acts
    assert acts == (Act(Do.GIVE_UP, "record 7 was fatal 3 times"),)


def test_deaths_while_idle_blame_no_step() -> None:
    idle = lost(7, Phase.IDLE)
    plan, _ = run(plan_of(), idle, Event.READY, Reaped(""), Event.TAKEN)
    plan, _ = run(plan, idle, Reaped(""), Event.RESTED)
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, False)]


def test_kills_from_outside_blame_a_step_only_if_they_never_stop() -> None:
    plan, told = plan_of(100), []
    for _ in range(5):
        plan, _ = run(plan, Lost(7, Phase.STEP, killed=True), Reaped(""), Event.RESTED)
        plan, acts = run(plan, Event.READY)
        told.append(acts[0].value)
        plan, _ = run(plan, Event.TAKEN)
    assert told == [False, False, False, True, True]


def test_what_a_death_means_for_a_seat() -> None:
    killed = died(signal=9, seq_last=7, phase=Phase.STEP)
    assert Lost.of(killed) == Lost(7, Phase.STEP, killed=True)
    crashed = replace(killed, signal=11)
    assert Lost.of(crashed) == Lost(7, Phase.STEP)
    assert Lost.of(replace(crashed, sent=True)) == Lost(7, Phase.STEP, sent=True)
    hung = died(kind="hang", signal=9, seq_last=7, phase=Phase.STEP)
    assert Lost.of(hung) == Lost(7, Phase.STEP)


def test_a_step_that_kills_who_does_it_again_twice_is_not_tried_a_third_time() -> None:
    """It may be another one than the incumbent died of: a poison is one step, and not two."""
    plan, told = run(plan_of(), lost(7), Event.READY, Reaped(""))
    for at in (5, 3, 6, 5):
        plan, acts = run(plan, lost(at), Reaped(""), Event.RESTED)
        assert acts == [Act(Do.FORK)]
        plan, told = run(plan, Event.READY)
        assert told == [Act(Do.TAKE, at == 5 and plan.seats[ENV].fatal[5] == 2)]
    assert told == [Act(Do.TAKE, True)], "5 again"


def test_somewhere_in_a_replay_is_one_place() -> None:
    """Who leaves without a word there, or hangs, doesn't say at which step."""
    plan, _ = run(plan_of(), lost(7), Event.READY, Reaped(""))
    plan, _ = run(plan, lost(-1, Phase.REPLAY), Reaped(""), Event.RESTED)
    plan, acts = run(plan, Event.READY)
    assert acts == [Act(Do.TAKE, False)]
    plan, _ = run(plan, lost(-1, Phase.REPLAY), Reaped(""), Event.RESTED)
    assert run(plan, Event.READY)[1] == [Act(Do.TAKE, True)]


@pytest.mark.parametrize("outside", [{"killed": True}, {"sent": True}])
def test_a_signal_from_outside_blames_no_step_that_a_successor_does_again(
    outside: dict[str, bool],
) -> None:
    plan, _ = run(plan_of(), Lost(7, Phase.STEP, **outside), Event.READY, Reaped(""))
    for seq in (-1, 5):
        plan, _ = run(plan, Lost(seq, Phase.REPLAY, **outside), Reaped(""), Event.RESTED)
        plan, acts = run(plan, Event.READY)
        assert acts == [Act(Do.TAKE, False)]
        assert plan.seats[ENV].fatal == ({} if seq < 0 or "sent" in outside else {5: 1})


def test_a_signal_that_its_handler_saw_sent_never_blames_a_step() -> None:
    plan = plan_of(100)
    for _ in range(8):
        plan, _ = run(plan, Lost(7, Phase.STEP, sent=True), Reaped(""), Event.RESTED)
        plan, acts = run(plan, Event.READY)
        assert acts == [Act(Do.TAKE, False)]
        plan, _ = run(plan, Event.TAKEN)


@pytest.mark.guarantee("G5")
def test_every_earlier_incarnation_must_be_reaped() -> None:
    plan, _ = run(plan_of(standby=Standby.UP), lost(7))  # the incumbent
    plan, _ = run(plan, lost(-1), Event.RESTED, Event.READY, Event.TAKEN)  # and its successor
    plan, acts = run(plan, Reaped(""))
    assert acts == []
    assert run(plan, Reaped(""))[1][0] == Act(Do.RESUME)


def test_a_fault_in_close_is_no_loss() -> None:
    plan, acts = run(plan_of(standby=Standby.UP), lost(7, Phase.CLOSE))
    assert acts == []
    assert run(plan, Reaped(""))[1] == [Act(Do.GIVE_UP, "")]


def test_who_is_back_is_told_to_drain_if_that_was_asked_meanwhile() -> None:
    plan, _ = run(plan_of(standby=Standby.UP, spare=True), lost(7), Event.DRAIN, Reaped(""))
    plan, acts = run(plan, Event.TAKEN)
    assert acts == [Act(Do.RESUME), Act(Do.DRAIN)], "and no spare is made for the rest of it"


def test_a_spare_is_made_when_it_is_wanted_and_again_when_it_dies() -> None:
    plan, acts = run(plan_of(), Protected("state"))
    assert acts == [Act(Do.QUEUE)], "many may want one at the same time"
    plan, acts = run(plan, Event.SPARE_TURN)
    assert acts == [Act(Do.SPARE)]
    assert run(plan, Event.SPARE_TURN)[1] == [], "one is enough"
    assert run(plan, Protected("state"))[1] == []
    plan, acts = run(plan, Event.STANDBY_UP, Event.STANDBY_LOST)
    assert acts[0].do is Do.LATER
    plan, acts = run(plan, Event.SPARE_DUE)
    assert acts == [Act(Do.QUEUE)]
    plan, acts = run(plan, Event.SPARE_TURN)
    assert acts == [Act(Do.SPARE)]
    waits = []
    for _ in range(SPARES_MAX):
        plan, acts = run(plan, Event.STANDBY_LOST)
        waits.append(float(acts[0].value))
        plan, _ = run(plan, Event.SPARE_DUE, Event.SPARE_TURN)
    assert waits[-1] == 60.0, "one that keeps dying is done without for a while"
    assert plan.stamps == (), "and costs the agent none of its restarts"


def test_whose_turn_comes_when_no_spare_is_wanted_any_more_makes_none() -> None:
    plan, _ = run(plan_of(), Protected("state"), lost(), Reaped(""))
    assert run(plan, Event.SPARE_TURN)[1] == [], "it is away"
    plan, _ = run(plan_of(), Protected("state"), Event.DRAIN)
    assert run(plan, Event.SPARE_TURN)[1] == []
    plan, _ = run(plan_of(), Protected("state"), Protected("none"))
    assert run(plan, Event.SPARE_TURN)[1] == []


def test_who_steps_aside_is_replaced_and_it_counts_against_nothing() -> None:
    aside = Lost(7, Phase.CLOSE, planned=True)
    plan, acts = run(plan_of(1, standby=Standby.UP, spare=True), aside)
    assert acts == [Act(Do.PROMOTE, False)]
    plan, acts = run(plan, Event.TAKEN, Reaped(""))
    assert acts == [Act(Do.RESUME), Act(Do.LATER, SPARE_AFTER_S)]
    for seq in range(8, 30):
        plan, acts = run(plan, Lost(seq, Phase.IDLE, planned=True))
        assert acts == [Act(Do.FORK)], "whether there is a spare, or a budget, or not"
        plan, _ = run(plan, Reaped(""), Event.READY, Event.TAKEN)
    assert plan.stamps == ()
    assert plan.seats[ENV].strikes == 0
    plan, acts = run(plan, lost(40))
    assert acts == [Act(Do.FORK)], "the budget is whole"


def test_a_clone_has_what_its_parent_is_to_be_rid_of() -> None:
    plan, acts = run(plan_of(standby=Standby.UP), Lost(7, Phase.IDLE, planned=True))
    assert acts == [Act(Do.FORK)]
    assert plan.seats[ENV].standby is Standby.NONE


def test_a_successor_of_one_that_stepped_aside_may_die_as_any_other() -> None:
    plan, _ = run(plan_of(1, standby=Standby.UP, spare=True), Lost(7, Phase.IDLE, planned=True))
    plan, acts = run(plan, lost(-1))
    assert acts == [Act(Do.FORK)]
    assert len(plan.stamps) == 1


@pytest.mark.parametrize("level", ["fork", "none", "state", "replay"])
def test_only_some_levels_need_a_spare_and_only_for_environments(level: str) -> None:
    wanted = level in ("state", "replay")
    assert (run(plan_of(), Protected(level))[1] == [Act(Do.QUEUE)]) == wanted
    assert run(plan_of(0), Protected(level))[1] == []
    policy = Plan(10, 60.0, {Role.POLICY: Seat()})
    assert decide(policy, Role.POLICY, Protected(level), 0.0)[1] == ()


def test_roles_are_independent_but_for_the_budget() -> None:
    plan = Plan(2, 60.0, {role: Seat() for role in (Role.ENV, Role.POLICY, Role.REWARD)})
    plan, acts = decide(plan, Role.ENV, lost(), 0.0)
    assert acts == (Act(Do.FORK),)
    plan, acts = decide(plan, Role.POLICY, lost(), 0.0)
    assert acts == (Act(Do.FORK),)
    plan, acts = decide(plan, Role.REWARD, lost(), 0.0)
    assert acts == (), "the budget is spent"
    plan, acts = decide(plan, Role.REWARD, Reaped(""), 0.0)
    assert acts[0].do is Do.GIVE_UP
    assert plan.away


@pytest.mark.parametrize("role", [Role.POLICY, Role.REWARD])
def test_who_is_killed_from_outside_is_replaced_as_long_as_the_budget_lasts(role: Role) -> None:
    """However often at the same record: a policy that learns for a second is met there again."""
    seats = {role: Seat()}
    plan = Plan(restarts_max=8, period_s=1e9, seats=seats)
    for death in range(9):
        assert plan.seats[role].state is State.UP
        plan, acts = decide(plan, role, Lost(7, Phase.LEARN, killed=True), float(death))
        for event in (Event.RESTED, Event.READY, Event.TAKEN, Reaped("")):
            plan, more = decide(plan, role, event, float(death))
            acts += more
    assert plan.seats[role].state is State.OVER
    assert acts[-1].do is Do.GIVE_UP
    assert "all 8 restarts" in str(acts[-1].value)
