"""The life that all roles share: draining, a kernel that goes, peers that write nonsense."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from dsec.ipc.frames import (
    Constructed,
    Done,
    Drain,
    EnvSettings,
    Failed,
    Forked,
    Go,
    Phase,
    Role,
)
from dsec.ipc.layout import EnvRecord, Layout
from dsec.ipc.ring import FLAG_END, KIND_ACTION, KIND_END, KIND_OBS, KIND_REWARD, Outbox
from dsec.ipc.segment import HEADER_BYTES, ProgressWord
from tests import watchdog
from tests.runners import odd_worlds, worlds
from tests.runners.kernel import Agent, AgentPlan, Agents


def entry(name: str, **kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{worlds.HERE}:{name}", kwargs=kwargs)


@pytest.mark.parametrize("name", ["Line", "Deaf"])
def test_drain_ends_the_stream_at_the_next_record(agents: Agents, name: str) -> None:
    """`Deaf` has taken the signal that announces frames; it is drained all the same."""
    agent = agents(AgentPlan(env=entry(name))).begin()
    for _ in range(100):
        agent.take(Role.ENV)
    agent.env.channel.send(Drain("enough"))
    agent.take_all()
    done = agent.finish()
    last = agent.records[Role.ENV][-1]
    assert last.flags & FLAG_END and last.seq >= 100
    assert {d.seq for d in done.values()} == {last.seq}
    for role in (Role.POLICY, Role.REWARD):
        seqs = [record.seq for record in agent.records[role]]
        assert seqs == list(range(last.seq + 1)), "every one, and the END after them"


def test_drain_reaches_an_env_that_waits_for_an_action(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Line"))).wire().ready()
    agent.env.channel.send(Go())
    agent.take(Role.ENV)
    progress = ProgressWord(agent.segments[Role.ENV].fd)
    watchdog.until(lambda: progress.read()[0] is Phase.IDLE, 10, "the env waits")
    progress.close()
    agent.env.channel.send(Drain("enough"))
    agent.policy.channel.send(Go())
    agent.reward.channel.send(Go())
    agent.take_all()
    agent.finish()
    assert len(agent.records[Role.ENV]) == 2, "the record after the one that was out already"


def test_an_exception_with_an_endless_message_is_told_and_is_no_hang(agents: Agents) -> None:
    """While it is put into words, no deadline of user code runs; and the log stays readable."""
    agent = agents(AgentPlan(env=EnvSettings(entry=f"{odd_worlds.HERE}:Verbose"))).begin()
    progress = ProgressWord(agent.segments[Role.ENV].fd)
    failed = agent.env.failure()
    phase, _, seq = progress.read()
    progress.close()
    assert (phase, seq) == (Phase.IDLE, 0)
    assert (failed.phase, failed.error.type) == (Phase.STEP, "ValueError")
    assert "characters left out" in failed.error.message
    assert len(failed.error.message) < 5_000
    agent.env.wait()
    logged = agent.env.stderr.read_text()
    assert "Traceback" in logged and "in step" in logged
    assert len(logged) < 1 << 20


def test_drain_before_go_closes_everything(agents: Agents) -> None:
    agent = agents(AgentPlan()).wire().ready()
    for runner in agent.runners.values():
        runner.channel.send(Drain("only looking"))
    agent.finish()


def test_drain_before_wire_closes_everything(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Line", misdeed="shout", phase="close")))
    agent.env.expect(Constructed)
    for runner in agent.runners.values():
        runner.channel.send(Drain("never mind"))
    agent.finish()
    assert "o" in agent.env.stdout.read_text(), "the environment was closed"


@pytest.mark.guarantee("G8")
def test_runners_end_when_the_kernel_closes_their_channels(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Line"), ring_slots=16)).begin()
    agent.take(Role.ENV)
    for runner in agent.runners.values():
        runner.channel.close()
    # Nobody takes records any more, so they wait for room or for each other.
    for runner in agent.runners.values():
        assert runner.wait() == 71


def test_a_frame_out_of_place_is_a_failure(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Line"))).wire().ready()
    agent.env.channel.send(Forked("what", 1, 1))
    failed = agent.env.failure()
    assert failed.error.type == "dsec.errors.FrameError"
    assert "Forked came where Go was due" in failed.error.message
    assert agent.env.wait() == 70


# ---------------------------------------------------------------- peers that write nonsense


def garble(agent: Agent, role: Role, write: Callable[[Outbox], None]) -> Failed:
    """Have this process write `role`'s ring in its place; return how the reader fails."""
    held = agent.segments[role]
    outbox = Outbox(held.fd, held.size, role)
    try:
        write(outbox)
    finally:
        outbox.close()
    victim = agent.env if role is Role.POLICY else agent.policy
    failed = victim.failure()
    assert victim.wait() == 70
    return failed


def put(seq: int, kind: int, nbytes: int, flags: int = 0) -> Callable[[Outbox], None]:
    def write(outbox: Outbox) -> None:
        outbox.claim(nbytes, 0.0)
        outbox.commit(seq, kind, flags, nbytes)

    return write


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    "write",
    [
        put(7, KIND_ACTION, 8),
        put(0, KIND_OBS, 8),
        put(0, KIND_END, 0, FLAG_END),
        put(0, KIND_ACTION, 4),
        put(0, KIND_ACTION, 800),
    ],
)
def test_an_action_that_is_none_fails_the_env_and_blames_the_policy(
    agents: Agents, write: Callable[[Outbox], None]
) -> None:
    agent = agents(AgentPlan(env=entry("Line"))).wire().ready()
    agent.env.channel.send(Go())
    failed = garble(agent, Role.POLICY, write)
    assert failed.error.type == "dsec.errors.PeerError"
    assert "the ring of the policy runner holds what it may not" in failed.error.message
    assert failed.phase == Phase.IDLE, "no user code of the env is to blame"


