"""Env runners that fork themselves: a sleeping clone takes over, whatever the environment is."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import pytest

from dsec.ipc.frames import Clone, EnvSettings, FailoverSettings, Go, Role
from dsec.ipc.proc import read_stat
from tests import watchdog
from tests.runners import uncloned
from tests.runners.kernel import AgentPlan, Agents, Runner
from tests.runners.reference import compare_with_reference
from tests.runners.succession import Successions, entry

FORK = FailoverSettings(standby="fork")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.guarantee("G2", "G3")
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("world", ["CartPole-v1", "Generated", "Drawing", "Reading"])
def test_a_clone_goes_on_bit_for_bit(successions: Successions, world: str, num_envs: int) -> None:
    env = {
        "CartPole-v1": EnvSettings(id="CartPole-v1"),
        "Generated": entry("Generated", plan=3),
        "Drawing": EnvSettings(entry=f"{uncloned.HERE}:Drawing"),
        "Reading": EnvSettings(entry=f"{uncloned.HERE}:Reading"),
    }[world]
    plan = AgentPlan(env=env, steps=8000 * num_envs, num_envs=num_envs, failover=FORK)
    succession = successions(plan)
    drawn = random.Random(num_envs)
    # The environments are as far ahead of what is read here as their ring is long. An instant that
    # the one before had left behind already would find a successor that has published nothing.
    instants = [1200 * i + drawn.randrange(40, 400) for i in range(6)]
    succession.drive(dict.fromkeys(instants, succession.promote_clone))
    for records in succession.agent.records.values():
        assert [record.seq for record in records] == list(range(len(records)))
    if world != "Drawing":  # whose numbers are this process' business, too
        assert compare_with_reference(succession.agent) > 0
    answers = succession.takeovers[Role.ENV]
    assert [(answer.exact, answer.level) for answer in answers] == [(True, "fork")] * 6, answers


@pytest.mark.guarantee("G8")
def test_no_clone_outlives_its_run(successions: Successions) -> None:
    succession = successions(AgentPlan(steps=3000, failover=FORK))
    seen: list[int] = []

    def look() -> None:
        succession.collect(Role.ENV)
        assert succession.clone is not None
        seen.append(succession.clone.pid)

    succession.drive({100: look, 2000: look})
    assert seen
    for pid in seen:
        watchdog.until(lambda pid=pid: gone(pid), 10, "the clone is gone")


@pytest.mark.guarantee("G8")
def test_a_clone_whose_channel_ends_is_gone(successions: Successions) -> None:
    """The runner and the kernel's interest in it are gone: so is the clone."""
    succession = successions(AgentPlan(steps=100_000, failover=FORK))

    def abandon() -> None:
        succession.collect(Role.ENV)
        clone = succession.clone
        assert clone is not None
        succession.agent.runners[Role.ENV].kill()
        clone.channel.close()
        assert clone.wait() == 71
        os.close(clone.pidfd)
        succession.clone = None
        raise InterruptedError

    with pytest.raises(InterruptedError):
        succession.drive({100: abandon})


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize(
    ("world", "told"),
    [
        ("Busy", ("1 other Python threads (busy)", "1 child processes")),
        ("Sharing", ("1 mappings of shared memory (/dev/zero",)),
    ],
)
def test_what_a_fork_would_not_copy_is_not_cloned(
    successions: Successions, world: str, told: tuple[str, ...]
) -> None:
    env = EnvSettings(entry=f"{uncloned.HERE}:{world}")
    succession = successions(AgentPlan(env=env, steps=3000, failover=FORK))
    succession.drive({})
    assert succession.clone is None
    protection = succession.protection[Role.ENV]
    assert protection.level == "none"
    for words in told:
        assert words in " ".join(protection.notes), protection.notes


@pytest.mark.guarantee("G3")
def test_a_clone_that_is_killed_is_made_anew_at_once(successions: Successions) -> None:
    """And not when the next is due: who dies until then would have no successor."""
    budget = FailoverSettings(standby="fork", budget=1e-4)
    plan = AgentPlan(steps=8000, failover=budget, ring_slots=2048)
    succession = successions(plan)
    killed: list[int] = []

    def kill_clone() -> None:
        succession.collect(Role.ENV)
        assert succession.clone is not None
        killed.append(succession.clone.pid)
        os.kill(succession.clone.pid, signal.SIGKILL)

    succession.drive({400: kill_clone, 800: kill_clone, 1200: succession.promote_clone})
    assert len(set(killed)) == 2, "the second was another one"
    [answer] = succession.takeovers[Role.ENV]
    assert (answer.exact, answer.level) == (True, "fork")
    assert compare_with_reference(succession.agent) > 0


def next_clone(env: Runner) -> tuple[Clone, int]:
    """What the runner says of its next clone, and the channel that keeps it alive."""
    while True:
        frame, fds = env.channel.recv(30)
        if isinstance(frame, Clone):
            return frame, fds[0]
        for fd in fds:
            os.close(fd)


@pytest.mark.guarantee("G3")
def test_a_clone_that_is_killed_while_its_runner_waits_is_made_anew_at_the_next_record(
    agents: Agents,
) -> None:
    """The end of the clone cuts the wait for an action short, and must not be forgotten by who
    looks what it was that did so."""
    budget = FailoverSettings(standby="fork", budget=1e-4)
    plan = AgentPlan(env=entry("Line"), steps=2000, failover=budget, ring_slots=2048)
    agent = agents(plan).wire().ready()
    agent.env.channel.send(Go())
    agent.take(Role.ENV)
    clones = [next_clone(agent.env)]
    try:
        [(first, _)] = clones
        watchdog.until(lambda: read_stat(agent.env.pid).state == "S", 10, "the env waits")
        os.kill(first.pid, signal.SIGKILL)
        watchdog.until(lambda: read_stat(first.pid).state in "ZX", 10, "the clone's end")
        watchdog.until(lambda: read_stat(agent.env.pid).state == "S", 10, "the env waits again")
        agent.policy.channel.send(Go())
        agent.reward.channel.send(Go())
        clones.append(next_clone(agent.env))
        second, _ = clones[-1]
        assert second.pid != first.pid
        assert second.seq <= first.seq + 2, "not at some later record"
    finally:
        agent.env.kill()
        for clone, fd in clones:
            os.close(fd)  # its end
            with contextlib.suppress(ChildProcessError):  # its parent has waited for it
                os.waitpid(clone.pid, 0)
