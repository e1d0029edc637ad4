"""A spare's rehearsal: it really takes over, and leaves the process as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from dsec.ipc import channel
from dsec.ipc.channel import Channel
from dsec.ipc.frames import EnvSettings, FailoverSettings, Role, Start
from dsec.runners import rehearse
from dsec.runners.env_life import serve
from dsec.runners.loop import Session
from dsec.runners.stage import Stage


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = map(Channel, channel.pair())
    yield ours, theirs
    ours.close()
    theirs.close()


def session(end: Channel) -> Session:
    env, failover = EnvSettings(id="CartPole-v1"), FailoverSettings("auto")
    return Session(end, Start("agent", Role.ENV, 1, "5" * 32, env=env, failover=failover))


def test_every_round_restores_and_replays_exactly(ends: tuple[Channel, Channel]) -> None:
    answers = list(rehearse.take_over_from_nobody(session(ends[0]), serve))
    assert len(answers) == rehearse.ROUNDS
    for answer in answers:
        assert (answer.exact, answer.level, answer.why) == (True, "state", "")
        assert answer.replayed == answer.seq > 0
        assert answer.action_last == "0"


def test_nothing_is_said_and_no_generator_has_moved(
    ends: tuple[Channel, Channel], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = session(ends[0])
    stage = Stage(mine)
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()
    rehearse.rehearse(mine, stage, serve)
    after = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tobytes()
    assert after == before
    assert not ends[1].pending()
    assert capsys.readouterr().err == ""
    stage.close()
