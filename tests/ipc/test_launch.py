"""How zygotes are started: their environment, their descriptors, their end."""

from __future__ import annotations

import os
import signal
import sys
import venv
from pathlib import Path

import pytest

from dsec.ipc import launch
from tests import watchdog


def test_the_environment_has_one_thread_for_each_library_and_a_fixed_hash_seed() -> None:
    env = launch.environment("r1")
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        assert env[name] == "1"
    assert env["PYTHONHASHSEED"] == "0"
    assert env["DSEC_RUN"] == "r1"
    assert env["PATH"] == os.environ["PATH"]


def test_folders_of_the_import_path_that_only_we_know_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/from/the/environment")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = launch.environment("r1")["PYTHONPATH"].split(os.pathsep)
    assert path[0] == str(tmp_path)
    assert "/from/the/environment" in path
    assert not any(each.startswith(f"{sys.prefix}/lib") for each in path)
    assert len(path) == len(set(path))


ORDER = """
import os, subprocess, sys
import twice
from dsec.ipc import launch
env = launch.environment("r1")
theirs = [sys.executable, "-c", "import twice; print(twice.__file__)"]
print(twice.__file__, subprocess.run(theirs, env=env, capture_output=True, text=True).stdout)
"""


@pytest.mark.slow
def test_a_zygote_finds_the_same_version_of_a_package_as_we_do(tmp_path: Path) -> None:
    """A .pth file's folder comes after the installed packages, for us and so for a zygote."""
    venv.create(tmp_path / "venv", symlinks=True)
    (installed,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (tmp_path / "older").mkdir()
    for folder in (installed, tmp_path / "older"):
        (folder / "twice.py").write_text("")
    (installed / "more.pth").write_text(f"import sys\n{tmp_path}/older\n")
    known = [str(watchdog.ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    result = watchdog.run(
        [tmp_path / "venv/bin/python", "-c", ORDER],
        tmp_path / "out",
        timeout_s=60,
        env={"PYTHONPATH": os.pathsep.join(known)},
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(installed / "twice.py")] * 2


LIST = """
import os, signal
links = {int(n): f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")}
fds = {n: os.readlink(link) for n, link in links.items() if os.path.lexists(link)}
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
ignored = signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
os.write(3, repr((fds, blocked, ignored)).encode())
"""


def test_a_zygote_gets_its_four_descriptors_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_ARGV", ("-c", LIST))
    files = [tmp_path / name for name in ("control", "lifeline", "out", "err")]
    fds = [os.open(file, os.O_RDWR | os.O_CREAT) for file in files]
    loose = os.dup(fds[0])
    os.set_inheritable(loose, True)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        pid = launch.exec_zygote(fds, os.environ)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)
        for fd in (*fds, loose):
            os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0, files[3].read_text()
    seen, blocked, ignored = eval(files[0].read_text())  # what our own script wrote
    wanted = ["/dev/null", *map(str, (files[2], files[3], files[0], files[1]))]
    assert [seen.get(number) for number in range(5)] == wanted
    assert max(seen) == 4
    assert (blocked, ignored) == (set(), False)


def test_descriptors_low_enough_to_be_overwritten_are_no_trap(tmp_path: Path) -> None:
    """In a process whose 1 to 4 are free, the sources of the four may be among the targets."""
    script = f"""
import os
from dsec.ipc import launch
launch._ARGV = ("-c", {LIST!r})
os.chdir({str(tmp_path)!r})
os.closerange(0, 5)
names = ["control", "lifeline", "out", "err"]
fds = [os.open(name, os.O_RDWR | os.O_CREAT) for name in names]
assert fds == [0, 1, 2, 3], fds
pid = launch.exec_zygote(fds, os.environ)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    result = watchdog.run([sys.executable, "-c", script], tmp_path / "streams", timeout_s=20)
    assert result.returncode == 0
    seen, _, _ = eval((tmp_path / "control").read_text())
    names = [Path(seen[number]).name for number in range(5)]
    assert names == ["null", "out", "err", "control", "lifeline"]


def test_signals_that_the_c_library_keeps_for_itself_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some builds of Python count them among the valid ones, and then refuse them with a warning,
    which is an error here."""
    every = set(range(1, signal.NSIG))
    monkeypatch.setattr(signal, "valid_signals", lambda: every)
    monkeypatch.setattr(launch, "_ARGV", ("-c", ""))
    fds = [os.open(os.devnull, os.O_RDWR) for _ in range(4)]
    try:
        pid = launch.exec_zygote(fds, os.environ)
    finally:
        for fd in fds:
            os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