@pytest.mark.guarantee("G9")
def test_bytes_that_are_no_record_are_refused(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Line"))).wire().ready()
    agent.env.channel.send(Go())

    def write(outbox: Outbox) -> None:
        put(0, KIND_ACTION, 8)(outbox)

    held = agent.segments[Role.POLICY]
    # The header of the first record, before there is one: publishing it leaves the mark wrong.
    original = Outbox.commit

    def commit_and_garble(outbox: Outbox, *words: int) -> None:
        os.kill(agent.env.pid, signal.SIGSTOP)
        original(outbox, *words)
        os.pwrite(held.fd, b"\xff" * 32, HEADER_BYTES)
        os.kill(agent.env.pid, signal.SIGCONT)

    Outbox.commit = commit_and_garble  # type: ignore[method-assign]
    try:
        failed = garble(agent, Role.POLICY, write)
    finally:
        Outbox.commit = original  # type: ignore[method-assign]
    assert failed.error.type == "dsec.errors.CorruptRingError"
    assert "policy" in failed.error.message


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("seq", "kind", "nbytes"), [(3, KIND_OBS, 64), (0, KIND_REWARD, 64), (0, KIND_OBS, 8)]
)
def test_an_observation_that_is_none_fails_the_policy_and_blames_the_env(
    agents: Agents, seq: int, kind: int, nbytes: int
) -> None:
    agent = agents(AgentPlan(env=entry("Line"))).wire().ready()
    agent.policy.channel.send(Go())
    failed = garble(agent, Role.ENV, put(seq, kind, nbytes))
    assert "the ring of the env runner holds what it may not" in failed.error.message


@pytest.mark.guarantee("G9")
def test_extras_of_nonsense_fail_a_learning_policy(agents: Agents) -> None:
    plan = AgentPlan(env=entry("Line"), policy=f"{worlds.HERE}:Learning")
    agent = agents(plan).wire().ready()
    agent.policy.channel.send(Go(policy_learns=True))
    fixed = EnvRecord(agent.spaces[0], 1).fixed_bytes
    rewards = agent.segments[Role.REWARD]
    reward = Outbox(rewards.fd, rewards.size, Role.REWARD)
    put(0, KIND_REWARD, 8)(reward)

    def write(outbox: Outbox) -> None:
        put(0, KIND_OBS, fixed)(outbox)
        at = outbox.claim(fixed + 40, 0.0)
        outbox.buffer[at : at + fixed + 40] = bytes(fixed) + b"\xee" * 40
        outbox.commit(1, KIND_OBS, 0, fixed + 40)

    failed = garble(agent, Role.ENV, write)
    reward.close()
    assert "the ring of the env runner holds what it may not: extras" in failed.error.message


@pytest.mark.guarantee("G9")
def test_a_reward_for_another_step_fails_a_learning_policy(agents: Agents) -> None:
    plan = AgentPlan(env=entry("Line"), policy=f"{worlds.HERE}:Learning")
    agent = agents(plan).wire().ready()
    for runner in (agent.env, agent.policy):
        runner.channel.send(Go(policy_learns=True))
    failed = garble(agent, Role.REWARD, put(5, KIND_REWARD, 8))
    assert "the ring of the reward runner holds what it may not: seq 5" in failed.error.message


@pytest.mark.guarantee("G9")
def test_an_observation_without_its_action_fails_the_reward(agents: Agents) -> None:
    agent = agents(AgentPlan(env=entry("Line"))).wire().ready()
    agent.reward.channel.send(Go())
    held = agent.segments[Role.ENV]
    outbox = Outbox(held.fd, held.size, Role.ENV)
    fixed = EnvRecord(agent.spaces[0], 1).fixed_bytes
    for seq in range(2):
        put(seq, KIND_OBS, fixed)(outbox)
    failed = agent.reward.failure()
    outbox.close()
    assert "observation 1 is there and action 0 isn't" in failed.error.message


def test_an_agent_whose_policy_is_played_by_its_caller(agents: Agents) -> None:
    """What a sandbox does: the policy runner is not used, its outbox is written by this process."""
    agent = agents(AgentPlan(env=entry("Line", length=3), steps=6)).wire().ready()
    agent.env.channel.send(Go())
    agent.reward.channel.send(Go())
    held = agent.segments[Role.POLICY]
    outbox = Outbox(held.fd, held.size, Role.POLICY)
    layout = Layout(agent.spaces[1], 1)
    for seq in range(6):
        agent.take(Role.ENV)
        at = outbox.claim(layout.nbytes, 1.0)
        layout.write_batch(layout.views(outbox.buffer, at), [1])
        outbox.commit(seq, KIND_ACTION, 0, layout.nbytes)
    last = agent.take(Role.ENV)
    assert last.flags & FLAG_END
    for runner in (agent.env, agent.reward):
        assert runner.expect(Done).seq == 6
        assert runner.wait() == 0
    outbox.close()
