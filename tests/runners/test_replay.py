"""Env runners that take over by doing their episode again from its beginning: level `replay`."""

from __future__ import annotations

import random

import pytest

from dsec.ipc.frames import EnvSettings, FailoverSettings, Role
from dsec.ipc.layout import FLAG_INFRA
from tests.runners.kernel import AgentPlan
from tests.runners.reference import compare_with_reference
from tests.runners.succession import Succession, Successions, entry

REPLAY = FailoverSettings(standby="replay")
AUTO = FailoverSettings(standby="auto")
LANDER = EnvSettings(id="LunarLander-v3")


def replace_at(succession: Succession, instants: list[int]) -> None:
    """Kill and replace the env runner at these records; each time a spare is waiting."""
    spares = [succession.spare(Role.ENV)]

    def replace() -> None:
        succession.take_over(Role.ENV, spares.pop())
        spares.append(succession.spare(Role.ENV))

    succession.drive(dict.fromkeys(instants, replace))


def check_exact(succession: Succession, deaths: int) -> None:
    """G2 and G3: every record once, and each as in a run without deaths."""
    agent, answers = succession.agent, succession.takeovers[Role.ENV]
    lost = [record.infos for record in agent.observed() if record.ends[0] & FLAG_INFRA]
    assert not lost, (lost, answers)
    # Who is not fenced yet may run away from what its successor replays: that is tried again then.
    assert [answer.level for answer in answers] == ["replay"] * deaths, answers
    for records in agent.records.values():
        assert [record.seq for record in records] == list(range(len(records)))
    assert compare_with_reference(agent) > 0


@pytest.mark.guarantee("G2", "G3")
@pytest.mark.parametrize("env", [EnvSettings(id="CartPole-v1"), LANDER], ids=lambda env: env.id)
def test_an_episode_is_done_again_bit_for_bit(successions: Successions, env: EnvSettings) -> None:
    """No codec holds a LunarLander, whose state is in a library."""
    succession = successions(AgentPlan(env=env, steps=5000, failover=REPLAY))
    replace_at(succession, [5, *sorted(random.Random(1).sample(range(20, 3500), 6))])
    check_exact(succession, 7)
    protection = succession.protection[Role.ENV]
    assert (protection.level, protection.codec) == ("replay", "replay")


@pytest.mark.guarantee("G3")
def test_an_episode_longer_than_the_rings_is_done_again(successions: Successions) -> None:
    """Its first actions have left the ring long ago."""
    plan = AgentPlan(env=entry("Line", length=3000), steps=7000, failover=REPLAY, ring_slots=64)
    succession = successions(plan)
    replace_at(succession, [1000, 2000, 5500])
    check_exact(succession, 3)
    replayed = [answer.replayed for answer in succession.takeovers[Role.ENV]]
    assert 400 < max(replayed) < 3000, succession.takeovers


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("variable", [False, True])
def test_generated_spaces_are_done_again(successions: Successions, variable: bool) -> None:
    env = entry("Generated", plan=5, variable=variable)
    succession = successions(AgentPlan(env=env, steps=3000, failover=REPLAY))
    replace_at(succession, [100, 700, 1400])
    check_exact(succession, 3)


@pytest.mark.guarantee("G3")
def test_a_successor_that_dies_at_once_leaves_it_all_to_the_next(successions: Successions) -> None:
    succession = successions(AgentPlan(env=LANDER, steps=3000, failover=REPLAY))

    def twice() -> None:
        succession.take_over(Role.ENV)
        succession.take_over(Role.ENV)

    succession.drive(dict.fromkeys((30, 900), twice))
    check_exact(succession, 4)


@pytest.mark.guarantee("G4")
def test_episodes_that_come_out_differently_are_not_relied_on(successions: Successions) -> None:
    """The self-check finds it before anybody has to."""
    succession = successions(AgentPlan(env=entry("Moody"), steps=500, failover=REPLAY))
    succession.drive({})
    protection = succession.protection[Role.ENV]
    assert protection.level == "fork"
    assert any("replay: restored in a spare" in note for note in protection.notes)


@pytest.mark.guarantee("G4")
def test_a_difference_that_no_check_has_met_ends_the_episode(successions: Successions) -> None:
    # Long episodes: the takeover is in the middle of one, so there is something to do again.
    env = entry("Spoiled", length=400)
    succession = successions(AgentPlan(env=env, steps=4000, failover=REPLAY))
    succession.drive({1500: lambda: succession.take_over(Role.ENV)})
    (answer,) = succession.takeovers[Role.ENV]
    assert answer.level == "replay" and not answer.exact
    assert "came out differently" in answer.why
    lost = [record for record in succession.agent.observed() if record.ends[0] & FLAG_INFRA]
    assert len(lost) == 1


@pytest.mark.parametrize(("env", "level"), [("CartPole-v1", "state"), ("LunarLander-v3", "replay")])
def test_auto_chooses_by_what_it_has_measured(
    successions: Successions, env: str, level: str
) -> None:
    plan = AgentPlan(env=EnvSettings(id=env), steps=300, failover=AUTO, ring_slots=1024)
    succession = successions(plan)
    succession.drive({})
    protection = succession.protection[Role.ENV]
    assert protection.notes[0].startswith("auto: "), "it says why"
    if level == "state":
        assert protection.level == level, protection
        assert protection.notes[0].startswith("auto: state recovers in about")
        assert protection.recovery_ms > 0
    else:  # between these two it is the times of this machine now that decide
        assert protection.level in ("replay", "fork"), protection
        assert "replay" in protection.notes[0], protection
