"""Runs and sandboxes of a served kernel, and what is left whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dsec.engine import rpc
from dsec.testing import leaks
from tests import watchdog
from tests.engine.talker import COMMAND, PATIENCE_S, POLE, RUN, initialized, stdio

# ---------------------------------------------------------------- runs and sandboxes


def test_a_run_is_told_of_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (400, "CartPole-v1"))
    with stdio() as served:
        served.hello()
        talker = served.talker
        begun = talker.call(
            "run.start",
            config=str(tmp_path / "run.yaml"),
            out=str(tmp_path / "out"),
            set=["run.steps=300"],
        )
        assert begun["agents"] == 1 and begun["seed"] == 7
        ended = talker.event("event.ended")
        assert ended["run"] == begun["run"] and ended["exit_code"] == 0
        assert ended["totals"]["steps"] == 300
        assert talker.event("event.agent")["state"] == "running"
        assert talker.event("event.progress")["run"] == begun["run"]
        status = talker.call("run.status", run=begun["run"])
        assert status["state"] == "ended" and status["totals"] == ended["totals"]
        assert talker.call("run.stop", run=begun["run"])["exit_code"] == 0
        (row,) = talker.call("agents.list", run=begun["run"])["agents"]
        assert row == {
            "agent": "pole",
            "state": "done",
            "steps": 300,
            "episodes": row["episodes"],
            "failovers": 0,
            "run": begun["run"],
            "sandbox": "",
        }
        assert (tmp_path / "out" / "summary.json").exists()


def test_a_wrong_run_says_which_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (400, "CartPole-v9"))
    with stdio() as served:
        served.hello(("event.ended",))
        talker = served.talker
        code, data = talker.refused("run.start", config=str(tmp_path / "none.yaml"))
        assert code == rpc.Code.CONFIG and "none.yaml" in data["what"]
        code, data = talker.refused("run.start")
        assert (code, data["where"]) == (rpc.Code.INVALID_PARAMS, "config")
        begun = talker.call(
            "run.start", config=str(tmp_path / "run.yaml"), out=str(tmp_path / "out")
        )
        ended = talker.event("event.ended")
        assert ended["run"] == begun["run"] and ended["exit_code"] == 2
        (told,) = ended["error"]["diagnostics"]
        assert told["line"] == 3 and "CartPole-v1" in told["message"]


def test_a_run_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (10**9, "CartPole-v1"))
    with stdio() as served:
        served.hello(("event.progress",))
        talker = served.talker
        config = str(tmp_path / "run.yaml")
        run = talker.call("run.start", config=config, out=str(tmp_path / "out"))["run"]
        while not talker.event("event.progress")["steps"]:
            pass
        status = talker.call("run.stop", run=run)
        assert status["exit_code"] == 130 and status["totals"]["steps"] > 0


def test_sandboxes_don_t_disturb_each_other() -> None:
    with stdio() as served:
        served.hello(("event.death", "event.quarantine", "event.ended", "event.failover"))
        talker = served.talker
        good = talker.ask("sandbox.open", agent=POLE, lanes=2, sandbox="good")
        bad = talker.ask("sandbox.open", agent={**POLE, "env": {"id": "None-v0"}}, sandbox="bad")
        error = talker.reply(bad)["error"]
        assert error["code"] == rpc.Code.FAILED and "None-v0" in error["data"]["what"]
        assert error["data"]["where"] == "pole-000" and "LookupError" in error["data"]["report"]
        assert talker.event("event.death")["sandbox"] == "bad"
        assert talker.event("event.quarantine") == {"sandbox": "bad", "agent": "pole-000"}
        assert talker.event("event.ended")["sandbox"] == "bad"
        assert talker.reply(good)["result"]["agents"] == ["pole-000", "pole-001"]
        code, data = talker.refused("sandbox.open", agent=POLE, sandbox="good")
        assert (code, data["where"]) == (rpc.Code.INVALID_PARAMS, "sandbox")
        code, data = talker.refused("sandbox.open", agent="name: x\nenv: 5")
        assert code == rpc.Code.CONFIG and "env" in data["what"]
        rows = talker.call("agents.list", sandbox="good")["agents"]
        assert [row["state"] for row in rows] == ["running"] * 2
        assert talker.call("sandbox.close", sandbox="good") == {"sandbox": "good", "files": []}
        assert talker.refused("sandbox.close", sandbox="good")[0] == rpc.Code.UNKNOWN
        assert talker.refused("agents.list", sandbox="good")[0] == rpc.Code.UNKNOWN


def test_events_that_nobody_reads_are_counted(listening: Path) -> None:
    with (
        initialized(listening, "event.agent", "event.lost") as slow,
        initialized(listening) as good,
    ):
        opened = slow.ask("sandbox.open", agent=POLE, sandbox="slow")
        line = b"[" + b"1," * 999 + b"1]\n"
        for _ in range(70):
            slow.send(line)

        def running() -> bool:
            rows = good.call("agents.list")["agents"]
            return [row["state"] for row in rows if row["sandbox"] == "slow"] == ["running"]

        watchdog.until(running, PATIENCE_S, "a sandbox")
        while slow.batches < 70:
            slow.read()
        assert "result" in slow.reply(opened)
        slow.ask("sandbox.close", sandbox="slow")
        assert slow.event("event.lost")["events"] == 1


def test_what_a_connection_opened_ends_with_it(listening: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN % (10**9, "CartPole-v1"))
    config = str(tmp_path / "run.yaml")
    with initialized(listening) as talker:
        talker.call("sandbox.open", agent=POLE, sandbox="lone")
        talker.call("run.start", config=config, out=str(tmp_path / "a"))
        kept = talker.call("run.start", config=config, out=str(tmp_path / "b"), keep=True)["run"]
    with initialized(listening) as other:

        def only_the_kept_one() -> bool:
            rows = other.call("agents.list")["agents"]
            states = {(row["run"], row["state"]) for row in rows if row["state"] == "running"}
            return not any(row["sandbox"] for row in rows) and states <= {(kept, "running")}

        watchdog.until(only_the_kept_one, PATIENCE_S, "the end of what was not kept")
        assert other.call("run.status", run=kept)["state"] == "running"
        assert other.call("run.stop", run=kept, kill=True)["state"] == "ended"


# ---------------------------------------------------------------- ends


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("how", ["host", "supervisor", "guardian", "SIGTERM"])
def test_nothing_is_left_whoever_is_killed(how: str, tmp_path: Path) -> None:
    """The host is a program that holds the pipes; a fork of it lives on and holds them, too."""
    (tmp_path / "run.yaml").write_text(RUN % (10**9, "CartPole-v1"))
    script = (
        "import json, os, subprocess, sys, time\n"
        "k = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE,\n"
        "                     stdout=subprocess.PIPE, bufsize=0)\n"
        "if os.fork() == 0: time.sleep(1000)\n"
        "def call(i, m, **p):\n"
        "    k.stdin.write((json.dumps({'jsonrpc': '2.0', 'id': i, 'method': m,\n"
        "                               'params': p}) + '\\n').encode())\n"
        "    print(k.stdout.readline().decode().strip(), flush=True)\n"
        "call(1, 'initialize', protocol=1, process_id=os.getpid())\n"
        "call(2, 'sandbox.open', agent=json.loads(sys.argv[2]))\n"
        "call(3, 'run.start', config=sys.argv[3], out=sys.argv[4])\n"
        "print('end', len(k.stdout.read()), k.wait(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    argv = [sys.executable, "-c", script, json.dumps([*COMMAND, "--stdio"]), json.dumps(POLE)]
    argv += [str(tmp_path / "run.yaml"), str(tmp_path / "out")]
    with watchdog.Watched(argv, tmp_path / "host") as host:
        host.until(lambda: host.stdout.count("\n") >= 3, PATIENCE_S, "a sandbox and a run")
        facts, opened, begun = map(json.loads, host.stdout.splitlines())
        assert "result" in opened and "result" in begun, (opened, begun)
        folder = Path(facts["result"]["folder"])
        mark = os.environ[leaks.MARK]
        fork = next(pid for pid in leaks.children_of(host.pid) if pid not in _of(facts))
        try:
            if how == "host":
                os.kill(host.pid, signal.SIGKILL)
            else:
                role = {"SIGTERM": "guardian"}.get(how, how)
                number = signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL
                os.kill(facts["result"][role], number)
            watchdog.until(
                lambda: leaks.marked(mark) <= {host.pid, fork},
                PATIENCE_S,
                "the end of everybody else",
            )
            assert not folder.exists()
            if how != "host":
                host.until(lambda: "\nend " in host.stdout, PATIENCE_S, "the end of its kernel")
                codes = {"supervisor": 137, "guardian": -9, "SIGTERM": 0}
                assert host.stdout.splitlines()[-1] == f"end 0 {codes[how]}"
        finally:
            os.kill(fork, signal.SIGKILL)


def _of(facts: dict[str, Any]) -> set[int]:
    return {facts["result"]["guardian"], facts["result"]["supervisor"]}
