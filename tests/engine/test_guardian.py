"""The guardian: real ones, which outlive the supervisors that these tests write for them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.ipc.proc import read_stat
from dsec.testing import leaks
from tests import watchdog

pytestmark = pytest.mark.slow

HEAD = """
import os, select, signal, subprocess, sys
from dsec.engine import guardian

def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()

def grandchild(session):
    code = "import signal; signal.pause()"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=session).pid

def main():
"""
TAIL = "\nsys.exit(guardian.run(main))\n"
WAIT = """
    say(f"up {os.getpid()}")
    signal.pause()
"""

Start = Callable[..., watchdog.Watched]


def program(body: str) -> list[str]:
    return [sys.executable, "-c", HEAD + body + TAIL]


def said(running: watchdog.Watched, word: str) -> list[str]:
    """The numbers after `word`, once it was said."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [line for line in running.stdout.splitlines() if line.startswith(word)]
        return bool(found)

    running.until(look, 20, f"the word {word!r}")
    return found[0].split()[1:]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("    return 0", 0),
        ("    return 3", 3),
        ("    sys.exit(4)", 4),
        ("    sys.exit()", 0),
        ("    sys.exit('no')", 1),
        ("    raise RuntimeError('a mistake')", 70),
        ("    os.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
        ("    os.abort()", 128 + 6),
    ],
)
def test_the_exit_code_is_the_supervisors(body: str, code: int, watched: Start) -> None:
    with watched(program(body)) as running:
        assert running.wait(20) == code
        assert ("RuntimeError: a mistake" in running.stderr) == (code == 70)
        assert ("killed by SIGABRT" in running.stderr) == (code == 128 + 6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_passed_on(number: signal.Signals, watched: Start) -> None:
    body = f"""
    import time
    came = []
    signal.signal({int(number)}, lambda n, f: (came.append(n), say(f"got {{n}}")))
    say(f"up {{os.getpid()}}")
    while len(came) < 2:  # a pause would wait for ever for a signal that has come just before it
        time.sleep(0.01)
    return 9
"""
    with watched(program(body)) as running:
        said(running, "up")
        running.send(number)
        assert said(running, "got") == [str(int(number))]
        running.send(number)
        assert running.wait(20) == 9


def test_what_was_ignored_from_the_start_stays_ignored(watched: Start) -> None:
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    with watched(program(WAIT + "    return 9\n"), prepare=ignore) as running:
        said(running, "up")
        running.send(signal.SIGHUP)
        running.send(signal.SIGTERM)
        assert running.wait(20) == 128 + 15


def test_the_supervisor_is_in_a_group_of_its_own(watched: Start) -> None:
    """So the terminal's Ctrl-C comes once, from the guardian."""
    with watched(program(WAIT)) as running:
        [pid] = said(running, "up")
        assert os.getpgid(int(pid)) == int(pid) != os.getpgid(running.pid)
        running.send(signal.SIGTERM)
        running.wait(20)


FAMILY = """
    pids = [grandchild(False), grandchild(True)]
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pause()
        os._exit(0)
    os.wait()
"""


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("end", ["return 0", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_below_outlives_the_guardian(end: str, watched: Start) -> None:
    with watched(program(f"{FAMILY}    say('born')\n    {end}")) as running:
        assert running.wait(30) == (0 if "return" in end else 128 + 9)
        assert "born" in running.stdout
        mark = os.environ[leaks.MARK]
        watchdog.until(lambda: not leaks.marked(mark), 5, "the end of everybody")


@pytest.mark.guarantee("G8")
def test_servers_have_their_second_after_the_supervisors_death(watched: Start) -> None:
    body = """
    reading, writing = os.pipe()
    if os.fork() == 0:
        poll = select.poll()
        poll.register(os.pidfd_open(os.getppid()), select.POLLIN)
        os.write(writing, b"ready")
        poll.poll()
        say("drained")
        os._exit(0)
    os.read(reading, 5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with watched(program(body)) as running:
        assert running.wait(30) == 128 + 9
        assert "drained" in running.stdout


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("handled", [False, True])
def test_the_supervisor_learns_of_the_guardians_death(handled: bool, watched: Start) -> None:
    """By SIGTERM, which ends it where nobody handles that; and it can ask."""
    body = f"""
    import time
    came = []
    if {handled}:
        signal.signal(signal.SIGTERM, lambda n, f: came.append(n))
    assert not guardian.orphaned()
    say(f"up {{os.getpid()}}")
    while not came:
        time.sleep(0.01)
    say("alone" if guardian.orphaned() else "not alone")
"""
    with watched(program(body)) as running:
        [pid] = said(running, "up")
        running.send(signal.SIGKILL)
        watchdog.until(lambda: read_stat(int(pid)).state in "ZX", 20, "the supervisor's end")
        assert running.stdout.splitlines()[1:] == (["alone"] if handled else [])


def test_suspending_stops_everything_and_going_on_lets_all_go_on(watched: Start) -> None:
    body = """
    pid = grandchild(True)
    say(f"up {os.getpid()} {pid}")
    signal.pause()
"""
    with watched(program(body)) as running:
        pids = [running.pid, *map(int, said(running, "up"))]
        running.send(signal.SIGTSTP)
        watchdog.until(lambda: all(read_stat(pid).state == "T" for pid in pids), 20, "the stop")
        running.send(signal.SIGCONT)
        watchdog.until(lambda: all(read_stat(pid).state == "S" for pid in pids), 20, "going on")
        running.send(signal.SIGTERM)
        assert running.wait(20) == 128 + 15


def test_the_guardian_has_no_thread_and_no_loop(watched: Start, tmp_path: Path) -> None:
    with watched(program(WAIT)) as running:
        said(running, "up")
        assert len(list(Path(f"/proc/{running.pid}/task").iterdir())) == 1
        running.send(signal.SIGTERM)
        running.wait(20)
