"""Zygotes: what they import, what they refuse, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.ipc.channel import Channel, pair
from dsec.ipc.frames import (
    AnyFrame,
    Constructed,
    Fork,
    ForkFailed,
    Hello,
    ImportFailed,
    Prepare,
    Prepared,
    Role,
)
from dsec.runners import seeds
from tests import watchdog
from tests.runners.kernel import PATIENCE_S, Agent, AgentPlan, MiniKernel, mini_kernel

NOBODY = 65534


def ask(zygote: Channel, *modules: str) -> AnyFrame:
    zygote.send(Prepare("image", modules))
    return zygote.recv(PATIENCE_S * 2)[0]


def module(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return name


@pytest.fixture
def kernel_here(tmp_path: Path) -> Iterator[MiniKernel]:
    """A kernel of the test's own."""
    with mini_kernel(tmp_path) as kernel:
        yield kernel


@pytest.fixture
def fresh(kernel_here: MiniKernel, tmp_path: Path) -> Channel:
    """A zygote that has imported nothing and finds modules in tmp_path."""
    return kernel_here.start_zygote(env={"PYTHONPATH": str(tmp_path)})


def test_modules_are_imported_in_order(fresh: Channel, tmp_path: Path) -> None:
    first = module(tmp_path, "comes_first", "import sys\nassert 'comes_second' not in sys.modules")
    second = module(tmp_path, "comes_second", "import sys\nassert 'comes_first' in sys.modules")
    answer = ask(fresh, first, second)
    assert isinstance(answer, Prepared), answer
    assert answer.image == "image"


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("1 / 0", "ZeroDivisionError", "raised ZeroDivisionError while it was imported"),
        ("import sys; sys.exit(4)", "SystemExit", "called sys.exit(4) while it was imported"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("import no_such_thing_here", "ModuleNotFoundError", "needs no_such_thing_here"),
        ("def broken(:", "SyntaxError", "raised SyntaxError"),
    ],
)
def test_a_module_that_fails_is_named_with_its_traceback(
    fresh: Channel, tmp_path: Path, text: str, kind: str, words: str
) -> None:
    name = module(tmp_path, "fails_at_import", text)
    answer = ask(fresh, "json", name)
    assert isinstance(answer, ImportFailed), answer
    assert (answer.image, answer.module) == ("image", name)
    assert answer.error.type == kind
    assert words in answer.error.message
    assert "fails_at_import.py" in answer.error.traceback
    assert "dsec/runners" not in answer.error.traceback
    assert not answer.error.lookup


def test_a_module_that_is_not_there_gets_a_suggestion(fresh: Channel, tmp_path: Path) -> None:
    module(tmp_path, "my_worlds", "")
    answer = ask(fresh, "my_world")
    assert isinstance(answer, ImportFailed)
    assert answer.error.lookup and answer.error.traceback == ""
    assert answer.error.message.startswith('no module "my_world" (did you mean my_worlds?)')


def test_the_working_directory_can_be_imported_from(fresh: Channel) -> None:
    assert isinstance(ask(fresh, "tests.runners.worlds"), Prepared)


def test_threads_are_reported(fresh: Channel, kernel_here: MiniKernel, tmp_path: Path) -> None:
    name = module(
        tmp_path,
        "starts_a_thread",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    )
    assert isinstance(ask(fresh, name), Prepared)
    assert "image image: 2 threads after the imports" in kernel_here.zygote_log()


@pytest.mark.guarantee("G8")
def test_it_ends_with_its_channel(kernel_here: MiniKernel, fresh: Channel) -> None:
    assert isinstance(ask(fresh, "json"), Prepared)
    process = kernel_here.zygote_process(fresh)
    fresh.close()
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.guarantee("G8")
def test_it_ends_with_its_lifeline(kernel_here: MiniKernel, tmp_path: Path, fresh: Channel) -> None:
    name = module(tmp_path, "never_returns", "import os\nos.write(2, b'in')\nwhile 1: pass")
    fresh.send(Prepare("image", (name,)))
    process = kernel_here.zygote_process(fresh)
    watchdog.until(lambda: "in" in kernel_here.zygote_log(), 10, "the module is being imported")
    kernel_here.cut_lifeline()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_lifeline_that_has_ended_starts_nothing(kernel_here: MiniKernel) -> None:
    kernel_here.cut_lifeline()
    zygote = kernel_here.start_zygote()
    assert kernel_here.zygote_process(zygote).wait(PATIENCE_S) == 70
    assert "had ended before" in kernel_here.zygote_log()


