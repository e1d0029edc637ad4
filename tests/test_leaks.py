"""The leak check itself: each kind of leak, planted in a run of its own, is found and named."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsec.testing import leaks
from tests import watchdog

HEAD = """
import asyncio, mmap, os, subprocess, sys, threading, time
import pytest
KEEP = []
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
"""

ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(61)"], start_new_session=True)
"""

# kind -> (code of the planted test, words by which the report must name the leak)
LEAKS = {
    "child": ("KEEP.append(subprocess.Popen(SLEEP))", "time.sleep(60)"),
    "zombie": ("KEEP.append(os.fork() or os._exit(0))", "(zombie, parent"),
    "orphan": ("subprocess.run([sys.executable, '-c', ORPHAN], check=True)", "time.sleep(61)"),
    "descriptor": ("KEEP.append(os.pipe())", "pipe:["),
    "shared memory": (
        "os.close(os.open('/dev/shm/dsec-leak-%d' % os.getpid(), os.O_CREAT | os.O_RDWR))",
        "/dev/shm/dsec-leak-",
    ),
    "mapping": (
        """
        fd = os.memfd_create('dsec-leak')
        os.truncate(fd, 4096)
        KEEP.append(mmap.mmap(fd, 4096))
        os.close(fd)
        """,
        "memfd mapping dsec-leak",
    ),
    "task": (
        """
        loop = asyncio.new_event_loop()
        KEEP.extend([loop, loop.create_task(asyncio.sleep(60), name='leaked-task')])
        loop.run_until_complete(asyncio.sleep(0))
        """,
        "leaked-task",
    ),
    "thread": (
        """
        name = 'leaked-thread'
        threading.Thread(target=time.sleep, args=(60,), daemon=True, name=name).start()
        """,
        "leaked-thread",
    ),
}


PLANTED = {
    **{name.replace(" ", "_"): body for name, (body, _) in LEAKS.items()},
    "innocent": "pass",
    "tidy": "subprocess.run([sys.executable, '-c', ''], check=True)\nasyncio.run(asyncio.sleep(0))",
    "broken": "KEEP.append(subprocess.Popen(SLEEP))\nassert False, 'reason'",
    "after_broken": "assert not leaks.children_of(os.getpid()), 'not cleaned up'",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """One pytest run over all planted tests: for each, its failures and errors with their text."""
    folder = tmp_path_factory.mktemp("planted")
    source = f"{HEAD}ORPHAN = {ORPHAN!r}\nfrom dsec.testing import leaks\nleaks.GRACE_S = 0.2\n"
    for name, body in PLANTED.items():
        source += f"def test_{name}():\n" + textwrap.indent(textwrap.dedent(body), "    ") + "\n"
    (folder / "test_planted.py").write_text(source)
    argv = [sys.executable, "-m", "pytest", "-p", "dsec.testing.plugin", "-o", "dsec_leaks=true"]
    argv += ["-p", "no:cacheprovider", "-q"]
    argv += ["-c", "/dev/null", "--rootdir", str(folder), "--junitxml", str(folder / "all.xml")]
    result = watchdog.run(
        [*argv, folder / "test_planted.py"],
        folder / "out",
        timeout_s=60,
        env={"PYTHONPATH": str(watchdog.ROOT), leaks.BOARD: ""},
    )
    for entry in Path("/dev/shm").glob("dsec-leak-*"):
        entry.unlink()
    assert result.returncode == 1, result.stdout + result.stderr
    outcome: dict[str, list[tuple[str, str]]] = {name: [] for name in PLANTED}
    for case in ElementTree.parse(folder / "all.xml").iter("testcase"):
        name = case.attrib["name"].removeprefix("test_")
        outcome[name] += [(each.tag, each.attrib.get("message", "")) for each in case]
    return outcome


@pytest.mark.parametrize("kind", LEAKS)
def test_a_planted_leak_fails_its_test_and_is_named(
    kind: str, planted: dict[str, list[tuple[str, str]]]
) -> None:
    ((tag, message),) = planted[kind.replace(" ", "_")]
    assert tag == "error"
    assert "this test leaves behind" in message
    assert LEAKS[kind][1] in message


@pytest.mark.parametrize("name", ["innocent", "tidy", "after_broken"])
def test_a_clean_test_is_not_blamed(name: str, planted: dict[str, list[tuple[str, str]]]) -> None:
    assert planted[name] == []


def test_a_failing_test_is_not_blamed_twice(
    planted: dict[str, list[tuple[str, str]]],
) -> None:
    ((tag, message),) = planted["broken"]
    assert tag == "failure"
    assert "reason" in message


def test_a_hanging_program_is_cut_and_pictured(tmp_path: Path) -> None:
    script = (
        "import sys; print('began', flush=True); sys.stdin.fileno(); __import__('signal').pause()"
    )
    with pytest.raises(watchdog.HungError, match=r"(?s)still running.*signal.*began"):
        watchdog.run([sys.executable, "-c", script], tmp_path, timeout_s=1.0)


def test_waiting_for_a_program_that_has_ended_fails_at_once(tmp_path: Path) -> None:
    program = watchdog.Watched([sys.executable, "-c", "raise SystemExit(4)"], tmp_path)
    with program, pytest.raises(watchdog.HungError, match="exit code 4 before the moon"):
        program.until(lambda: False, 30, "the moon")


@pytest.mark.parametrize("left", [False, True])
def test_what_a_test_of_another_process_still_uses_is_no_leak_of_this_one(
    left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.1)
    monkeypatch.setenv(leaks.BOARD, str(tmp_path))
    other = tmp_path / str(os.getppid())
    other.write_text("its test")
    entry = leaks.SHM / f"dsec-leak-{os.getpid()}"

    def end_of_the_other_test() -> None:
        if not left:
            entry.unlink()
        other.unlink()

    # Later than the grace, so that only waiting for the other test can tell whose it is.
    ending = threading.Timer(0.5, end_of_the_other_test)
    ending.start()
    before = leaks.Snapshot("nobody's mark")
    entry.touch()
    try:
        found = leaks.settled_leaks(before)
    finally:
        ending.join(5)
        entry.unlink(missing_ok=True)
    assert found == ([f"shared memory {entry}"] if left else [])
