"""Children and orphans, real ones: watched, reaped, and killed to the last."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from dsec.ipc import proc
from dsec.ipc.proc import Exit, descendants_of, read_stat
from dsec.kernel.reap import Reaper
from tests import watchdog

PAUSE = "import signal; signal.pause()"
# A child like a runner: it executes a program in a session of its own, starts a daemon that it
# doesn't execute, and waits.
FAMILY = """
import os, signal, subprocess, sys
os.setpgid(0, 0)
os.environ["DSEC_RUNNER"] = str(os.getpid())
code = "import signal; signal.pause()"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
os.wait()
print("born", flush=True)
signal.pause()
"""


@pytest.fixture(scope="module", autouse=True)
def libuv_started() -> None:
    """Open the pipe that libuv keeps for the life of the process, before leaks are looked for."""
    uvloop.new_event_loop().close()


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    was = proc.set_subreaper(True)
    yield
    proc.set_subreaper(was)


class World:
    """A loop that runs while a test waits, and what a reaper said in it."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.ends: dict[int, Exit] = {}

    def reaper(self, mark: str = "") -> Reaper:
        return Reaper(self.loop, mark)

    def watch(self, reaper: Reaper, pid: int) -> None:
        reaper.watch(pid, lambda end: self.ends.__setitem__(pid, end))

    def until(self, condition: Callable[[], object], what: str) -> None:
        def turned() -> bool:
            self.loop.run_until_complete(asyncio.sleep(0))
            return bool(condition())

        watchdog.until(turned, 20, what)

    def end_of(self, reaper: Reaper, pid: int) -> Exit:
        self.watch(reaper, pid)
        self.until(lambda: pid in self.ends, "the child's end")
        return self.ends[pid]

    def state(self, pid: int, *states: str) -> None:
        self.until(lambda: read_stat(pid).state in states, f"state {states}")

    def kill_all(self, reaper: Reaper) -> None:
        def nothing_left() -> bool:
            reaper.sweep()
            return not reaper.kill_all()

        self.until(nothing_left, "the end of everybody")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.loop.close()


def start(code: str, **env: str) -> int:
    """A child that nobody but the test's reaper knows of."""
    return os.posix_spawn(sys.executable, [sys.executable, "-c", code], {**os.environ, **env})


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("code", "signum", "exit_code"),
    [
        ("import os; os._exit(3)", 0, 3),
        ("pass", 0, 0),
        ("import os; os.kill(os.getpid(), 9)", 9, -1),
        ("import os; os.abort()", 6, -1),
        ("bytearray(100 << 20)", 0, 0),
    ],
)
def test_an_end_is_told_with_its_status_and_peak(
    code: str, signum: int, exit_code: int, world: World
) -> None:
    end = world.end_of(world.reaper(), start(code))
    assert (end.signal, end.code) == (signum, exit_code)
    assert end.rss_peak_bytes > (100 << 20 if "bytearray" in code else 1 << 20)


def test_a_watched_child_can_be_killed_and_then_no_more(world: World) -> None:
    reaper, pid = world.reaper(), start(PAUSE)
    world.watch(reaper, pid)
    reaper.kill(pid)
    world.until(lambda: pid in world.ends, "its end")
    assert world.ends[pid].signal == signal.SIGKILL
    reaper.kill(pid)
    reaper.kill(1)


# Counts in a file for as long as one of its threads lives, be it not the first one.
COUNTS = """
import ctypes, mmap, os, sys, threading
file = os.open(sys.argv[1], os.O_RDWR)
count = memoryview(mmap.mmap(file, 8)).cast("Q")
def go_on():
    while True:
        count[0] += 1
threading.Thread(target=go_on).start()
if sys.argv[2] == "leaves":
    ctypes.PyDLL(None).pthread_exit(None)
go_on()
"""


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("first_thread", ["stays", "leaves"])
def test_who_is_past_writing_has_written_its_last(
    first_thread: str, world: World, tmp_path: Path
) -> None:
    reaper, file = world.reaper(), tmp_path / "count"
    file.write_bytes(bytes(8))
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", COUNTS, str(file), first_thread], os.environ
    )
    world.watch(reaper, pid)
    watchdog.until(lambda: file.read_bytes() != bytes(8), 20, "that it counts")
    if first_thread == "leaves":
        watchdog.until(lambda: read_stat(pid).exiting, 20, "that its first thread has left")
    else:
        assert not reaper.past_writing(pid), "it counts, and nobody has killed it"
        reaper.kill(pid)
    watchdog.until(lambda: reaper.past_writing(pid), 20, "that no thread of it goes on")
    assert reaper.watches(pid), "its end is yet to be read"
    last = file.read_bytes()
    world.until(lambda: pid in world.ends, "its end")
    assert file.read_bytes() == last
    assert not reaper.past_writing(pid), "nobody's any more"


# Makes a child, which says that it lives, and ends while that one goes on.
PARENT = """
import os, signal, sys
os.setpgid(0, 0)
child = os.fork()
if child:
    print(child, flush=True)
signal.pause()
"""