def test_ctrl_c_is_not_for_zygotes(kernel_here: MiniKernel, fresh: Channel) -> None:
    assert isinstance(ask(fresh, "json"), Prepared)
    kernel_here.zygote_process(fresh).send_signal(signal.SIGINT)
    assert isinstance(ask(fresh, "json"), Prepared)


def test_a_zygote_imports_nothing_that_its_image_does_not_name() -> None:
    """An image without Gymnasium would grow by it, and start later, for one import too many."""
    code = "import sys, dsec.runners.zygote; print(*{'numpy', 'gymnasium'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == [], found.stderr


@pytest.mark.parametrize("may_have", [1, 2])
def test_a_fork_that_fails_says_what_to_do(kernel_here: MiniKernel, may_have: int) -> None:
    """With 1 the first fork fails, with 2 the second, in the process between."""
    if os.geteuid() != 0:
        pytest.skip("the limit counts all processes of a user; the test needs one who has none")
    name = module(
        kernel_here.folder,
        "becomes_nobody",
        "import os, resource\n"
        f"resource.setrlimit(resource.RLIMIT_NPROC, ({may_have}, {may_have}))\n"
        f"os.setuid({NOBODY})\n",
    )
    zygote = kernel_here.start_zygote(env={"PYTHONPATH": str(kernel_here.folder)})
    assert isinstance(ask(zygote, "json", name), Prepared)
    mine, theirs = pair()
    with Path("/dev/null").open("w") as null:
        fds = (theirs.fileno(), kernel_here.lifeline_read, null.fileno(), null.fileno())
        zygote.send(Fork("unborn", 4, os.getpid()), fds)
        failed, _ = zygote.recv(PATIENCE_S)
    assert isinstance(failed, ForkFailed)
    assert (failed.name, failed.epoch) == ("unborn", 4)
    assert "Resource temporarily unavailable" in failed.message and "ulimit -u" in failed.message
    mine.close()
    theirs.close()
    assert isinstance(ask(zygote, "json"), Prepared), "and it goes on"


@pytest.mark.guarantee("G8")
def test_the_runner_is_the_supervisors_child_and_nobody_waits_in_between(
    kernel_here: MiniKernel, fresh: Channel
) -> None:
    assert isinstance(ask(fresh, "json"), Prepared)
    runner = kernel_here.fork(fresh, "child")
    status = Path(f"/proc/{runner.pid}/status").read_text()
    assert f"PPid:\t{os.getpid()}\n" in status
    zygote_pid = kernel_here.zygote_process(fresh).pid
    children = Path(f"/proc/{zygote_pid}/task/{zygote_pid}/children").read_text()
    assert children == "", "the process between is reaped"
    runner.kill()
    assert runner.wait() == -signal.SIGKILL


def test_a_runner_of_the_wrong_supervisor_does_not_live(
    kernel_here: MiniKernel, fresh: Channel
) -> None:
    assert isinstance(ask(fresh, "json"), Prepared)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        kernel_here.supervisor_pid = other.pid
        runner = kernel_here.fork_silently(fresh, "astray")
        assert runner.frames_to_the_end() == []
        assert runner.wait() == 70


def test_many_runners_of_one_zygote_differ(kernel_here: MiniKernel) -> None:
    zygote = kernel_here.zygote("numpy", "gymnasium")
    pids = {kernel_here.fork(zygote, f"one{i}").pid for i in range(8)}
    assert len(pids) == 8


