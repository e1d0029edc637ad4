"""What a runner's process is like, and each of the ways in which it can end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsec.ipc import segment
from dsec.ipc.channel import Channel
from dsec.ipc.frames import (
    Constructed,
    Crashing,
    Drain,
    EnvSettings,
    Failed,
    Kept,
    Phase,
    Role,
)
from dsec.ipc.layout import EnvRecord
from tests import watchdog
from tests.runners import worlds
from tests.runners.kernel import SEED, Agent, AgentPlan, Agents, MiniKernel, Runner, mini_kernel


def line(**kwargs: Any) -> EnvSettings:
    return EnvSettings(entry=f"{worlds.HERE}:Line", kwargs=kwargs)


def policy(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"policy": f"{worlds.HERE}:{name}", "policy_kwargs": kwargs}


@contextmanager
def one_kernel(folder: Path) -> Iterator[tuple[MiniKernel, Channel]]:
    """A kernel of the test's own, which it may harm."""
    with mini_kernel(folder) as kernel:
        yield kernel, kernel.zygote("numpy", "gymnasium", worlds.HERE)


def descriptors(pid: int) -> dict[int, str]:
    entries = Path(f"/proc/{pid}/fd").iterdir()
    return {int(entry.name): str(entry.readlink()) for entry in entries}


@pytest.mark.guarantee("G8")
def test_a_runner_has_its_own_descriptors_and_no_others(tmp_path: Path) -> None:
    held = tmp_path / "held-open.txt"
    held.write_text("by an import")
    module = tmp_path / "holds_a_file.py"
    module.write_text(f"FILE = open({str(held)!r})\n")
    with mini_kernel(tmp_path) as kernel:
        zygote = kernel.zygote("holds_a_file", env={"PYTHONPATH": str(tmp_path)})
        runner = kernel.fork(zygote, "lonely")
        found = descriptors(runner.pid)
        assert len(found) == 6, found
        assert found[0] == "/dev/null"
        assert (found[1], found[2]) == (str(runner.stdout), str(runner.stderr))
        others = sorted(target.split(":")[0] for fd, target in found.items() if fd > 2)
        assert others == ["/dev/null", "pipe", "socket"], "the lifeline and the control channel"
        [number] = (fd for fd, target in found.items() if fd > 2 and target == "/dev/null")
        flags = Path(f"/proc/{runner.pid}/fdinfo/{number}").read_text().split("flags:")[1].split()
        assert int(flags[0], 8) & os.O_PATH, "the module's number leads nowhere, and stays taken"
        targets = descriptors(kernel.zygote_process(zygote).pid).values()
        assert str(held) in targets, "the example must hold it open"
        assert f"an import left {held} open" in kernel.zygote_log()


def test_a_wired_runner_keeps_the_segments_with_overflow_areas_open(agents: Agents) -> None:
    agent = agents(AgentPlan(steps=10)).wire().ready()
    for runner in agent.runners.values():
        kept = [target for target in descriptors(runner.pid).values() if "/memfd:" in target]
        assert len(descriptors(runner.pid)) == 5 + len(kept)
        assert len(kept) == 2, "those of env and policy, for their overflow areas"
        mapped = Path(f"/proc/{runner.pid}/maps").read_text()
        assert mapped.count("/memfd:") >= 4
    agent.go().take_all().finish()


def report(agent: Any) -> dict[str, Any]:
    record = agent.take(Role.ENV)
    layout = EnvRecord(agent.spaces[0], 1)
    _, infos = layout.decode_extras(record.payload[layout.fixed_bytes :])
    return dict(infos[0])


def test_a_runner_is_isolated_limited_and_seeded(agents: Agents) -> None:
    env = EnvSettings(entry=f"{worlds.HERE}:Reporting")
    limits = {"open_files": 100, "memory_mb": 4096}
    seeds = (SEED, SEED, SEED[::-1])
    told = []
    for i, seed in enumerate(seeds):
        plan = AgentPlan(name=f"report{i}", env=env, seed=seed, limits=limits)
        told.append(report(agents(plan).begin()))
    for one in told:
        assert (one["files"], one["core"], one["threads"]) == (100, 0, 1)
        assert one["group"] and one["sigint"]
        assert one["stdin"] == "/dev/null"
    same, again, other = told
    for name in ("seed", "python", "numpy", "action"):
        assert same[name] == again[name], "the same seed gives the same numbers"
        if name != "action":
            assert same[name] != other[name], "agents don't share numbers"
    assert same["hash"] == other["hash"], "the order of sets is the same everywhere"
    assert len({one["entropy"] for one in told}) == 3, "but secrets never repeat"


