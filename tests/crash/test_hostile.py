"""Runners that attack, under the profile `strict`: every attempt is made, denied and told of."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.crash import hostile, runs

STEPS = 400
SECRET = "DO_NOT_TELL"
STRICT = {"profile": "strict", "roles": ["env"], "processes": 24, "scratch_mb": 16}

CAUSES = {
    "read_memory": r"PermissionError in step.*may not look into other processes",
    "read_map": r"PermissionError in step.*may not look into other processes",
    "take_segment": r"PermissionError in step.*may not look into other processes",
    "trace": r"SIGSYS in step: its isolation denies the system call ptrace \(isolation.profile\)",
    "take_descriptor": r"SIGSYS in step: its isolation denies the system call pidfd_getfd",
    "reopen_segment": r"PermissionError in step.*only as it was given",
    "hold_lifeline": r"PermissionError in step.*only as it was given",
    "signal_supervisor": r"PermissionError in step.*may signal only its own processes",
    "signal_victim": r"PermissionError in step",
    "signal_by_file": r"PermissionError in step",
    "forge_frame": r"broke the protocol: sent Clone, killed",
    "connect_engine": r"PermissionError in step.*limits.network",
    "use_network": r"PermissionError in step.*limits.network",
    "fill_disk": r"OSError in step.*No space left.*16 MiB \(isolation.scratch_mb\)",
    "write_outside": r"PermissionError in step.*isolation.write",
    "read_outside": r"PermissionError in step.*isolation.read",
    "fork_bomb": r"BlockingIOError in step.*24 processes and threads \(isolation.processes\)",
    "new_namespace": r"PermissionError in step.*unshare.*isolation.profile",
    "mount": r"SIGSYS in step: its isolation denies the system call mount",
    "change_mode": r"PermissionError in step.*modes of files",
}


def attacker(attempt: str, evidence: Path) -> dict[str, Any]:
    keywords = {"attempt": attempt, "evidence": str(evidence)}
    return runs.walker(
        attempt,
        env={"entry": "tests.crash.hostile:Attacker", "kwargs": keywords},
        isolation={**STRICT, "write": [str(evidence)]},
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[runs.Finished, Path]:
    """One run in which all of them attack, and one agent is the victim."""
    folder = tmp_path_factory.mktemp("hostile")
    evidence = folder / "evidence"
    evidence.mkdir()
    evidence.chmod(0o777)
    victim = runs.walker(
        "victim",
        env={"entry": "tests.crash.hostile:Victim", "kwargs": {"evidence": str(evidence)}},
        isolation={**STRICT, "write": [str(evidence)], "environment": ["TELL"]},
        deadlines={"step_s": 90},
    )
    agents = [victim, *(attacker(attempt, evidence) for attempt in hostile.ATTEMPTS)]
    config = runs.write_config(folder / "config.yaml", agents, steps=STEPS * len(agents))
    with (
        socket.socket(socket.AF_UNIX) as engine,
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(SECRET, "hunter2")
        patch.setenv("TELL", "me")
        engine.bind(str(evidence / "engine.sock"))
        engine.listen()
        (evidence / "engine.sock").chmod(0o777)
        (evidence / "port").write_text(str(server.getsockname()[1]))
        run = runs.run(config, folder, timeout_s=110)
        for listening in (engine, server):
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept()
    return run, evidence


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("attempt", hostile.ATTEMPTS)
def test_an_attempt_is_denied_and_told_of(
    attempt: str, finished: tuple[runs.Finished, Path]
) -> None:
    run, evidence = finished
    assert (evidence / f"{attempt}.made").exists(), "the attempt was never made"
    assert not (evidence / f"{attempt}.done").exists(), "the attempt succeeded"
    deaths = [each for each in run.details["deaths_in_order"] if each["agent"] == attempt]
    (own,) = [each for each in deaths if each["kind"] != "peer"]
    assert re.search(CAUSES[attempt], own["cause"]), own["cause"]


@pytest.mark.guarantee("G1")
def test_the_victim_and_the_run_are_untouched(finished: tuple[runs.Finished, Path]) -> None:
    run, _ = finished
    assert run.code == 1
    agents = run.details["agents_by_name"]
    victim = agents.pop("victim")
    assert (victim["state"], victim["steps"]) == ("done", STEPS)
    assert {each["state"] for each in agents.values()} == {"quarantined"}


def test_the_environment_is_scrubbed_from_the_first_instruction_on(
    finished: tuple[runs.Finished, Path],
) -> None:
    _, evidence = finished
    executed = (evidence / "environ").read_bytes()
    names = {each.partition(b"=")[0].decode() for each in executed.split(b"\0")}
    names |= set((evidence / "environ.now").read_text().split("\n"))
    assert "TELL" in names and "PATH" in names
    assert SECRET not in names and b"hunter2" not in executed
    assert os.environ.keys() - names, "this process has more than its runners"


def test_a_runner_has_no_descriptors_but_its_own(finished: tuple[runs.Finished, Path]) -> None:
    _, evidence = finished
    lines = [line.split(" ", 1) for line in (evidence / "descriptors").read_text().split("\n")]
    kinds = {int(number): target for number, target in lines}
    assert kinds.pop(0) == "/dev/null"
    assert kinds.pop(1).endswith("victim.env.out") and kinds.pop(2).endswith("victim.env.err")
    others = sorted(target.partition(":")[0] for target in kinds.values())
    assert others == ["pipe", "socket"], kinds


def test_it_has_no_rights_left(finished: tuple[runs.Finished, Path]) -> None:
    run, evidence = finished
    lines = (evidence / "status").read_text().splitlines()
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in lines)}
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    read_all = 1 << 2  # CAP_DAC_READ_SEARCH, where the import path is root's alone
    for name in ("CapEff", "CapPrm", "CapBnd", "CapInh"):
        assert int(status[name], 16) & ~read_all == 0, name
    if os.geteuid() == 0:
        assert status["Uid"].split()[0] != "0"
    assert run.details["agents_by_name"]["victim"]["not_enforced"] == {}