def test_requests_that_have_piled_up_are_served_in_one_go(kernel_here: MiniKernel) -> None:
    zygote = kernel_here.zygote("numpy", "gymnasium")
    process = kernel_here.zygote_process(zygote)
    process.send_signal(signal.SIGSTOP)
    resumed = threading.Timer(0.05, process.send_signal, (signal.SIGCONT,))
    resumed.start()
    runners = kernel_here.fork_many(zygote, *(f"piled{i}" for i in range(20)))
    resumed.join()
    for runner in runners:
        assert runner.expect(Hello).pid == runner.pid, "the supervisor's child, as if alone"
    assert len({runner.pid for runner in runners}) == 20


def test_runners_share_what_the_zygote_did_first(kernel_here: MiniKernel) -> None:
    """Most of a runner's memory is its zygote's: what it has for itself is a matter of pages."""
    # More steps than a ring has slots: nobody can be done before the test has taken the rest.
    agent = Agent(kernel_here, kernel_here.zygote("numpy", "gymnasium"), AgentPlan(steps=200))
    agent.begin()
    for _ in range(10):
        for role in (Role.ENV, Role.POLICY):
            agent.take(role)
    private = {
        role.name: int(text.split("\nPrivate_Dirty:")[1].split()[0])
        for role, runner in agent.runners.items()
        if (text := Path(f"/proc/{runner.pid}/smaps_rollup").read_text())
    }
    assert max(private.values()) < 8 * 1024, f"KiB each has for itself: {private}"
    agent.take_all().finish()
    agent.close()


@pytest.mark.slow
def test_a_torch_image_is_warm_and_single_threaded(kernel_here: MiniKernel) -> None:
    pytest.importorskip("torch")
    zygote = kernel_here.zygote("numpy", "gymnasium", "torch", "dsec.torch_policies")
    assert "threads after the imports" not in kernel_here.zygote_log()
    plan = AgentPlan(policy="dsec.torch_policies:TorchMLPPolicy", steps=200)
    agent = Agent(kernel_here, zygote, plan).begin()
    for _ in range(50):
        for role in (Role.ENV, Role.POLICY):
            agent.take(role)
    policy = agent.policy.pid
    assert len(list(Path(f"/proc/{policy}/task").iterdir())) == 1
    rollup = Path(f"/proc/{policy}/smaps_rollup").read_text()
    (private,) = [int(row.split()[1]) for row in rollup.splitlines() if "Private_Dirty" in row]
    assert private < 40 * 1024, f"{private} KiB private: torch was set up again after the fork"
    agent.take_all().finish()
    agent.close()


@pytest.mark.slow
def test_agents_in_a_torch_image_draw_their_own_numbers(kernel_here: MiniKernel) -> None:
    pytest.importorskip("torch")
    from dsec.ipc.frames import EnvSettings
    from tests.runners.test_bootstrap import report

    zygote = kernel_here.zygote("numpy", "gymnasium", "torch")
    told = []
    for i in range(2):
        plan = AgentPlan(
            name=f"torch{i}",
            env=EnvSettings(entry="tests.runners.worlds:Reporting"),
            seed=f"{i:032x}",
        )
        agent = Agent(kernel_here, zygote, plan).begin()
        told.append(report(agent)["torch"])
        agent.close()
    assert told[0] != told[1]
    assert min(told) >= 0


def test_hello_and_constructed_come_in_this_order(kernel_here: MiniKernel) -> None:
    zygote = kernel_here.zygote("numpy", "gymnasium")
    runner = kernel_here.fork_silently(zygote, "ordered")
    runner.channel.send(AgentPlan().start(Role.ENV))
    assert [type(runner.channel.recv(PATIENCE_S)[0]) for _ in range(2)] == [Hello, Constructed]


def test_streams_of_one_agent_are_apart() -> None:
    drawn = {seeds.derive("00" * 16, *name) for name in (("policy",), ("reward",), ("env", 0))}
    assert len(drawn) == 3
    assert seeds.derive("00" * 16, "policy") == 1803740886, "a change here changes every run"