def test_a_runner_keeps_to_its_cores(agents: Agents) -> None:
    core = max(os.sched_getaffinity(0))
    agent = agents(AgentPlan(cpus=(core,), steps=5)).begin()
    for role in (Role.ENV, Role.POLICY, Role.REWARD):
        assert os.sched_getaffinity(agent.runners[role].pid) == {core}
    agent.take_all().finish()


def test_a_core_that_is_not_there_is_named(agents: Agents) -> None:
    failed = agents(AgentPlan(cpus=(1023,))).env.failure()
    assert (failed.error.where, failed.error.lookup) == ("limits.cpus", True)
    assert failed.error.message.startswith("can't run on the cores 1023: ")


def test_a_chatty_environment_blocks_nobody(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(misdeed="shout"), steps=20)).run()
    assert agent.env.stdout.read_text() == "o" * 1_000_000
    assert agent.env.stderr.read_text().count("e") >= 1_000_000


# ---------------------------------------------------------------- ends

RAISING = {
    "raise": ("ValueError", "the floor gave way", 70),
    "unpicklable": ("tests.runners.worlds.UnpicklableError", "can't be pickled", 70),
    "rude": ("tests.runners.worlds.RudeError", "", 70),
    "surrogate": ("ValueError", "half a character: \\ud800", 70),
    "keyboard": ("KeyboardInterrupt", "", 70),
    "memory": ("MemoryError", "out of memory (limits.memory_mb", 70),
    "recursion": ("RecursionError", "maximum recursion depth exceeded", 70),
    "exit": ("SystemExit", "user code called sys.exit(7)", 7),
    "exit permanently": ("SystemExit", "user code called sys.exit(125)", 125),
    "exit politely": ("SystemExit", "user code called sys.exit()", 70),
    "exit with words": ("SystemExit", "user code called sys.exit('enough')", 1),
}
ENV_PHASES = {
    "construct": (Phase.CONSTRUCT, 0),
    "reset": (Phase.RESET, 0),
    "step": (Phase.STEP, 4),
    "close": (Phase.CLOSE, 8),
}


def check_failure(runner: Runner, misdeed: str, phase: Phase, seq: int, where: str) -> Failed:
    kind, words, code = RAISING[misdeed]
    failed = runner.failure()
    assert failed.error.type == kind
    assert words in failed.error.message
    assert (failed.phase, failed.seq) == (phase, seq)
    assert (failed.error.where, failed.error.lookup) == (where, False)
    assert "worlds.py" in failed.error.traceback
    assert "dsec/runners" not in failed.error.traceback, "our own frames say nothing to users"
    assert runner.wait() == code
    return failed


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("misdeed", RAISING)
@pytest.mark.parametrize("when", ENV_PHASES)
def test_what_an_environment_raises_is_reported(agents: Agents, misdeed: str, when: str) -> None:
    phase, seq = ENV_PHASES[when]
    agent = agents(
        AgentPlan(env=line(misdeed=misdeed, phase=when, at=5), steps=8, limits={"memory_mb": 4096})
    )
    if when != "construct":
        agent.begin()
    if when == "close":
        agent.take_all()
    check_failure(agent.env, misdeed, phase, seq, "env" if when == "construct" else "")


POLICY_PHASES = {
    "construct": (Phase.CONSTRUCT, 0),
    "act": (Phase.ACT, 5),
    "learn": (Phase.LEARN, 5),
    "close": (Phase.CLOSE, 8),
}


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("misdeed", ["raise", "rude", "exit"])
@pytest.mark.parametrize("when", POLICY_PHASES)
def test_what_a_policy_raises_is_reported(agents: Agents, misdeed: str, when: str) -> None:
    phase, seq = POLICY_PHASES[when]
    agent = agents(
        AgentPlan(env=line(), **policy("Learning", misdeed=misdeed, phase=when, at=5), steps=8)
    ).wire()
    if when != "construct":
        agent.ready().go()
    if when == "close":
        agent.take_all()
    check_failure(agent.policy, misdeed, phase, seq, "policy" if when == "construct" else "")


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("misdeed", ["raise", "rude", "exit"])
@pytest.mark.parametrize("when", ["construct", "compute", "close"])
def test_what_a_reward_raises_is_reported(agents: Agents, misdeed: str, when: str) -> None:
    phases = {
        "construct": (Phase.CONSTRUCT, 0),
        "compute": (Phase.REWARD, 5),
        "close": (Phase.CLOSE, 8),
    }
    phase, seq = phases[when]
    agent = agents(
        AgentPlan(
            env=line(),
            reward=f"{worlds.HERE}:Shaped",
            reward_kwargs={"misdeed": misdeed, "phase": when, "at": 5},
            steps=8,
        )
    ).wire()
    if when != "construct":
        agent.ready().go()
    if when == "close":
        agent.take_all()
    check_failure(agent.reward, misdeed, phase, seq, "reward" if when == "construct" else "")


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("misdeed", "status"),
    [
        ("os exit", 3),
        ("kill", -signal.SIGKILL),
        ("segfault", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
    ],
)
@pytest.mark.parametrize("when", ENV_PHASES)
def test_a_death_without_words_keeps_its_status(
    agents: Agents, misdeed: str, status: int, when: str
) -> None:
    phase, seq = ENV_PHASES[when]
    agent = agents(AgentPlan(env=line(misdeed=misdeed, phase=when, at=5), steps=8))
    if when != "construct":
        agent.begin()
    if when == "close":
        agent.take_all()
    assert agent.env.wait() == status
    frames = agent.env.frames_to_the_end()
    told = [frame for frame in frames if not isinstance(frame, Constructed | Kept)]
    if misdeed not in ("segfault", "abort"):
        assert not told
    else:
        known = when != "construct"  # before Wire there is no outbox to write it into
        assert told == [Crashing(-status, seq=seq if known else -1)], (
            "said by its signal handler, before it is gone"
        )
        log = agent.env.stderr.read_text(errors="replace")
        assert "Current thread" in log, "faulthandler's Python stack"
        assert "worlds.py" in log
        if known:
            crash = segment.read_crash(agent.segments[Role.ENV].fd)
            assert crash is not None
            assert (crash.signal, crash.phase, crash.seq) == (-status, phase, seq)
            assert crash.address == (8 if misdeed == "segfault" else 0)


