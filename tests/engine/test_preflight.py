"""The machine is asked before anything is started, and its answer has numbers and a remedy."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.config import Loaded, load
from dsec.engine import preflight
from dsec.errors import ConfigError, MachineError

CONFIG = """\
run: {steps: 1_000_000}
agents:
  - name: a
    count: 100
    env: {id: CartPole-v1}
    policy: {entry: "a:B"}
    ipc:
      ring_slots: 4096
"""


def loaded(tmp_path: Path, text: str = CONFIG) -> Loaded:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load(path)


def limited(soft: int, hard: int, agents: int) -> str:
    """check_limits under a limit on descriptors, in a process of its own."""
    code = (
        "import resource\n"
        "from dsec.engine import preflight\n"
        "from dsec.errors import MachineError\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "try:\n"
        f"    print(preflight.check_limits({agents}))\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except MachineError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def test_the_soft_limit_on_files_is_raised_as_far_as_needed() -> None:
    assert limited(256, 1024, 8) == "256\n256\n"
    assert limited(256, 1024, 20) == "256\n384\n"


def test_a_hard_limit_on_files_is_an_error_with_the_way_out() -> None:
    said = limited(256, 256, 20)
    assert "20 agents need 384 open files; the limit (RLIMIT_NOFILE) is 256" in said
    assert "ulimit -n 384" in said
    assert "run at most 12 agents" in said


def test_more_files_for_a_runner_than_it_can_have_is_a_mistake(tmp_path: Path) -> None:
    text = CONFIG.replace("    ipc:", "    limits: {open_files: 1_000_000_000}\n    ipc:")
    with pytest.raises(ConfigError, match=r"7:14: agents\[0\]\.limits\.open_files: 1,000,000,000"):
        preflight.check_open_files(loaded(tmp_path, text))
    preflight.check_open_files(loaded(tmp_path))


def test_rings_larger_than_memory_are_a_mistake_with_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        preflight.check_memory(loaded(tmp_path), available=lambda: 50 << 20)
    said = str(caught.value)
    assert "config.yaml:8:7: agents[0].ipc.ring_slots: 4,096 slots for 100 agents" in said
    assert "need at least 76 MiB of memory; 50 MiB are available" in said


def test_more_processes_than_memory_holds(tmp_path: Path) -> None:
    small = loaded(tmp_path, CONFIG.replace("4096", "4"))
    with pytest.raises(MachineError, match=r"100 agents need at least 1.2 GiB of memory; 500 MiB"):
        preflight.check_memory(small, available=lambda: 500 << 20)
    preflight.check_memory(small, available=lambda: 2 << 30)
    preflight.check_memory(small, available=lambda: None)


def test_this_machine_has_memory_and_limits() -> None:
    assert preflight.check_limits(1) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert preflight._threads_of_user(0) > 0


def test_more_processes_than_the_machine_numbers() -> None:
    with pytest.raises(MachineError, match=r"need 300,000,008 processes; /") as caught:
        preflight._check_pids(300_000_008, 100_000_000)
    assert "Raise it" in caught.value.remedy


def test_more_mappings_than_one_process_may_have() -> None:
    with pytest.raises(MachineError, match=r"vm\.max_map_count") as caught:
        preflight._check_maps(10_000_000)
    assert caught.value.remedy.startswith("sysctl -w vm.max_map_count=")


def test_a_proc_that_does_not_show_this_process_is_an_error(tmp_path: Path) -> None:
    preflight.check_proc()
    with pytest.raises(MachineError, match="not mounted"):
        preflight.check_proc(tmp_path)
    (tmp_path / "self").symlink_to("1")
    with pytest.raises(MachineError, match="--mount-proc"):
        preflight.check_proc(tmp_path)


def test_a_user_who_may_have_no_more_processes_is_told_so() -> None:
    code = (
        "import os, resource\n"
        "from dsec import engine\n"
        "from dsec.errors import MachineError\n"
        "from dsec.engine import guardian\n"
        "if os.geteuid() == 0:\n"  # whom that limit doesn't bind
        "    os.setresuid(54321, 54321, 54321)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "try:\n"
        "    engine.guard(lambda: 0)\n"
        "except MachineError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert "no process can be started" in done.stdout
    assert "ulimit -u" in done.stdout


def test_cores_that_are_not_ours_are_named_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 5})
    bound = "limits: {cpus: [0, 7]}\n    policy:"
    preflight.check_cores(loaded(tmp_path, CONFIG.replace("policy:", bound.replace("7", "5"))))
    with pytest.raises(ConfigError) as caught:
        preflight.check_cores(loaded(tmp_path, CONFIG.replace("policy:", bound)))
    (problem,) = caught.value.diagnostics
    assert (problem.line, problem.path) == (6, "agents[0].limits.cpus[1]")
    assert problem.message == "this run may not use core 7; it has 0-2, 5"


def test_spares_are_processes_too(tmp_path: Path) -> None:
    text = CONFIG + "    failover: {standby: none}\n"
    assert preflight.spares(loaded(tmp_path)) == 100
    assert preflight.spares(loaded(tmp_path, text)) == 0