@pytest.mark.guarantee("G5")
def test_what_somebody_made_is_killed_before_he_counts_as_gone(world: World) -> None:
    reaper = world.reaper()
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    world.watch(reaper, parent.pid)
    assert parent.stdout is not None
    with parent.stdout as said:
        child = int(said.readline())
        reaper.kill(parent.pid)
        watchdog.until(lambda: reaper.past_writing(parent.pid), 20, "that it executes nothing")
        # The loop does not run, so nobody reaps the parent and ends its group for that.
        watchdog.until(lambda: read_stat(child).state in "ZX", 20, "the child's end")
    assert reaper.watches(parent.pid), "its end is yet to be read"
    world.until(lambda: parent.pid in world.ends, "its end")
    parent.returncode = 0  # it is reaped, not by this object
    os.waitpid(child, 0)


def test_who_is_no_child_is_not_watched(world: World) -> None:
    with pytest.raises(ChildProcessError):
        world.watch(world.reaper(), 1)


def test_a_status_that_somebody_else_took_is_no_obstacle(world: World) -> None:
    child = subprocess.Popen([sys.executable, "-c", PAUSE])
    world.watch(world.reaper(), child.pid)
    child.kill()
    child.wait()
    world.until(lambda: child.pid in world.ends, "its end")
    assert world.ends[child.pid] == Exit(0, 255)


@pytest.mark.guarantee("G8")
def test_what_a_dead_runner_started_dies_with_it(world: World) -> None:
    """Its children are killed at once if they kept its group, at the next sweep if their
    environment names it; a fork that left the group and executed nothing goes with the run."""
    reaper = world.reaper()
    child = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"born\n"
    child.stdout.close()
    [member] = descendants_of(child.pid)
    [daemon] = [pid for pid in descendants_of(os.getpid(), depth=1) if pid != child.pid]
    world.watch(reaper, child.pid)
    reaper.kill(child.pid)
    world.until(lambda: child.pid in world.ends, "its end")
    child.returncode = 0  # the reaper has its status
    reaper.sweep()
    world.state(member, "Z", "X")
    assert read_stat(daemon).state not in "ZX"
    world.kill_all(reaper)
    assert {read_stat(member).state, read_stat(daemon).state} == {"X"}
    assert reaper.kill_all() == []


@pytest.mark.guarantee("G8")
def test_a_daemon_that_names_its_dead_runner_dies_at_the_next_sweep(world: World) -> None:
    reaper, runner = world.reaper("DSEC_RUN=abc"), start(PAUSE)
    named, other = (start(PAUSE, DSEC_RUN="abc", DSEC_RUNNER=str(n)) for n in (runner, 1))
    for pid in (named, other):
        environment = Path(f"/proc/{pid}/environ")
        world.until(lambda e=environment: b"DSEC_RUNNER" in e.read_bytes(), "its exec")
    world.watch(reaper, runner)
    reaper.kill(runner)
    world.until(lambda: runner in world.ends, "its end")
    reaper.sweep()
    world.state(named, "Z", "X")
    assert read_stat(other).state not in "ZX"
    world.kill_all(reaper)
    assert {read_stat(named).state, read_stat(other).state} == {"X"}


@pytest.mark.guarantee("G8")
def test_a_dead_orphan_is_reaped_once_it_was_seen_twice(world: World) -> None:
    reaper = world.reaper()
    reaper.sweep()  # without any child
    pid = start("pass")
    world.state(pid, "Z")
    reaper.sweep()
    assert read_stat(pid).state == "Z", "somebody may still ask for it"
    reaper.sweep()
    assert read_stat(pid).state == "X"


def test_a_zombie_that_is_watched_is_left_to_its_watcher(world: World) -> None:
    reaper, pid = world.reaper(), start("import os; os._exit(3)")
    world.watch(reaper, pid)
    watchdog.until(lambda: read_stat(pid).state == "Z", 10, "the child's end")
    for _ in range(3):
        reaper.sweep()
    world.until(lambda: pid in world.ends, "the word of it")
    assert world.ends[pid].code == 3


def test_in_a_shared_process_only_what_is_ours_is_touched(world: World) -> None:
    reaper = world.reaper("DSEC_RUN=abc")
    theirs = subprocess.Popen([sys.executable, "-c", PAUSE])
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    ours = start(PAUSE, DSEC_RUN="abc")
    environment = Path(f"/proc/{ours}/environ")
    world.until(lambda: b"DSEC_RUN=abc" in environment.read_bytes(), "its exec")
    world.kill_all(reaper)
    assert read_stat(ours).state == "X"
    assert theirs.poll() is None
    assert dead.wait() == 0
    theirs.kill()
    theirs.wait()


def test_a_stopped_process_is_seen_to_be() -> None:
    pid = start(PAUSE)
    os.kill(pid, signal.SIGSTOP)
    watchdog.until(lambda: read_stat(pid).state == "T", 10, "the stop")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert read_stat(pid).state == "X"
    assert read_stat(os.getpid()).state == "R"
    assert read_stat(os.getpid()).group == os.getpgid(0)