@pytest.mark.guarantee("G8")
def test_the_lifeline_kills_a_busy_loop_with_all_signals_blocked(
    tmp_path: Path,
) -> None:
    with one_kernel(tmp_path) as (kernel, zygote):
        agent = Agent(kernel, zygote, AgentPlan(env=line(misdeed="hang", at=3))).begin()
        try:
            cut_while_hanging(kernel, agent)
        finally:
            agent.close()


def cut_while_hanging(kernel: MiniKernel, agent: Agent) -> None:
    for _ in range(3):
        agent.take(Role.ENV)
    status = Path(f"/proc/{agent.env.pid}/status")

    def hangs() -> bool:
        (blocked,) = [row for row in status.read_text().splitlines() if "SigBlk" in row]
        return int(blocked.split()[1], 16) & (1 << (signal.SIGTERM - 1)) != 0

    watchdog.until(hangs, 10, "the environment is in its loop")
    kernel.cut_lifeline()
    for runner in agent.runners.values():
        assert runner.wait(10) == -signal.SIGKILL


def test_a_runner_whose_kernel_closes_the_channel_ends(tmp_path: Path) -> None:
    with one_kernel(tmp_path) as (kernel, zygote):
        runner = kernel.fork(zygote, "waiting")
        runner.channel.close()
        assert runner.wait() == 71


def test_a_runner_of_a_dead_zygote_lives_on(tmp_path: Path) -> None:
    with one_kernel(tmp_path) as (kernel, zygote):
        runner = kernel.fork(zygote, "orphan")
        process = kernel.zygote_process(zygote)
        process.kill()
        process.wait(10)
        runner.channel.send(AgentPlan(steps=3).start(Role.ENV))
        runner.expect(Constructed)
        runner.channel.send(Drain("enough"))
        runner.frames_to_the_end()
        assert runner.wait() == 0


def test_too_little_memory_says_how_much(agents: Agents) -> None:
    agent = agents(AgentPlan(limits={"memory_mb": 10}))
    failed = agent.env.failure()
    assert failed.error.where == "limits.memory_mb" and failed.error.lookup
    assert "10 MB are too few" in failed.error.message
    needed = int(failed.error.message.rsplit(" ", 1)[1])
    roomy = agents(AgentPlan(name="roomy", limits={"memory_mb": needed}, steps=5))
    roomy.run()


def test_a_hung_runner_shows_its_stack_on_request(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(misdeed="hang", at=3))).begin()
    for _ in range(3):
        agent.take(Role.ENV)
    # The loop blocks signals, as the worst ones do; the others show where they are.
    os.kill(agent.policy.pid, signal.SIGUSR2)
    watchdog.until(
        lambda: "policy.py" in agent.policy.stderr.read_text(), 10, "the policy's stack is shown"
    )


def test_a_child_that_user_code_forked_says_nothing(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(misdeed="fork and raise"), steps=8)).run()
    assert "ValueError: the child's" in agent.env.stderr.read_text()


def test_nothing_a_runner_sends_is_large(agents: Agents) -> None:
    agent = agents(AgentPlan(env=line(misdeed="surrogate"), steps=8)).begin()
    failed = agent.env.failure()
    assert len(failed.error.message) < 5000
    assert "characters left out" in failed.error.message
    assert sys.getsizeof(failed.error.traceback) < 100_000
